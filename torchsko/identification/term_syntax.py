"""Syntax of terms on the command line: ``--terms elbow=Viscous,RotorInertia --candidates "+Dahl(0.05)"``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields

from torchsko.errors import FitError, unknown_name
from torchsko.identification.friction import Term, term_classes
from torchsko.identification.friction.candidates import CANDIDATE_TERMS
from torchsko.identification.joint_terms import JointTerms
from torchsko.mechanism.coordinates import free_joints
from torchsko.mechanism.mechanism import Mechanism

NONE = "none"
"""Stands for a joint without terms."""


def parse_joint_terms(mech: Mechanism, texts: Sequence[str]) -> JointTerms:
    """Parse the option `joint_terms` of `torchsko.identification.identify`.

    Args:
        mech: the robot.
        texts: ``TERM,TERM`` for all joints, or ``JOINT=TERM,TERM`` for one joint, which takes precedence.

    Raises:
        FitError: an unknown term, parameter or joint, or a joint that is named twice.
    """
    common: list[Term] | None = None
    by_joint: dict[str, list[Term]] = {}
    for text in texts:
        left, sign, right = text.partition("=")
        # An equals sign in parentheses belongs to a parameter of a term.
        joint, words = (left, right) if sign and "(" not in left else (None, text)
        if joint is not None and joint not in mech.joint_names:
            raise FitError(*unknown_name("joint", joint, mech.joint_names))
        if joint in by_joint or (joint is None and common is not None):
            prefix = "" if joint is None else f"{joint}="
            raise FitError(
                f"--terms {text} repeats the terms of {'all joints' if joint is None else joint}.",
                "All terms of a joint belong to one option.",
                f'Type --terms "{prefix}Viscous,SmoothCoulomb(0.05),Offset".',
            )
        terms = [] if words.strip() == NONE else [_term(text, word) for word in _split(words)]
        if joint is None:
            common = terms
        else:
            by_joint[joint] = terms
    if common is None:
        return by_joint or None
    floating = free_joints(mech)
    return {name: common for name in mech.joint_names if name not in floating} | by_joint


def parse_candidates(texts: Sequence[str]) -> tuple[Term, ...]:
    """Parse the option `candidate_terms` of `torchsko.identification.identify`.

    Args:
        texts: ``+TERM,TERM`` adds to the default candidates, ``TERM,TERM`` replaces them. Several texts are
            joined.

    Raises:
        FitError: an unknown term or parameter.
    """
    terms: list[Term] = []
    if all(text.lstrip().startswith("+") for text in texts):
        terms += CANDIDATE_TERMS
    for text in texts:
        words = text.strip().removeprefix("+").strip()
        terms += [] if words == NONE else [_term(text, x, "candidates") for x in _split(words)]
    return tuple(dict.fromkeys(terms))


def _split(words: str) -> list[str]:
    """Split at commas outside of parentheses."""
    return [word.strip() for word in re.split(r",(?![^()]*\))", words)]


def _term(text: str, word: str, option: str = "terms") -> Term:
    """Parse a term with its parameters, as in Python: ``LuGre(0.02, speed=0.1)``."""
    parts = re.fullmatch(r"(\w*)(?:\(([^()]*)\))?", word)
    if parts is None or not parts[1]:
        raise FitError(
            f"--{option} {text}: {word!r} is not a term.",
            f"A term is a name, optionally with parameters in parentheses, or {NONE!r}.",
            'Type --terms "Viscous,SmoothCoulomb(0.05),Offset", --terms elbow=RotorInertia for one joint, or '
            "--candidates +Spring.",
        )
    name, parameters = parts[1], parts[2]
    classes = term_classes()
    if name not in classes:
        raise FitError(*unknown_name("term", name, tuple(classes)))
    known = [f.name for f in fields(classes[name])]
    free, given = [*known], {}
    for value in parameters.split(",") if parameters and parameters.strip() else ():
        left, _, right = value.rpartition("=")
        key = left.strip() or (free[0] if free else "")
        try:
            free.remove(key)
            given[key] = float(right)
        except ValueError:
            raise FitError(
                f"--{option} {text}: {value.strip()!r} is not a parameter of {name}.",
                f"Its parameters are {', '.join(known)}, which are numbers."
                if known
                else "It has no parameters.",
                f"Type --{option} {name}, or see torchsko.identification.friction.{name}.",
            ) from None
    return classes[name](**given)
