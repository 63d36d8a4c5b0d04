"""What a fit is asked for: estimators and terms, refused by name where they cannot be."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real

import torch
from torch import nn

from torchsko.errors import FitError, unknown_name
from torchsko.learn.estimators import ESTIMATORS
from torchsko.learn.friction import Term
from torchsko.learn.library import LIBRARY
from torchsko.learn.limits import refuse_zero_limits
from torchsko.learn.loops import refuse_loops
from torchsko.learn.motion import turning
from torchsko.learn.normal import Regressor
from torchsko.mechanism.coordinates import free_joints
from torchsko.mechanism.mechanism import Mechanism

Learn = Mapping[str, Sequence[Term]] | Sequence[Term] | None


def terms_of(
    mech: Mechanism, learn: Learn, library: Sequence[Term], method: str
) -> tuple[tuple[Term, ...], dict[int, tuple[int, ...]]]:
    """All terms there are, and for each dof whose terms are given their places."""
    if method == "shooting" and (odd := turning(mech)):
        raise FitError(
            f"joint {odd[0]!r} turns by a quaternion.\n"
            "Shooting moves joints whose coordinates are a vector.\n"
            'Pass method="physical" and a log with velocities.'
        )
    # Nothing rubs where a robot floats: terms of its free joint are named by themselves.
    given: dict[str, Sequence[Term]] = dict.fromkeys(free_joints(mech), ())
    if isinstance(learn, Mapping):
        given |= dict(learn)
    elif isinstance(learn, Term) or not isinstance(learn, Sequence | None):
        raise FitError(
            f"learn was given as {type(learn).__name__}.\n"
            "It is a list of terms of every joint, or a list for each joint by name.\n"
            "Pass learn=[Viscous(), Coulomb()], or leave it out: they are chosen."
        )
    elif learn is not None:
        given = {name: given.get(name, learn) for name in mech.joint_names}
    for name, some in given.items():
        if name not in mech.joint_names:
            _refuse_body(mech, name)
            raise FitError(unknown_name("joint", name, mech.joint_names))
        if isinstance(some, Term) or not isinstance(some, Sequence):
            raise FitError(
                f"learn of joint {name!r} was given as {type(some).__name__}.\n"
                "A joint has a list of terms, also where it is one, or none.\n"
                'Type learn={"' + name + '": [Viscous()]}, say.'
            )
        twice = [term for k, term in enumerate(some) if term in some[:k]]
        if twice:
            raise FitError(
                f"{twice[0]!r} of joint {name!r} is there more than once.\n"
                "Alike, they would share one force, and no log tells how.\nLeave the others out."
            )
        for term in some:
            if not isinstance(term, Term):
                raise FitError(
                    f"{term!r} of joint {name!r} is no term.\n"
                    "Forces of joints are terms of torchsko.learn.friction, with parentheses.\n"
                    'Type learn={"' + name + '": [Viscous(), SmoothCoulomb(0.05), Offset()]}, say.'
                )
            if method != "shooting" and term.shows:
                raise FitError(
                    f"{term.label} of joint {name!r} is not told by forces that are linear in it.\n"
                    "Positions that are shown too large bend every column of the regressor.\n"
                    'Pass method="shooting", which moves the robot.'
                )
            if method == "shooting" and not moves(term):
                raise FitError(
                    f"{term.label} of joint {name!r} cannot be shot.\n"
                    "Forward dynamics know position and velocity, no acceleration, load or jump.\n"
                    "Pass SmoothCoulomb(0.05) in place of dry friction, or another method."
                )
    every = tuple(
        dict.fromkeys([*LIBRARY, *library, *(term for some in given.values() for term in some)])
    )
    places = {
        j: tuple(sorted(every.index(term) for term in some))
        for name, some in given.items()
        for j in range(mech.num_dof)[mech.dof_slice(name)]
    }
    return every, places


def _refuse_body(mech: Mechanism, name: str) -> None:
    """Refuse inertial numbers of a body, in place of a joint's terms."""
    body = name if name in mech.body_names else name.rpartition(".")[0]
    if body in mech.body_names and name not in mech.joint_names:
        raise FitError(
            f"learn names the body {body!r}, and not a joint.\n"
            "A fit finds the inertias of all bodies together; `learn` says what forces joints have besides.\n"
            "For the numbers of one body alone, a payload say, type "
            f'ts.learn.payload(ts.learn.fit(mech, log, method="wls"), "{body}").'
        )


