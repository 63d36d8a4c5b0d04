"""Roads that leave the robot as it is keep every value and every motion; every field has an entry."""

import copy
import pickle
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.io import test_roads_of_couplings, test_roads_through_files
from tests.mechanism import test_roads, test_roads_of_locked_joints
from tests.mechanism.road_models import FEATURES, Feature, actuator, tendon, texts
from tests.mechanism.road_parts import PARTS
from tests.mechanism.test_roads import loaded, pickled, through_file
from torchsko.mechanism.fields import FIELDS
from torchsko.mechanism.file_data.file_metadata import Coupled, Keyframe
from torchsko.mechanism.geometry import Shape
from torchsko.shapes.candidate_points import ConvexHull
from torchsko.shapes.height_field import HeightField
from torchsko.shapes.mesh import Triangles

pytest.importorskip("mujoco")


def through_layer(mech: ts.Mechanism) -> ts.Mechanism:
    """A layer whose state is loaded into a second layer, which is copied."""
    first, second = (ts.Dynamics(mech, {"gravity": ts.learn.Free()}) for _ in range(2))
    second.load_state_dict(first.state_dict())
    return copied(second).mechanism()


def copied(x: Any) -> Any:
    return pickle.loads(pickle.dumps(copy.deepcopy(x)))


ROADS: dict[str, Callable[[ts.Mechanism], ts.Mechanism]] = {
    "replace": lambda mech: mech.replace(mass=1.0 * mech.mass, upper=mech.upper.clone()),
    "to": lambda mech: mech.to("cpu").to(torch.float64),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda mech: pickle.loads(pickle.dumps(mech)),
    "constrain": lambda mech: copied(ts.constrain(mech, [ts.HeldFrame("flange")])).mech(),
    "layer": through_layer,
    "fuse": lambda mech: copied(ts.fuse(mech)).mechanism(),
    "save": through_file,
    "save twice": lambda mech: through_file(through_file(mech)),
    "save of the pickled": lambda mech: through_file(pickled(mech)),
}
"""Roads whose result is the robot itself."""

EXACT = tuple(name for name in ROADS if "save" not in name)
"""Roads that keep every value; roads through files keep the motion."""

HOW = (".replaced", ".aligned")
"""How a mechanism is evaluated, which is no part of the robot."""


