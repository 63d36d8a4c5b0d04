"""Names of log columns in common use, and the parts of names that identify joints."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from torchsko.identification.logs.units import CURRENT_UNITS

QUANTITY_NAMES = {
    "t": ("t", "time", "stamp", "timestamp"),
    "q": ("q", "pos", "position", "positions", "angle"),
    "qd": ("qd", "dq", "qdot", "q_dot", "vel", "velocity", "velocities"),
    "tau": ("tau", "torque", "torques", "effort", "efforts", "force"),
}
"""Names of each quantity; if a file has several, the first one counts."""

CURRENT_NAMES = ("current", "currents")
"""Names of motor currents, which count as forces only if their unit is declared."""

JOINT_PREFIX = r"(?:(?:actual|measured)[\s_-]*)?(?:joints?[\s_-]*)?"
"""Optional prefix of these names: joint_positions, actual_q."""


def quantity_names(tau_unit: str | Mapping[str, str] | None) -> dict[str, tuple[str, ...]]:
    """Names of each quantity; those of currents are names of tau if its unit is declared."""
    tau = QUANTITY_NAMES["tau"]
    if tau_unit is not None:
        tau = CURRENT_NAMES + tau if tau_unit in CURRENT_UNITS else tau + CURRENT_NAMES
    return {**QUANTITY_NAMES, "tau": tau}


def contains_word(column: str, words: Sequence[str]) -> bool:
    """Test whether a name contains one of several words, delimited by characters other than letters."""
    return bool(re.search(rf"(?:^|[^a-z])(?:{'|'.join(words)})(?:[^a-z]|$)", column, re.IGNORECASE))


def joint_candidates(word: str, column: str) -> set[str]:
    """Parts of a column name beside a quantity's name that may be the name or the number of a joint."""
    # Only whole words count: "qd_1" is not a position, and "joint1_tau" is not a time.
    before = re.fullmatch(
        rf"(?:.*(?:[/.]|__))?{JOINT_PREFIX}{word}(?:[\s_./\[(-]*)(.+?)[\])]*", column, re.IGNORECASE
    )
    after = re.fullmatch(rf"(.+?)[\s_./-]+{word}", column, re.IGNORECASE)
    names = {m[1] for m in (before, after) if m is not None}
    return names | {name.rsplit("/", 1)[-1] for name in names}


def match_joint(text: str, joints: Sequence[str]) -> str | None:
    """Find the joint that a part of a column name stands for, apart from capitals and separators.

    Args:
        text: result of `joint_candidates`.
        joints: names of the robot's joints.

    Returns:
        The name of the joint; None if none or several match equally well.
    """
    if text in joints:
        return text
    for separator in ("_", ""):
        words = normalize_name(text, separator)
        found = [x for x in joints if normalize_name(x, separator) == words]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def prefixed_joints(texts: Collection[str], joints: Sequence[str]) -> dict[str, str]:
    """Joints whose names have another common prefix in a file: "fer_joint1" for "panda_joint1" or "joint1".

    Args:
        texts: names in the file.
        joints: names of the robot's joints.

    Returns:
        Joints by text; empty unless each joint has one text with one prefix.
    """
    names = [normalize_name(x, "_").split("_") for x in joints]
    shared = 0
    if len(names) > 1:
        while all(len(x) > shared + 1 and x[shared] == names[0][shared] for x in names):
            shared += 1
    ends = {"".join(x[shared:]): joint for x, joint in zip(names, joints, strict=True)}
    groups: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for text in texts:
        if "/" in text and text.rsplit("/", 1)[-1] in texts:
            continue  # with its namespace
        words = normalize_name(text, "_").split("_")
        for k in range(len(words)):
            if joint := ends.get("".join(words[k:])):
                groups.setdefault(tuple(words[:k]), {}).setdefault(joint, []).append(text)
    complete = [x for x in groups.values() if len(x) == len(joints)]
    if len(complete) != 1 or any(len(x) > 1 for x in complete[0].values()):
        return {}
    return {found: joint for joint, (found,) in complete[0].items()}


def normalize_name(text: str, separator: str) -> str:
    """Lower-case words of a name with one separator between them."""
    return re.sub(r"[\W_]+", separator, text).strip("_").lower()


def name_rank(column: str, names: Sequence[str]) -> int:
    """Index of an array's name among `names`, without path and joint prefix; their number if not found."""
    last = re.split(r"[/.]|__", column.lower())[-1]
    bare = re.sub(rf"^{JOINT_PREFIX}", "", last)
    return names.index(bare) if bare in names else len(names)
