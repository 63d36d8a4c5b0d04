"""Geared rotors, exactly: against bodies written out, and against the closed formulas of a spinning mass."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.testing import assert_close

import torchsko as ts
from tests.newton import along
from tests.states import normal_state
from tests.strategies import agree
from torchsko.errors import MechanismError
from torchsko.spatial.rotation import cross

SHAFT, N, J = torch.tensor([0.6, 0.0, 0.8], dtype=torch.float64), 50.0, 2e-3


def vectors(seed: int, *size: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def turn(seed: int) -> Tensor:
    R = torch.linalg.qr(vectors(seed, 3, 3)).Q
    return R * torch.linalg.det(R)


def heavy(seed: int) -> list[list[float]]:
    R = turn(seed)
    return (R @ torch.diag(torch.tensor([0.3, 0.35, 0.4], dtype=torch.float64)) @ R.mT).tolist()


def arm(seed: int, floating: bool, kind: str = "revolute") -> ts.MechanismBuilder:
    """Three links on a base that moves or not; the joint between the second and the third is geared."""
    builder = ts.MechanismBuilder()
    for k in range(3):
        mass, com = 1.0 + k, (0.2 * vectors(seed + k, 3)).tolist()
        builder.link(f"link{k}", mass=mass, com=com, inertia=heavy(seed + k))
    base = "free" if floating else "revolute"
    builder.joint("joint0", base, child="link0", axis=(0, 1, 0))
    builder.joint("joint1", "revolute", child="link1", parent="link0", axis=(1, 0, 0),
                  rotation=turn(seed + 3).tolist(), position=(0.1, 0.2, 0.3))  # fmt: skip
    return builder.joint(
        "joint2", kind, child="link2", parent="link1", axis=SHAFT.tolist(),
        rotation=turn(seed + 4).tolist(), position=(0.3, 0.1, -0.2),
    )  # fmt: skip


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", ["revolute", "prismatic"])
@pytest.mark.parametrize("floating", [False, True])
@given(seed=st.integers(0, 10**6))
def test_the_closed_formulas_of_a_symmetric_rotor(kind, floating, seed):
    """MM + N^2 J e e* + N J (e s*Jw + (s*Jw)* e*);  C + N J e (s . alpha0) + Jw* (w x s) N J qd."""
    plain, geared = arm(seed, floating, kind).build(), arm(seed, floating, kind)
    geared = geared.rotor("joint2", N, J).build()
    assert geared.joint_names == plain.joint_names
    q, qd, qdd = normal_state(plain, 4, seed=seed)
    last = plain.num_dof - 1
    e = torch.zeros(plain.num_dof, dtype=q.dtype)
    e[last] = 1.0
    s = plain.joint_rotation[2] @ SHAFT  # in the axes of link1, on which the rotor sits

    def angular(q: Tensor) -> Tensor:
        return ts.frame_jacobian(plain, q, "link1")[..., :3, :]

    Jw = angular(q)
    sJ = (s @ Jw)[..., None, :]
    e_sJ = e[:, None] @ sJ
    MM = ts.mass_matrix(plain, q) + N**2 * J * torch.outer(e, e) + N * J * (e_sJ + e_sJ.mT)
    agree(ts.mass_matrix(geared, q), MM, 1e-13)
    w = (Jw @ qd[..., None])[..., 0]
    alpha0 = torch.stack([along(plain, x, v, angular) @ v for x, v in zip(q, qd, strict=True)])
    gyroscopic = (Jw.mT @ cross(w, s.expand_as(w))[..., None])[..., 0] * N * J * qd[..., last:]
    C = ts.bias_force(plain, q, qd) + N * J * e * (alpha0 @ s)[:, None] + gyroscopic
    agree(ts.bias_force(geared, q, qd), C, 1e-12)
    tau = (MM @ qdd[..., None])[..., 0] + C
    agree(ts.forward_dynamics(geared, q, qd, tau), qdd, 1e-9)


@given(st.booleans(), st.integers(0, 10**6))
def test_a_rotor_is_the_body_written_out(floating, seed):
    """A disc with a mass of its own, coupled, on a link without it; and the link with it, and `rotor`."""
    written, lumped = arm(seed, floating), arm(seed, floating)
    plain = lumped.build()
    R, r = plain.joint_rotation[2], plain.joint_position[2]
    other = torch.linalg.cross(SHAFT, torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))
    flat = J * torch.outer(SHAFT, SHAFT) + 0.6 * J * (
        torch.outer(other, other) + torch.diag(torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))
    )
    mass, along_axis = 0.4, 0.15 * SHAFT
    written.link("disc", mass=mass, com=along_axis.tolist(), inertia=flat.tolist())
    written.joint("disc_axle", "revolute", child="disc", parent="link1", axis=SHAFT.tolist(),
                  rotation=R.tolist(), position=r.tolist())  # fmt: skip
    written.couple("disc_axle", {"joint2": N})
    lumped.link("disc", mass=mass, com=along_axis.tolist(), inertia=flat.tolist())
    lumped.joint(
        "weld", "fixed", child="disc", parent="link1", rotation=R.tolist(), position=r.tolist()
    )
    lumped.rotor("joint2", N, J)
    one, two = written.build(), lumped.build()
    q, qd, qdd = normal_state(one, 4, seed=seed)
    agree(ts.mass_matrix(two, q), ts.mass_matrix(one, q), 1e-13)
    agree(ts.inverse_dynamics(two, q, qd, qdd), ts.inverse_dynamics(one, q, qd, qdd), 1e-12)


def test_a_rotor_on_the_ground_is_an_armature():
    builder = ts.MechanismBuilder().link("rod", mass=1.0, com=(0, 0, -0.5))
    geared = builder.joint("hinge", "revolute", child="rod", axis=(0, 1, 0)).rotor("hinge", N, J)
    mech = geared.build()
    assert mech.body_names == ("rod", "hinge_rotor")
    q, qd, qdd = normal_state(mech, 4)
    plain = ts.MechanismBuilder().link("rod", mass=1.0, com=(0, 0, -0.5))
    armature = plain.joint("hinge", "revolute", child="rod", axis=(0, 1, 0), armature=N**2 * J)
    assert_close(
        ts.inverse_dynamics(mech, q, qd, qdd), ts.inverse_dynamics(armature.build(), q, qd, qdd)
    )


def test_armature_alone_is_wrong_where_the_carrier_turns():
    """The two are told apart: half a percent and more of the acceleration, as in the notes' example."""
    geared = arm(0, False).rotor("joint2", N, J).build()
    plain = arm(0, False).build()
    plain = plain.replace(armature=torch.tensor([0.0, 0.0, N**2 * J], dtype=torch.float64))
    q, qd, tau = normal_state(plain, 4)
    exact, rough = (ts.forward_dynamics(m, q, qd, tau) for m in (geared, plain))
    assert ((exact - rough).abs().amax() / exact.abs().amax()) > 0.005


@pytest.mark.parametrize(
    ("rotor", "said"),
    [
        (("joint9", N, J), "no joint that a rotor drives is named 'joint9'"),
        (("joint2", N, 0.0), "has ratio 50.0 and inertia 0.0"),
        (("joint2", float("nan"), J), "has ratio nan"),
        (("joint0", N, J), "'joint0', which is free"),
    ],
)
def test_invalid_rotors_are_refused_by_name(rotor, said):
    with pytest.raises(MechanismError, match=said):
        arm(0, True).rotor(*rotor).build()


def test_a_joint_has_one_rotor():
    with pytest.raises(MechanismError, match="would be named 'joint2_rotor'"):
        arm(0, False).rotor("joint2", N, J).rotor("joint2", N, J).build()
