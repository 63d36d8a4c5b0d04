"""Terms of joints that the caller chose: parse and check them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from torchsko.errors import FitError, unknown_name
from torchsko.identification.estimators.estimator import Estimator
from torchsko.identification.friction import Spring, Term
from torchsko.identification.friction.candidates import CANDIDATE_TERMS
from torchsko.mechanism.coordinates import free_joints
from torchsko.mechanism.mechanism import Mechanism

CHECK_TERMS = (Spring(),)
"""Terms whose columns checks of the log need, besides those of the candidates."""

JointTerms = Mapping[str, Sequence[Term]] | Sequence[Term] | None


def terms_of(
    mech: Mechanism,
    joint_terms: JointTerms,
    candidate_terms: Sequence[Term],
    estimator: type[Estimator],
) -> tuple[tuple[Term, ...], dict[int, tuple[int, ...]]]:
    """Collect all terms of a problem, and for each dof the indices of the terms that the caller chose.

    Raises:
        FitError: an unknown joint, an invalid list of terms, or a term that the estimator does not support.
    """
    estimator.check_robot(mech)
    given = _by_joint(mech, joint_terms)
    for name, terms in given.items():
        _check_terms(mech, name, terms, estimator)
    named = [*CANDIDATE_TERMS, *CHECK_TERMS, *candidate_terms, *chain(*given.values())]
    every = tuple(dict.fromkeys([*named, *(term.memoryless for term in named)]))
    indices = {
        j: tuple(sorted(every.index(term) for term in terms))
        for name, terms in given.items()
        for j in range(mech.num_dof)[mech.dof_slice(name)]
    }
    return every, indices


def _by_joint(mech: Mechanism, joint_terms: JointTerms) -> dict[str, Sequence[Term]]:
    """Terms by joint. A free joint has none unless it is named."""
    given: dict[str, Sequence[Term]] = dict.fromkeys(free_joints(mech), ())
    if joint_terms is None:
        return given
    if isinstance(joint_terms, Mapping):
        return given | dict(joint_terms)
    if isinstance(joint_terms, Term) or not isinstance(joint_terms, Sequence):
        raise FitError(
            f"joint_terms is a {type(joint_terms).__name__}.",
            "It must be a list of terms for all joints, or a mapping of such lists by joint name.",
            "Pass joint_terms=[Viscous(), Coulomb()], or leave it out.",
        )
    return {name: given.get(name, joint_terms) for name in mech.joint_names}


def _check_terms(mech: Mechanism, name: str, terms: Any, estimator: type[Estimator]) -> None:
    """Check the terms of one joint."""
    if name not in mech.joint_names:
        raise _not_a_joint(mech, name)
    if isinstance(terms, Term) or not isinstance(terms, Sequence):
        raise FitError(
            f"joint_terms of joint {name!r} is a {type(terms).__name__}.",
            "It must be a list of terms, also for a single term.",
            f'Pass joint_terms={{"{name}": [Viscous()]}}.',
        )
    for k, term in enumerate(terms):
        if not isinstance(term, Term):
            raise FitError(
                f"{term!r} of joint {name!r} is not a term.",
                "Terms are instances of classes in torchsko.identification.friction, with parentheses.",
                f'Pass joint_terms={{"{name}": [Viscous(), SmoothCoulomb(0.05), Offset()]}}.',
            )
        if term in terms[:k]:
            raise FitError(
                f"{term!r} of joint {name!r} appears more than once.",
                "The coefficients of equal terms cannot be separated.",
                "Remove the duplicates.",
            )
        if not estimator.supports(term):
            raise estimator.unsupported(term, name)


def _not_a_joint(mech: Mechanism, name: str) -> FitError:
    """The error of an unknown joint. Some callers name a body, or a parameter of it."""
    body = name if name in mech.body_names else name.rpartition(".")[0]
    if body not in mech.body_names:
        return FitError(*unknown_name("joint", name, mech.joint_names))
    return FitError(
        f"joint_terms names the body {body!r} instead of a joint.",
        "A fit always estimates the inertias of all bodies together.",
        "To estimate one body alone, such as a payload, use "
        f'ts.identification.payload(ts.identification.identify(mech, log, method="wls"), "{body}").',
    )
