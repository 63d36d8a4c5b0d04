"""ROS 2 bags (SQLite and MCAP) with messages of the type sensor_msgs/msg/JointState."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchsko.errors import FitError
from torchsko.identification.logs.column_names import match_joint
from torchsko.utils.optional_dependencies import require

JOINT_STATE = "sensor_msgs/msg/JointState"
"""Type of the messages that are read."""

FIELDS = {"position": "q", "velocity": "qd", "effort": "tau"}
"""Fields of a message, and their quantities."""


def read_bag(path: Path, joints: Sequence[str] = ()) -> dict[str, Any]:
    """Read the joint states of a ROS 2 bag; times are those of their headers.

    Several topics, or several lists of joints in one topic, are separate recordings. The one with most of
    the robot's joints is read, of equal ones that with forces, and then the longest.

    Args:
        path: the folder of a bag, or its file.
        joints: names in the robot's order.

    Raises:
        FitError: if the bag has no joint states.
        MissingExtraError: if rosbags is not installed.
    """
    bags, stores = require("rosbags.highlevel", "bags"), require("rosbags.typesys", "bags")
    source = path.parent if (path.parent / "metadata.yaml").is_file() else path
    store = stores.get_typestore(stores.Stores.LATEST)
    groups: dict[tuple[str, tuple[str, ...]], list[Any]] = {}
    try:
        with bags.AnyReader([source], default_typestore=store) as reader:
            topics = sorted({f"{x.topic} ({x.msgtype})" for x in reader.connections})
            connections = [x for x in reader.connections if x.msgtype == JOINT_STATE]
            for connection, received, data in reader.messages(connections) if connections else ():
                message = reader.deserialize(data, connection.msgtype)
                group = groups.setdefault((connection.topic, tuple(message.name)), [])
                group.append((received, message))
    except bags.AnyReaderError as error:
        raise ValueError(str(error)) from error
    if not groups:
        raise FitError(
            f"{path}: it has no message of the type {JOINT_STATE}.",
            f"Its topics are {', '.join(topics) or 'none'}.",
            "Record the topic of the joint states: ros2 bag record /joint_states.",
        )

    def rank(key: tuple[str, tuple[str, ...]]) -> tuple[int, bool, int]:
        found = {match_joint(x, joints) for x in key[1]} - {None}
        return len(found), bool(len(groups[key][0][1].effort)), len(groups[key])

    best = max(groups, key=rank)
    return _columns(best[1], groups[best])


def _columns(names: Sequence[str], messages: Sequence[tuple[int, Any]]) -> dict[str, Any]:
    """Times and fields of messages, by joint."""
    stamps = [(x.header.stamp.sec, x.header.stamp.nanosec) for _, x in messages]
    if not any(any(x) for x in stamps):  # headers without a time
        stamps = [divmod(received, 10**9) for received, _ in messages]
    first = stamps[0][0]
    columns = {"t": np.array([(s - first) + 1e-9 * n for s, n in stamps])}
    for field, quantity in FIELDS.items():
        rows = [getattr(x, field) for _, x in messages]
        if all(len(x) == len(names) for x in rows) and len(names):
            values = np.array(rows, np.float64)
            columns |= {f"{quantity}_{j}": y for j, y in zip(names, values.T, strict=True)}
    return columns
