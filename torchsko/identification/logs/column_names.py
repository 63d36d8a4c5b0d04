"""What columns of logs are called: the words that people use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torchsko.identification.logs.units import CURRENTS

NOTHING = ("null", "empty lists")
"""Types of columns in which there is nothing."""


CALLED = {
    "t": ("t", "time", "stamp", "timestamp"),
    "q": ("q", "pos", "position", "positions", "angle"),
    "qd": ("qd", "dq", "qdot", "q_dot", "vel", "velocity", "velocities"),
    "tau": ("tau", "torque", "torques", "effort", "efforts", "force"),
}
"""What each quantity is called in the files of others; where two stand in one file, the first counts."""


OF_JOINTS = r"(?:joints?[\s_-]*)?"
"""What may stand before these: joint_positions."""

AMPERES = ("current", "currents")
"""What motor currents are called: forces where their unit is declared."""


STAMPED = re.compile(
    r"(|.*[^a-z])(?:(s|secs?|seconds)|(ns|nsecs?|nanosecs?|nanoseconds))", re.IGNORECASE
)
"""What the halves of a time in two columns are called, as in messages of ROS."""


WORDS = ("words", "string", "large_string", "string_view")
"""Types of columns of words, also those of Parquet."""


TIMELY = (
    *CALLED["t"],
    *"times timestamps ts elapsed clock date datetime sec secs seconds index".split(),
)
"""Words in the names of columns that may be times: nobody knows for sure, or in which unit."""


COMMANDED = tuple("target desired des d cmd command commanded goal ref reference".split())
"""What columns of commands are called."""


def called_by(unit: str | Mapping[str, str] | None) -> dict[str, tuple[str, ...]]:
    """What each quantity is called, where joint forces have a unit: first currents where it is theirs."""
    tau = CALLED["tau"]
    if unit is not None:
        tau = AMPERES + tau if unit in CURRENTS else tau + AMPERES
    return {**CALLED, "tau": tau}


def has_word(column: str, words: Sequence[str]) -> bool:
    """Whether one of some words stands in a name, as a word of its own."""
    return bool(re.search(rf"(?:^|[^a-z])(?:{'|'.join(words)})(?:[^a-z]|$)", column, re.IGNORECASE))


def owners_of(word: str, column: str) -> set[str]:
    """Whose a column may be, by what stands beside a word in its name."""
    # Whole words, so that "qd_1" is no position and "joint1_tau" no time; parts of a path are words.
    first = re.fullmatch(
        rf"(?:.*(?:[/.]|__))?{OF_JOINTS}{word}(?:[\s_./\[(-]*)(.+?)[\])]*", column, re.IGNORECASE
    )
    last = re.fullmatch(rf"(.+?)[\s_./-]+{word}", column, re.IGNORECASE)
    owners = {m[1] for m in (first, last) if m is not None}
    return owners | {owner.rsplit("/", 1)[-1] for owner in owners}


def rank(column: str, called: Sequence[str]) -> int:
    """Which of some words an array is called by, as a part of a path, or of "joint": joint_positions."""
    last = re.split(r"[/.]|__", column.lower())[-1]
    bare = re.sub(rf"^{OF_JOINTS}", "", last)
    return called.index(bare) if bare in called else len(called)
