"""Models to compare a fit with: the nominal robot and least squares, both with basic friction."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchsko.identification.friction import Term
from torchsko.identification.regression.normal_equations import RegressionProblem
from torchsko.identification.regression.solution import Solution


@dataclass(frozen=True, eq=False)
class ReferenceModel:
    """Inertial parameters and joint terms of a model that a fit is compared with.

    Attributes:
        phi: inertial parameters, `[num_bodies * 10]`.
        terms: joint terms of each dof.
        numbers: coefficients of each dof's terms.
    """

    phi: Tensor
    terms: tuple[tuple[Term, ...], ...]
    numbers: tuple[Tensor, ...]

    @classmethod
    def of(cls, problem: RegressionProblem, solution: Solution) -> ReferenceModel:
        """Collect the parameters of a solution."""
        terms = tuple(tuple(problem.terms[k] for k in chosen) for chosen in solution.choice)
        return cls(solution.phi, terms, solution.coefficients)

    def solution(self, problem: RegressionProblem) -> Solution:
        """Express the model in the base parameters and terms of a problem, which has all its terms."""
        choice = tuple(tuple(problem.terms.index(x) for x in some) for some in self.terms)
        return Solution(self.phi, problem.base.of(self.phi), self.numbers, choice)
