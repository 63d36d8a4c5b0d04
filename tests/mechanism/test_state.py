"""What is no state of a mechanism is refused by name, before any arithmetic."""

import numpy as np
import pytest
import torch

import torchsko as ts
from torchsko.api.rows import ROWS


def good(*batch: int) -> dict:
    arm = ts.load(ts.robots.panda)
    q, qd = arm.random_state(*batch, generator=torch.Generator().manual_seed(0))
    return {"mech": arm, "q": q, "qd": qd, "qdd": 0 * qd, "f_ext": q.new_zeros(*batch, 7, 6)}


@pytest.mark.parametrize("name", ["q", "qd", "qdd", "f_ext"])
@pytest.mark.parametrize("kind", [np.asarray, torch.Tensor.tolist])
def test_arrays_and_lists_are_no_tensors(name, kind):
    call = good(4)
    call[name] = kind(call[name])
    with pytest.raises(ts.ShapeError, match=rf"{name} was given as(.|\n)*torch\.as_tensor\({name}"):
        ts.inverse_dynamics(**call)


@pytest.mark.parametrize("name", ["q", "qd", "qdd"])
def test_what_is_required_is_not_none(name):
    with pytest.raises(ts.ShapeError, match=f"{name} was given as NoneType"):
        ts.inverse_dynamics(**(good(4) | {name: None}))


MOVING = [name for name, row in ROWS.items() if "qd" in row.required]
# Masses do not matter to these.
OF_COORDINATES = (
    "integrate",
    "integrate_derivatives",
    "expand",
    "expand_velocity",
    "expand_acceleration",
)
PLACED = [name for name, row in ROWS.items() if "q" in row.required and name not in OF_COORDINATES]


def what_it_takes(verb, state):
    """Arguments that a verb requires."""
    others = {"qdd": state["qdd"], "tau": state["qdd"], "frames": "link5"}
    others |= {"q": state["q"], "accel": state["qdd"], "prescribed": ("joint1",), "frame": "link5"}
    others |= {"step": state["qdd"], "rhs": state["qdd"]}
    given = others | {"qd": state["qd"]}
    return {name: x for name, x in given.items() if name in ROWS[verb].required}


@pytest.mark.parametrize("verb", PLACED)
def test_robots_and_states_of_other_numbers_are_named(verb):
    state = good(4)
    arm = state["mech"]
    many = arm.replace(mass=arm.mass.expand(3, -1))
    with pytest.raises(
        ts.ShapeError, match=r"the mechanism has the batch dimensions \[3\], q has \[4\]"
    ):
        ROWS[verb].function(many, **what_it_takes(verb, state))


@pytest.mark.parametrize("verb", MOVING)
def test_no_function_of_a_velocity_takes_none_for_it(verb):
    state = good(4)
    others = what_it_takes(verb, state)
    with pytest.raises(ts.ShapeError, match="qd was given as NoneType"):
        ROWS[verb].function(state["mech"], **(others | {"qd": None}))


@pytest.mark.parametrize("name", ["q", "qd", "qdd", "f_ext"])
def test_another_device_is_named(name):
    call = good(4)
    with pytest.raises(ts.ShapeError, match=f"{name} is on meta, the mechanism on cpu"):
        ts.inverse_dynamics(**(call | {name: call[name].to("meta")}))


@pytest.mark.parametrize("name", ["qd", "qdd", "f_ext"])
def test_batches_that_do_not_broadcast_are_named(name):
    with pytest.raises(
        ts.ShapeError, match=rf"q has the batch dimensions \[2, 3\], {name} has \[3, 2\]"
    ):
        ts.inverse_dynamics(**(good(2, 3) | {name: good(3, 2)[name]}))


@pytest.mark.parametrize("name", ["q", "qd", "qdd", "f_ext"])
@pytest.mark.parametrize("batch", [(), (1,), (3,), (2, 1)])
def test_batches_that_broadcast_are_taken(name, batch):
    call = good(2, 3) | {name: good(*batch)[name]}
    assert ts.inverse_dynamics(**call).shape == (2, 3, 7)
