"""Regressors of energies, the centroidal rate and subtree masses against Pinocchio."""

import numpy as np
import pinocchio as pin
import pytest
import torch

import torchsko as ts
from tests.oracles.pinocchio_bridge import Robot, robot_files, worst_error

FILES = robot_files()
NAMES = (
    "panda_description/urdf/panda.urdf",
    "anymal_b_simple_description/robots/anymal.urdf",
    "talos_data/robots/talos_reduced.urdf",
)


@pytest.mark.parametrize("name", NAMES)
def test_centroidal_rates_and_energy_regressors_agree(name):
    both = Robot.load(FILES[name], floating_base=True)
    q, qd, qdd, _ = both.states(8)
    data = both.model.createData()
    rows = list(zip(both.q_to_pin(q), both.to_pin(qd), both.to_pin(qdd), strict=True))

    def rate(q, v, a) -> np.ndarray:
        force = pin.computeCentroidalMomentumTimeVariation(both.model, data, q, v, a)
        return np.concatenate([force.angular, force.linear])

    expected = torch.from_numpy(np.stack([rate(*row) for row in rows]))
    assert worst_error(ts.centroidal_momentum_rate(both.mech, q, qd, qdd), expected) < 1e-10
    for ours, theirs in (
        (ts.kinetic_energy_regressor(both.mech, q, qd), pin.computeKineticEnergyRegressor),
        (ts.potential_energy_regressor(both.mech, q), pin.computePotentialEnergyRegressor),
    ):
        kinetic = theirs is pin.computeKineticEnergyRegressor
        found = [
            theirs(both.model, data, *(row[:2] if kinetic else row[:1])).copy() for row in rows
        ]
        order = [both.model.getJointId(joint) - 1 for joint in both.mech.tree_joint_names]
        by_body = np.stack(found).reshape(len(rows), -1, 10)[:, order]
        assert worst_error(ours, torch.from_numpy(by_body)) < 1e-10
