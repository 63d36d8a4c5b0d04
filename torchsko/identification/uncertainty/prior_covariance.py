"""Standard errors of estimates with a prior: noise of the data, and the pull towards a wrong nominal robot.

=========  ==================================================================================================
symbol     meaning
=========  ==================================================================================================
K          map from inertial parameters phi to base parameters beta
A, Sigma   normal equations of beta, terms eliminated, and the covariance of least squares, without the prior
w, P       weight and Hessian of the prior at the estimate
H          Hessian of the objective, 2 K* A K + w P
tau^2      mean square deviation of the true robot from the nominal one, in units of P^-1
=========  ==================================================================================================

A deviation delta of the true robot from the nominal one and a noise n of the score give the error
H^-1 (2 K* n - w P delta). The noise alone (H^-1 G H^-1) omits the second part: errors of a Panda with masses
off by 30 % were four times as large. The data alone (Sigma) are right there, but 17 times too large if the
nominal robot is exact. With delta ~ (0, tau^2 P^-1) both are calibrated, and the method of moments estimates
tau^2 from the estimated deviation, as in empirical Bayes methods. A deviation in few directions, such as
masses that are all 10 % larger or a missing rotor, makes it too large for the others; their standard errors
are then on the safe side. Those of joint terms, which have no prior, are at most those of the data alone.

References: A. Hoerl, R. Kennard, *Ridge regression: biased estimation for nonorthogonal problems*,
Technometrics 12(1), 1970 (variance and bias of penalized least squares); B. Efron, C. Morris, *Stein's
estimation rule and its competitors: an empirical Bayes approach*, JASA 68(341), 1973 (variance of the prior).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsko.identification.regression.least_squares import ParameterUncertainty, SandwichBread
from torchsko.identification.regression.normal_equations import NormalEquations
from torchsko.identification.regression.physical_least_squares import EntropicPrior
from torchsko.identification.regression.solution import ModelStructure, Solution
from torchsko.identification.uncertainty.residuals import Residuals


@dataclass(frozen=True, eq=False)
class MassUncertainty:
    """Uncertainty of the masses of bodies.

    Attributes:
        deviation: standard errors, `[bodies]` [kg].
        determined: share of each mass that the log determines, from 0 (the prior alone) to 1, `[bodies]`.
    """

    deviation: Tensor
    determined: Tensor


@dataclass(frozen=True, eq=False)
class InertialPosterior:
    """Errors of inertial parameters, in coordinates in which P is the identity and 2 K* A K is diagonal.

    Attributes:
        root: Cholesky factor of P.
        basis: eigenvectors of 2 K* A K in the coordinates of the root.
        share: share of each coordinate that the log determines, `[inertial]`.
        noise: covariance of the coordinates by noise of the data, `[inertial, inertial]`.
        moved: deviation of the estimates from the nominal robot, `[inertial]`.
    """

    root: Tensor
    basis: Tensor
    share: Tensor
    noise: Tensor
    moved: Tensor

    @classmethod
    def of(
        cls, plain: ParameterUncertainty, sandwich: SandwichBread, model: ModelStructure,
        prior: EntropicPrior, solution: Solution,
    ) -> InertialPosterior:  # fmt: skip
        """Compute the errors of estimates with a prior from the covariance of least squares."""
        w, A = model.prior_weight, (model.scale[:, None, None] * sandwich.A).sum(0)
        root = torch.linalg.cholesky(prior.derivatives(solution.phi)[1])
        K = torch.linalg.solve_triangular(root, prior.base_map.mT, upper=False).mT
        strength, basis = torch.linalg.eigh(2 * K.mT @ A @ K)
        strength, K = strength.clamp_min(0), K @ basis
        gain = 2 * (A @ K).mT / (strength + w)[:, None]  # errors of least squares to errors of phi
        noise = gain @ plain.covariance @ gain.mT
        moved = basis.mT @ root.mT @ (solution.phi - prior.nominal.flatten())
        return cls(root, basis, strength / (strength + w), noise, moved)

    def covariance(self, rows: Tensor) -> Tensor:
        """Covariance of combinations of the coordinates, with tau^2 from their deviations.

        Args:
            rows: combinations of unit length, `[combinations, inertial]`.
        """
        known = (rows * self.share).square().sum().clamp_min(1e-300)
        excess = (rows @ self.moved).square().sum() - (rows @ self.noise * rows).sum()
        pull = (excess / known).clamp_min(0) * (1 - self.share).square()
        return rows @ (self.noise + pull.diag_embed()) @ rows.mT

    def coordinates(self, rows: Tensor) -> Tensor:
        """Rows `[combinations, inertial]` of combinations of inertial parameters, in these coordinates."""
        return torch.linalg.solve_triangular(self.root, rows.mT, upper=False).mT @ self.basis


def mass_uncertainty(
    plain: ParameterUncertainty, equations: NormalEquations, model: ModelStructure, prior: EntropicPrior,
    solution: Solution,
) -> MassUncertainty:  # fmt: skip
    """Standard errors of masses, and the share of each that the log determines; see `covariance_with_prior`.

    The standard errors use the mean square deviation tau^2 of masses. The share is the diagonal of the
    resolution matrix in units of the prior (W. Menke, *Geophysical data analysis: discrete inverse theory*,
    2012, 4.3).
    """
    sandwich = SandwichBread.of(equations, model, solution.choice)
    posterior = InertialPosterior.of(plain, sandwich, model, prior, solution)
    x = posterior.coordinates(torch.eye(len(solution.phi)).to(solution.phi)[::10])
    size = x.norm(dim=-1)  # prior standard deviations, in units of tau
    x = x / size[:, None]
    deviation = size * posterior.covariance(x).diagonal().clamp_min(0).sqrt()
    return MassUncertainty(deviation, x.square() @ posterior.share)


def covariance_with_prior(
    plain: ParameterUncertainty, equations: NormalEquations, model: ModelStructure, prior: EntropicPrior,
    solution: Solution, residuals: Residuals,
) -> ParameterUncertainty:  # fmt: skip
    """Covariance of estimates with a prior, from that of least squares without it.

    Args:
        plain: covariance without the prior.
        equations: normal equations of the whole log as one fold.
        model: weights of the fit.
        prior: divergence from the nominal robot.
        solution: the estimates.
        residuals: their residuals.
    """
    sandwich = SandwichBread.of(equations, model, solution.choice)
    posterior = InertialPosterior.of(plain, sandwich, model, prior, solution)
    K = posterior.coordinates(prior.base_map)
    covariance = K @ posterior.covariance(torch.eye(K.shape[-1]).to(K)) @ K.mT
    deviations = []
    for j, std in enumerate(plain.term_std):
        map_, own = sandwich.base_gain[j], sandwich.term_inverse[j].diagonal()
        own = residuals.variance[j] * residuals.autocorrelation_samples[j] * own
        before, after = (
            own + (map_ @ x @ map_.mT).diagonal() for x in (plain.covariance, covariance)
        )
        deviations.append(std * (after / before.clamp_min(1e-300)).clamp_max(1).sqrt())
    return replace(plain, covariance=covariance, term_std=tuple(deviations))
