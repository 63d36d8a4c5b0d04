"""Numbers near the end of the range: refused by name, or a robot whose dynamics are finite."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torchsko as ts
from tests.strategies import random_mechanism
from torchsko.mechanism.magnitudes import LARGEST, within_range


def urdf(mass="1", origin="0 0 0.1", com="0 0 0.1", moment="0.1", more="") -> str:
    return (
        '<robot name="r"><link name="base"/><link name="arm"><inertial>'
        f'<origin xyz="{com}"/><mass value="{mass}"/><inertia ixx="{moment}" ixy="0" ixz="0" '
        f'iyy="{moment}" iyz="0" izz="{moment}"/></inertial></link><joint name="hinge" '
        f'type="revolute"><origin xyz="{origin}"/><parent link="base"/><child link="arm"/>{more}'
        "</joint></robot>"
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (urdf(mass="1e308"), r"link 'arm': the mass \[kg\] is 1e\+308"),
        (urdf(origin="0 1e300 0"), r"joint 'hinge': the position .* is 1e\+300"),
        (urdf(com="0 0 -1e200"), r"link 'arm': the center of mass .* is -1e\+200"),
        (urdf(moment="1e308"), r"link 'arm': the inertia .* is 1e\+308"),
        (urdf(more='<dynamics damping="1e307"/>'), r"joint 'hinge': the damping is 1e\+307"),
        (urdf(more='<dynamics friction="1e307"/>'), r"joint 'hinge': the friction is 1e\+307"),
    ],
)
def test_a_number_whose_products_overflow_is_refused_by_name(text, named):
    with pytest.raises(ts.TorchskoError, match=named) as error:
        ts.load(text)
    assert len(str(error.value).splitlines()) == 3


@pytest.mark.parametrize("text", [urdf(mass="1e39"), urdf(mass="1e20"), urdf(origin="0 0 1e20")])
def test_what_float32_cannot_hold_is_refused_there_and_loads_as_the_error_says(text):
    with pytest.raises(
        ts.MechanismError, match=r"torch\.float32(.|\n)*or pass dtype=torch.float64"
    ):
        ts.load(text, dtype=torch.float32)
    assert ts.load(text, dtype=torch.float64).mass.isfinite().all()


def test_gravity_is_bounded_too():
    with pytest.raises(ts.MechanismError, match=r"gravity .* is -1e\+200"):
        ts.load(urdf(), gravity=(0, 0, -1e200))


@pytest.mark.parametrize("number", ["1.7976931348623157e308", "1e200"])
def test_limits_beyond_all_range_are_none_and_reported(number):
    limit = f'<limit lower="-{number}" upper="{number}" velocity="{number}" effort="{number}"/>'
    mech = ts.load(urdf(more=limit))
    assert (mech.lower.item(), mech.upper.item()) == (-math.inf, math.inf)
    assert mech.velocity_limit.item() == mech.effort_limit.item() == math.inf
    (entry,) = (str(e) for e in mech.unused if "limit" in str(e))
    assert "'hinge'" in entry and "'lower', 'upper', 'velocity', 'effort'" in entry
    assert all(x.isfinite().all() for x in mech.random_state(10))


scales = st.floats(-1, 1)


@given(st.lists(st.tuples(scales, scales), min_size=4, max_size=4), st.sampled_from(list(LARGEST)))
def test_robots_within_range_have_finite_dynamics(exponents, dtype):
    """Masses and lengths anywhere in the range, side by side; only joints named singular are not."""
    largest = math.log10(LARGEST[dtype])
    builder = ts.MechanismBuilder()
    for k, (mass, length) in enumerate(exponents):
        size = 10.0 ** (largest * length)
        m = min(10.0 ** (largest * mass), LARGEST[dtype])
        moment = min(m * size**2, LARGEST[dtype] ** 3)
        inertia = [[moment * (i == j) for j in range(3)] for i in range(3)]
        builder.link(f"l{k}", mass=m, com=(size, 0, 0), inertia=inertia)
        builder.joint(
            f"j{k}", "revolute", child=f"l{k}", parent=f"l{k - 1}" if k else None,
            axis=(0, 1, 0), position=(0, size, 0),
        )  # fmt: skip
    mech = builder.build(dtype=dtype)
    q, qd = mech.random_state(2, generator=torch.Generator().manual_seed(0))
    assert ts.bias_force(mech, q, qd).isfinite().all()
    assert ts.mass_matrix(mech, q).isfinite().all()
    assert ts.forward_kinematics(mech, q).position.isfinite().all()
    if not mech.singular_joints:
        assert ts.forward_dynamics(mech, q, qd, torch.zeros_like(qd)).isfinite().all()


def test_a_hinge_inertia_without_a_reciprocal_is_named():
    builder = ts.MechanismBuilder().link("dust", mass=1e-310)
    mech = builder.joint("slide", "prismatic", child="dust").build()
    assert mech.singular_joints == ("slide",)


def test_a_description_within_range_is_not_touched():
    robot = ts.MechanismBuilder().link("a", mass=1.0).joint("j", "revolute", child="a", upper=3.0)
    description = robot.description()
    assert within_range(description, (0, 0, -9.81), torch.float64) is description
    far = replace(description.joints[0], upper=1e101)
    found = within_range(replace(description, joints=(far,)), (0, 0, -9.81), torch.float64)
    assert found.joints[0] == replace(far, upper=math.inf)


def test_infinite_limits_are_not_reported():
    mech = random_mechanism(["revolute"], [-1], seed=0)
    assert mech.unused == () and mech.upper.isinf().all()
