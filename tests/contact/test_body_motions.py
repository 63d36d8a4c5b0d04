"""Stiffness and forces of contacts with the ground, summed over bodies."""

import pytest
import torch

import torchsko as ts
from tests.contact.models import BOXES, PILE
from torchsko.bridge.kinematics import Kinematics
from torchsko.contact.row_placements import Grounded
from torchsko.contact.soft_rows import soft_rows


@pytest.mark.parametrize("text", [BOXES, PILE])
@pytest.mark.parametrize("cone", ["elliptic", "pyramidal"])
def test_sums_over_bodies_are_those_over_contact_rows(text, cone):
    """J x, J* f and J* H J, with J the motion of unit rates."""
    mech = ts.load(text.format(cone=cone))
    generator = torch.Generator().manual_seed(0)
    q = mech.initial() - 0.02 * torch.eye(mech.num_q, dtype=mech.dtype)[2]
    qd, x = torch.randn(2, mech.num_dof, dtype=mech.dtype, generator=generator)
    rows = soft_rows(Kinematics.of(mech, q, 0.1 * qd), ts.ContactModel.of(mech))
    assert any(isinstance(x, Grounded) for x in rows.placements)
    J = torch.stack([rows.motion(unit) for unit in torch.eye(mech.num_dof, dtype=mech.dtype)], -1)
    torch.testing.assert_close(rows.motion(x), J @ x, rtol=1e-12, atol=1e-12)
    gradient, diagonal, hessians = rows.derivatives(J @ x - rows.reference)
    force = rows.generalized_forces(gradient)
    torch.testing.assert_close(force, J.mT @ gradient, rtol=1e-12, atol=1e-9)
    parts = [torch.diag(diagonal), *(H for of_cone in hessians for H in of_cone)]
    curvature = rows.curvature(diagonal, hessians)
    expected = J.mT @ torch.block_diag(*parts) @ J
    torch.testing.assert_close(curvature, expected, rtol=1e-12, atol=1e-9)
    assert expected.abs().max() > 1
