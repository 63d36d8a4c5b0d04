"""Models of a fit besides the memoryless one: references to compare with, and the model with memory."""

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


@dataclass(frozen=True, eq=False)
class MemoryModel(ReferenceModel):
    """A model with friction that depends on the past motion, fitted for forces along a motion.

    Attributes:
        deviations: standard errors of the coefficients of each dof's terms.
    """

    deviations: tuple[Tensor, ...]

    @classmethod
    def estimated(
        cls, problem: RegressionProblem, solution: Solution, deviations: tuple[Tensor, ...]
    ) -> MemoryModel:
        """Collect the parameters of a solution and their standard errors."""
        model = ReferenceModel.of(problem, solution)
        return cls(model.phi, model.terms, model.numbers, deviations)