def leaves(x: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value inside an object, by its path."""
    if is_dataclass(x) and not isinstance(x, type):
        for field in fields(x):
            yield from leaves(getattr(x, field.name), f"{path}.{field.name}")
    elif isinstance(x, dict):
        for name, value in x.items():
            yield from leaves(value, f"{path}[{name!r}]")
    elif isinstance(x, list | tuple):
        yield f"{path}.size", len(x)
        for k, value in enumerate(x):
            yield from leaves(value, f"{path}[{k}]")
    else:
        yield path, x


def equal(x: Any, y: Any) -> bool:
    if isinstance(x, torch.Tensor):
        return isinstance(y, torch.Tensor) and x.dtype == y.dtype and torch.equal(x, y)
    if isinstance(x, np.ndarray):
        return x.dtype == y.dtype and np.array_equal(x, y)
    return type(x) is type(y) and (x == y or repr(x) == repr(y))


def robot(name: str) -> ts.Mechanism:
    return loaded(texts(FEATURES[name]).robot)


@pytest.mark.parametrize("road", EXACT)
def test_a_road_keeps_every_value(road):
    for name in FEATURES:
        mech = robot(name)
        before, after = dict(leaves(mech)), dict(leaves(ROADS[road](mech)))
        changed = {p for p in before | after if p not in before or p not in after}
        changed |= {p for p in before.keys() & after.keys() if not equal(before[p], after[p])}
        assert {p for p in changed if not p.startswith(HOW)} == set(), name


@pytest.mark.some(8)
@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("name", FEATURES)
def test_the_motion_after_a_road_is_that_before(name, road):
    mech, feature = robot(name), FEATURES[name]
    found = []
    for m in (mech, ROADS[road](mech)):
        g = torch.Generator().manual_seed(0)
        noise = torch.randn(2, m.num_dof, generator=g, dtype=m.dtype)
        state = ts.State(ts.integrate(m, m.initial(), 0.02 * noise[0]), noise[1])
        ctrl = torch.tensor(feature.ctrl, dtype=m.dtype) if feature.ctrl else None
        contact = ts.ContactModel.of(m)
        for _ in range(3):
            state = ts.step(m, state, ctrl, contact=contact)
        readings = ts.sensors(m, state, ctrl, contact=contact)
        found.append(torch.cat([state.q, state.qd, *readings.values()]))
    assert (found[0] - found[1]).abs().max() < 1e-10


@pytest.mark.nightly
def test_a_kernel_of_a_step_of_an_edited_robot_equals_the_eager_step():
    drive = actuator("position", 'kp="9" gear="2" timeconst=".1"')
    sections = tendon('stiffness="30" damping="1"', drive)
    found = texts(Feature("", {"flag": 'contact="disable"'}, sections))
    mech = loaded(found.robot).lock({"wrist": 0.4}).append(loaded(found.tool), "flange")
    contact = ts.ContactModel.of(mech)

    def one_step(mech, q, qd, act, ctrl):
        return tuple(ts.step(mech, ts.State(q, qd, act), ctrl, contact=contact)[:3])

    g = torch.Generator().manual_seed(0)
    qd = torch.randn(mech.num_dof, generator=g, dtype=mech.dtype)
    inputs = mech.initial(), qd, qd[:1], torch.tensor([0.2, 0.01], dtype=mech.dtype)
    fast = ts.fuse(one_step, mech, shapes={"act": (1,), "ctrl": (2,)})
    torch.testing.assert_close(fast(*inputs), one_step(mech, *inputs), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", [name for name, feature in FEATURES.items() if feature.moves])
@pytest.mark.some(6)
def test_a_feature_changes_the_motion(name):
    feature, ends = FEATURES[name], []
    for text in (texts(feature).robot, texts(test_roads.PLAIN).robot):
        m = loaded(text)
        g = torch.Generator().manual_seed(0)
        noise = torch.randn(2, m.num_dof, generator=g, dtype=m.dtype)
        state = ts.State(ts.integrate(m, m.neutral(), 0.02 * noise[0]), noise[1])
        ctrl = torch.tensor(feature.ctrl, dtype=m.dtype)
        act = bool(m.file_metadata.actuators.actuators)
        for _ in range(8):
            state = ts.step(m, state, ctrl if act else None)
        ends.append(torch.cat([state.q, state.qd]))
    assert (ends[0] - ends[1]).abs().max() > 1e-7


def test_tensors_of_file_data_follow_the_device_and_the_dtype():
    mech = test_roads_of_locked_joints.keyed()
    for target in (torch.float32, "meta"):
        moved = dict(leaves(mech.to(target)))
        for path, x in leaves(mech):
            y = moved[path]
            if not isinstance(x, torch.Tensor):
                assert equal(x, y), path
            elif target == "meta":
                assert y.device.type == "meta", path
            elif x.is_floating_point():
                assert y.dtype == target and torch.equal(y, x.to(target)), path


RULES: dict[str, str] = {
    **{f"Keyframe.{x.name}": "test_keyframes_lose_the_locked_joint" for x in fields(Keyframe)},
    "FileMetadata.keyframes": "test_keyframes_lose_the_locked_joint",
    "FileMetadata.solver": "test_options_of_the_base_apply_and_differences_are_named",
    "SolverOptions.end_of_step": "test_options_of_the_base_apply_and_differences_are_named",
    "SolverOptions.dof_invweight": "test_weights_are_computed_anew",
    "Surface.invweight": "test_weights_are_computed_anew",
    "Closure.invweight": "test_weights_are_computed_anew",
    "Tendon.invweight": "test_weights_are_computed_anew",
    "FileMetadata.centers": "test_weights_are_computed_anew",
    "FileActuators.unused": "test_names_and_notes_are_kept",
    "FileMetadata.unused_tendons": "test_names_and_notes_are_kept",
    "FileMetadata.links": "test_a_new_mjcf_file_keeps_every_part_of_a_robot",
    "FileMetadata.mocap_bodies": "test_an_appended_mocap_body_is_fixed_and_named",
    "SolverOptions.limit_range": "test_a_coupling_is_the_soft_equality_of_its_file",
    **dict.fromkeys(
        ("FileMetadata.coupled", *(f"Coupled.{x.name}" for x in fields(Coupled))),
        "test_locked_and_appended_couplings_are_those_of_the_robot_written_by_hand",
    ),
    **dict.fromkeys(
        ("Closure.name", "Closure.method", "Closure.independent", "Actuator.name", "Tendon.name",
         "Actuator.stall", "Actuator.no_load_speed", "Actuator.efficiency", "Geometry.shapes",
         *(f"{form.__name__}.{x.name}" for form in (Shape, HeightField, Triangles, ConvexHull)
           for x in fields(form))),
        "test_names_and_notes_are_kept",
    ),
    **dict.fromkeys(
        ("mass", "com", "inertia", "joint_rotation", "joint_position", "axis", "joint_parameters",
         "coupling_ratio", "coupling_offset", "friction_speed", "force_offset", "velocity_limit",
         "frame_rotation", "frame_position", "modal_stiffness", "modal_damping"),
        "test_fields",
    ),
}  # fmt: skip
"""Tests of the fields that no feature has: their rules, or their values."""


def test_every_field_has_an_entry():
    listed = {name for feature in FEATURES.values() for name in feature.fields.split()}
    known = {f"{part.__name__}.{x.name}" for part in PARTS for x in fields(part)} | set(FIELDS)
    assert known - listed - set(RULES) == set(), "add the field to a feature, or a test of its rule"
    assert (listed | set(RULES)) - known == set()
    modules = (
        test_roads,
        test_roads_of_locked_joints,
        test_roads_through_files,
        test_roads_of_couplings,
    )
    for test in set(RULES.values()) - {"test_fields"}:  # tests/mechanism/test_fields.py
        assert any(hasattr(module, test) for module in modules), test