def moves(term: Term) -> bool:
    """Whether a term can act in forward dynamics."""
    return term.continuous or term.inertia != 0 or term.shows != 0


MOST_FOLDS = 100
"""Of cross-validation."""


@dataclass(frozen=True, eq=False)
class Asked:
    """What a fit is asked for; `torchsko.learn.fit` says what each is.

    Attributes:
        learn: terms of joints.
        library: terms to choose from.
        method: of `ESTIMATORS`.
        cutoff: of the filter [Hz].
        prior: weight of the nominal robot.
        folds: of cross-validation.
        window: of shooting [s].
        residual: a force that is learned.
        regressor: instead of `torque_regressor`.
        checkpoint: file to go on from.
    """

    learn: Learn
    library: Sequence[Term]
    method: str
    cutoff: float | None
    prior: float | None
    folds: int
    window: float | None
    residual: nn.Module | None
    regressor: Regressor | None
    checkpoint: str | os.PathLike[str] | None

    def check(self) -> None:
        """Refuse options out of range, by name."""
        prior, folds, window = self.prior, self.folds, self.window
        if not (
            isinstance(self.library, Sequence) and all(isinstance(x, Term) for x in self.library)
        ):
            raise FitError(
                f"library is {self.library!r}.\nIt is a list of terms, with parentheses, to choose from.\n"
                "Pass library=[*torchsko.learn.library.LIBRARY, MyTerm()], say, or leave it out."
            )
        if self.method not in ESTIMATORS:
            raise FitError(unknown_name("method", self.method, tuple(ESTIMATORS)))
        if prior is not None and not (isinstance(prior, Real) and 0 < prior < math.inf):
            raise FitError(
                f"prior is {prior!r}.\nIt is a positive number: a small one leaves all to the data.\n"
                "Pass prior=1e-6, say, or leave it out: cross-validation chooses it."
            )
        if not (isinstance(folds, Integral) and 2 <= folds <= MOST_FOLDS):
            raise FitError(
                f"folds is {folds!r}.\n"
                "Each stretch of time is left out once: there are two at least, and of more than "
                f"{MOST_FOLDS} each is like its neighbours.\nPass folds=5, the default."
            )
        for name, unit in (("cutoff", "Hz"), ("window", "s")):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, (int, float)) and 0 < value < math.inf):
                raise FitError(
                    f"{name} is {value!r}.\nIt is a positive number, in {unit}.\n"
                    "Leave it out: it is chosen."
                )
        if window is not None and self.method != "shooting":
            raise FitError(
                f"window={window} was given with method={self.method!r}.\n"
                'Windows are those of method="shooting"; others filter by `cutoff`.\n'
                'Leave it out, or pass method="shooting".'
            )
        if self.residual is not None and not isinstance(self.residual, nn.Module):
            raise FitError(
                f"residual was given as {type(self.residual).__name__}.\n"
                "A force that is learned is a module with parameters.\n"
                "Pass torchsko.learn.Network(...), or an nn.Module of yours."
            )


def check_robot(mech: Mechanism) -> None:
    """Refuse several robots, one in single precision, a closed chain, or joints that may have no force."""
    if mech.batch_shape:
        raise FitError(
            f"{mech.name!r} is {mech.batch_shape.numel()} robots.\n"
            "A log is one robot's.\nPass one, without batch dimensions."
        )
    if mech.dtype != torch.float64:
        raise FitError(
            f"{mech.name!r} is {mech.dtype}.\n"
            "A log is fitted in double precision: sums over it lose what single precision keeps.\n"
            "Pass mech.to(torch.float64)."
        )
    refuse_loops(mech)
    refuse_zero_limits(mech, "effort_limit")
