"""Terms that a fit is asked for, of each joint: read, and refused by name where they cannot be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from torchsko.errors import FitError, unknown_name
from torchsko.identification.friction import Term
from torchsko.identification.friction.candidates import CANDIDATE_TERMS
from torchsko.identification.signals.preprocess import quaternion_joints
from torchsko.mechanism.coordinates import free_joints
from torchsko.mechanism.mechanism import Mechanism

Learn = Mapping[str, Sequence[Term]] | Sequence[Term] | None


def terms_of(
    mech: Mechanism, learn: Learn, library: Sequence[Term], method: str
) -> tuple[tuple[Term, ...], dict[int, tuple[int, ...]]]:
    """All terms there are, and for each dof whose terms are given their places.

    Raises:
        FitError: on what is no list of terms, no joint's name, or a term that the method cannot find.
    """
    if method == "shooting":
        _refuse_turning(mech)
    given = _by_joint(mech, learn)
    for name, some in given.items():
        _refuse_other_names(mech, name)
        _refuse_no_list(name, some)
        _refuse_repeated(name, some)
        for term in some:
            _refuse_no_term(name, term)
            _refuse_not_found(name, term, method)
    every = tuple(dict.fromkeys([*CANDIDATE_TERMS, *library, *chain(*given.values())]))
    places = {
        j: tuple(sorted(every.index(term) for term in some))
        for name, some in given.items()
        for j in range(mech.num_dof)[mech.dof_slice(name)]
    }
    return every, places


def moves(term: Term) -> bool:
    """Whether a term can act in forward dynamics."""
    return term.continuous or term.armature != 0 or term.sensor_scale != 0


def _by_joint(mech: Mechanism, learn: Learn) -> dict[str, Sequence[Term]]:
    """The terms that are given, by joint."""
    # Nothing rubs where a robot floats: terms of its free joint are named by themselves.
    given: dict[str, Sequence[Term]] = dict.fromkeys(free_joints(mech), ())
    if learn is None:
        return given
    if isinstance(learn, Mapping):
        return given | dict(learn)
    if isinstance(learn, Term) or not isinstance(learn, Sequence):
        raise FitError(
            f"learn was given as {type(learn).__name__}.",
            "It is a list of terms of every joint, or a list for each joint by name.",
            "Pass learn=[Viscous(), Coulomb()], or leave it out: they are chosen.",
        )
    return {name: given.get(name, learn) for name in mech.joint_names}


def _refuse_turning(mech: Mechanism) -> None:
    if odd := quaternion_joints(mech):
        raise FitError(
            f"joint {odd[0]!r} turns by a quaternion.",
            "Shooting moves joints whose coordinates are a vector.",
            'Pass method="physical" and a log with velocities.',
        )


def _refuse_other_names(mech: Mechanism, name: str) -> None:
    """Refuse what is no joint; inertial numbers of a body, in place of a joint's terms, by themselves."""
    if name in mech.joint_names:
        return
    body = name if name in mech.body_names else name.rpartition(".")[0]
    if body in mech.body_names:
        raise FitError(
            f"learn names the body {body!r}, and not a joint.",
            "A fit finds the inertias of all bodies together; `learn` says what forces joints have besides.",
            "For the numbers of one body alone, a payload say, type "
            f'ts.identification.payload(ts.identification.identify(mech, log, method="wls"), "{body}").',
        )
    raise FitError(*unknown_name("joint", name, mech.joint_names))


def _refuse_no_list(name: str, some: Any) -> None:
    if isinstance(some, Term) or not isinstance(some, Sequence):
        raise FitError(
            f"learn of joint {name!r} was given as {type(some).__name__}.\n"
            "A joint has a list of terms, also where it is one, or none.\n"
            'Type learn={"' + name + '": [Viscous()]}, say.'
        )


def _refuse_repeated(name: str, some: Sequence[Term]) -> None:
    twice = [term for k, term in enumerate(some) if term in some[:k]]
    if twice:
        raise FitError(
            f"{twice[0]!r} of joint {name!r} is there more than once.",
            "Alike, they would share one force, and no log tells how.",
            "Leave the others out.",
        )


def _refuse_no_term(name: str, term: Any) -> None:
    if not isinstance(term, Term):
        raise FitError(
            f"{term!r} of joint {name!r} is no term.\n"
            "Forces of joints are terms of torchsko.identification.friction, with parentheses.\n"
            'Type learn={"' + name + '": [Viscous(), SmoothCoulomb(0.05), Offset()]}, say.'
        )


def _refuse_not_found(name: str, term: Term, method: str) -> None:
    """Refuse a term that the method has no way to find."""
    if method != "shooting" and term.sensor_scale:
        raise FitError(
            f"{term.label} of joint {name!r} is not told by forces that are linear in it.",
            "Positions that are shown too large bend every column of the regressor.",
            'Pass method="shooting", which moves the robot.',
        )
    if method == "shooting" and not moves(term):
        raise FitError(
            f"{term.label} of joint {name!r} cannot be shot.",
            "Forward dynamics know position and velocity, no acceleration, load or jump.",
            "Pass SmoothCoulomb(0.05) in place of dry friction, or another method.",
        )
