"""Contact parameters follow the joints of a mechanism."""

from dataclasses import replace

import pytest
import torch

import torchsko as ts
from tests.contact.models import quadruped

mujoco = pytest.importorskip("mujoco")


def test_locked_joints_leave_the_parameters_of_the_others():
    text = quadruped().replace('name="knee1"', 'name="knee1" solreflimit="0.05 1"')
    mech = ts.load(text)
    locked = mech.lock({"hip0+thigh0": [0.0, 0.0], "knee2": 0.0})
    contact, remaining = ts.ContactModel.of(mech), ts.ContactModel.of(locked)
    assert len(remaining.limit_q) == len(contact.limit_q) - 3
    (row,) = (remaining.limit_solref[:, 0] == 0.05).nonzero()[:, 0].tolist()
    at = locked.q_slice("knee1").start
    assert remaining.limit_q[row] == at


def test_computed_inverse_weights_are_those_of_mujoco():
    mech = ts.from_mujoco(mujoco.MjModel.from_xml_string(quadruped()))
    contact = ts.ContactModel.of(mech)
    shapes = [
        replace(shape, surface=replace(shape.surface, invweight=()))
        for shape in mech.geometry.shapes
    ]
    solver = replace(mech.file_metadata.solver, dof_invweight=())
    bare = mech.replace(
        geometry=replace(mech.geometry, shapes=tuple(shapes)),
        file_metadata=replace(mech.file_metadata, solver=solver),
    )
    computed = ts.ContactModel.of(bare)
    for name in ("shape_invweight", "limit_invweight", "loss_invweight"):
        torch.testing.assert_close(
            getattr(computed, name), getattr(contact, name), rtol=1e-9, atol=1e-12
        )
