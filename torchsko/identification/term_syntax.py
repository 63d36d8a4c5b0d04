"""Terms as words of the command line: ``--learn "Viscous,Dahl(0.01)"``, ``--learn elbow=RotorInertia``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields

from torchsko.errors import FitError, unknown_name
from torchsko.identification.friction import Term, term_classes
from torchsko.identification.joint_terms import Learn
from torchsko.mechanism.coordinates import free_joints
from torchsko.mechanism.mechanism import Mechanism

NONE = "none"
"""Of a joint without terms, as reports have it."""


def learn_of(mech: Mechanism, texts: Sequence[str]) -> Learn:
    """What `torchsko.identification.identify` takes as `learn`: terms of every joint, or of some by name.

    Args:
        mech: whose joints are named.
        texts: ``TERM,TERM`` of every joint, ``JOINT=TERM,TERM`` of one; that of one joint counts there.

    Raises:
        FitError: on an unknown term, shape or joint, or terms of a joint that are named twice; names it.
    """
    every: list[Term] | None = None
    own: dict[str, list[Term]] = {}
    for text in texts:
        left, sign, right = text.partition("=")
        # An equals sign in parentheses belongs to a term's shape.
        joint, words = (left, right) if sign and "(" not in left else (None, text)
        if joint is not None and joint not in mech.joint_names:
            raise FitError(*unknown_name("joint", joint, mech.joint_names))
        if joint in own or (joint is None and every is not None):
            raise FitError(
                f"--learn {text} names terms of {'every joint' if joint is None else joint} once more.",
                "All terms of a joint are named at once.",
                f'Type --learn "{"" if joint is None else joint + "="}Viscous,SmoothCoulomb(0.05),Offset", '
                "say.",
            )
        terms = [] if words.strip() == NONE else [_term(text, word) for word in _split(words)]
        if joint is None:
            every = terms
        else:
            own[joint] = terms
    if every is None:
        return own or None
    floating = free_joints(mech)
    return {name: every for name in mech.joint_names if name not in floating} | own


def _split(words: str) -> list[str]:
    """Terms apart, by commas that are in no parentheses."""
    return [word.strip() for word in re.split(r",(?![^()]*\))", words)]


def _term(text: str, word: str) -> Term:
    """A term by its name and shape, as Python and reports write it: ``LuGre(0.02, speed=0.1)``."""
    parts = re.fullmatch(r"(\w*)(?:\(([^()]*)\))?", word)
    if parts is None or not parts[1]:
        raise FitError(
            f"--learn {text}: {word!r} is no term.",
            f"A term is a name, with its shape in parentheses if it is another than usual, or {NONE!r}.",
            'Type --learn "Viscous,SmoothCoulomb(0.05),Offset", or --learn elbow=RotorInertia of one joint.',
        )
    name, shape = parts[1], parts[2]
    classes = term_classes()
    if name not in classes:
        raise FitError(*unknown_name("term", name, tuple(classes)))
    known = [f.name for f in fields(classes[name])]
    free, given = [*known], {}
    for value in shape.split(",") if shape and shape.strip() else ():
        left, _, right = value.rpartition("=")
        key = left.strip() or (free[0] if free else "")
        try:
            free.remove(key)
            given[key] = float(right)
        except ValueError:
            takes = f"It takes {', '.join(known)}, numbers." if known else "It takes none."
            raise FitError(
                f"--learn {text}: {value.strip()!r} is no shape of {name}.",
                f"A shape is a number, or one by name. {takes}",
                f"Type --learn {name}, say, or see torchsko.identification.friction.{name}.",
            ) from None
    return classes[name](**given)
