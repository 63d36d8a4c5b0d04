"""Files keep every part of a robot, or name it: one table of fields and roads.

Kept: the motion of MuJoCo and of torchsko equals that of the robot written by hand. Named: a warning names
the part, and strict=True refuses it.
"""

import pickle
import warnings
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
import torch

import torchsko as ts
from tests.io.coupling_models import COUPLINGS
from tests.io.road_fields import FIELDS, NAMED_IN_MJCF, NAMED_IN_URDF, robot
from tests.mechanism.road_models import FEATURES, texts
from tests.mechanism.road_parts import PARTS
from torchsko.mechanism.fields import FIELDS as TENSORS

mujoco = pytest.importorskip("mujoco")

STEPS = 20


def compiled(source):
    """MuJoCo's model of a text or file, whose solver iterates to rounding."""
    text = str(source).lstrip().startswith("<")
    load = mujoco.MjModel.from_xml_string if text else mujoco.MjModel.from_xml_path
    model = load(str(source))
    model.opt.tolerance, model.opt.iterations = 0.0, 100
    model.opt.ls_tolerance, model.opt.ls_iterations = 1e-12, 50
    return model


def states(model):
    """States of MuJoCo along a motion with changing controls, `[steps, nq + nv + na + nsensordata]`."""
    data, found = mujoco.MjData(model), []
    data.qvel[:] = np.random.default_rng(0).normal(size=model.nv)
    for k in range(STEPS):
        data.ctrl[:] = np.sin(0.3 * k + np.arange(model.nu))
        mujoco.mj_step(model, data)
        found.append(np.concatenate([data.qpos, data.qvel, data.act, data.sensordata]))
    return np.array(found)


def quiet(source, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ts.RobotFileWarning)
        return ts.load(source, **options)


def steps(mech, num=4):
    """States of torchsko along a motion, and readings of sensors."""
    qd = torch.from_numpy(np.random.default_rng(0).normal(size=mech.num_dof))
    state, found = ts.State(mech.initial(), qd), []
    contact = ts.ContactModel.of(mech)
    num_controls = len(mech.file_metadata.actuators.actuators)
    for k in range(num):
        ctrl = torch.sin(0.3 * k + torch.arange(num_controls, dtype=mech.dtype))
        state = ts.step(mech, state, ctrl if num_controls else None, contact=contact)
        found += [state.q, state.qd]
    if mech.file_metadata.sensors:
        found += ts.sensors(mech, state, ctrl if num_controls else None, contact=contact).values()
    return torch.cat(found)


TOLERANCE = {"mesh with a simplified hull": 1e-6}
"""Largest relative differences of motions where MuJoCo rounds vertices to float32 in other axes."""


def same(field, mech, written, path):
    """Compare the motions of MuJoCo and of torchsko with those of the robot written by hand."""
    tolerance = TOLERANCE.get(field, 1e-10)
    models = compiled(written), compiled(path)
    theirs, ours = map(states, models)
    assert theirs.shape == ours.shape
    assert np.abs(ours - theirs).max() <= tolerance * (1 + np.abs(theirs).max())
    assert np.allclose(*(x.hfield_size for x in models), rtol=1e-12, atol=0)
    again = quiet(path, mimic="independent")
    assert (again.joint_names, again.body_names) == (mech.joint_names, mech.body_names)
    assert set(mech.frame_names) <= set(again.frame_names)
    want = steps(mech)
    assert (steps(again) - want).abs().max() <= tolerance * (1 + want.abs().max())
    for one, two in zip(mech.keyframes.values(), again.keyframes.values(), strict=True):
        assert (one.name, one.time) == (two.name, two.time)
        for x, y in ((one.q, two.q), (one.qd, two.qd), (one.ctrl, two.ctrl)):
            assert torch.allclose(x, y, rtol=0, atol=1e-12)
        assert torch.equal(one.activation, two.activation)


def through_new_file(text, folder):
    mech = quiet(text, mimic="independent")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ts.RobotFileWarning)
        ts.save(mech, folder / "new.xml")
    return mech, text, folder / "new.xml"


def through_two_files(text, folder):
    _, _, path = through_new_file(text, folder)
    ts.save(quiet(path, mimic="independent"), folder / "twice.xml", strict=True)
    return quiet(text, mimic="independent"), text, folder / "twice.xml"


def through_pickle(text, folder):
    """A robot that was pickled and cast keeps what its file needs."""
    mech = pickle.loads(pickle.dumps(quiet(text, mimic="independent"))).double()
    ts.save(mech, folder / "new.xml", strict=True)
    return mech, text, folder / "new.xml"


ROADS = (through_new_file, through_two_files, through_pickle)


def heavier(field, mass):
    """The text of a robot whose trunk, or top, has another mass."""
    if field in FIELDS:
        return robot(mass, **FIELDS[field])
    text = texts(FEATURES[field.removeprefix("arm: ")]).robot
    changed = text.replace('mass=".4"', f'mass="{0.4 * mass}"')
    assert mass == 1 or changed != text
    return changed


ROBOTS = (*FIELDS, *(f"arm: {name}" for name in FEATURES))
"""The robots of both lists: with a floating trunk, and with the edits of tests/mechanism/test_roads.py."""


@pytest.mark.some(20)
@pytest.mark.parametrize("field", ROBOTS)
def test_a_new_mjcf_file_keeps_every_part_of_a_robot(field, tmp_path):
    for road in ROADS:
        folder = tmp_path / road.__name__
        folder.mkdir()
        same(field, *road(heavier(field, 1.0), folder))


@pytest.mark.some(20)
@pytest.mark.parametrize("field", ROBOTS)
def test_an_edited_file_keeps_every_part_of_a_robot(field, tmp_path):
    """A heavier link, written into a copy of the file, is that of a file written by hand."""
    text, heavy = (heavier(field, mass) for mass in (1.0, 1.7))
    mech, written = quiet(text, mimic="independent"), quiet(heavy, mimic="independent")
    edited = mech.replace(mass=written.mass, com=written.com, inertia=written.inertia)
    ts.save(edited, tmp_path / "like.xml", like=text, strict=True)
    same(field, written, heavy, tmp_path / "like.xml")


@pytest.mark.some(20)
@pytest.mark.parametrize("field", ROBOTS)
def test_a_changed_robot_in_a_new_file_is_the_robot_written_by_hand(field, tmp_path):
    """New files have softness, boxes of fluids and springs of the new masses, as MuJoCo computes them."""
    text, heavy = (heavier(field, mass) for mass in (1.0, 1.7))
    mech, written = quiet(text, mimic="independent"), quiet(heavy, mimic="independent")
    edited = mech.replace(mass=written.mass, com=written.com, inertia=written.inertia)
    ts.save(edited, tmp_path / "new.xml")
    same(field, written, heavy, tmp_path / "new.xml")


@pytest.mark.parametrize("name", NAMED_IN_MJCF)
def test_a_new_mjcf_file_names_what_it_lacks(name, tmp_path):
    parts, message = NAMED_IN_MJCF[name]
    mech = quiet(robot(**parts))
    with pytest.warns(ts.RobotFileWarning, match=message) as found:
        ts.save(mech, tmp_path / "new.xml")
    assert len(found) == 1
    with pytest.raises(ts.MechanismError, match=message):
        ts.save(mech, tmp_path / "strict.xml", strict=True)
    ts.save(mech, tmp_path / "like.xml", like=robot(**parts), strict=True)


@pytest.mark.parametrize("field", NAMED_IN_URDF)
def test_a_urdf_file_names_what_it_lacks_in_one_message(field, tmp_path):
    mech = quiet(robot(**FIELDS[field]), mimic="independent")
    with pytest.raises(ts.MechanismError, match=NAMED_IN_URDF[field]) as refused:
        ts.save(mech, tmp_path / "new.urdf", strict=True)
    assert not list(tmp_path.iterdir())
    if field == "stacks":  # another structure
        return
    with pytest.warns(ts.RobotFileWarning) as found:
        ts.save(mech, tmp_path / "new.urdf")
    assert [str(x.message) for x in found] == [str(refused.value)]
    assert found[0].filename == __file__


def test_every_field_is_used_by_a_robot_that_is_saved():
    """A field of a robot without a robot here, or a test of its own, has no entry in the table."""
    values: dict[str, set[str]] = {}
    for field in ROBOTS:
        note_values(quiet(heavier(field, 1.0), mimic="independent"), values)
    for parts in COUPLINGS.values():
        note_values(quiet(robot(**parts)), values)
    known = {f"{part.__name__}.{x.name}" for part in PARTS for x in fields(part)} | set(TENSORS)
    unused = {name for name in known if len(values.get(name, ())) < 2}
    assert unused == NOT_IN_MJCF


def note_values(x, values):
    """Add the values of all fields inside an object, by class and attribute."""
    if isinstance(x, ts.Mechanism):
        for name in TENSORS:
            values.setdefault(name, set()).add(repr(getattr(x, name).tolist()))
        note_values([x.file_metadata, x.geometry], values)
    elif is_dataclass(x):
        for field in fields(x):
            value = getattr(x, field.name)
            values.setdefault(f"{type(x).__name__}.{field.name}", set()).add(repr(value))
            note_values(value, values)
    elif isinstance(x, list | tuple | dict):
        for value in x.values() if isinstance(x, dict) else x:
            note_values(value, values)


NOT_IN_MJCF = {
    "Closure.independent", "Closure.method",  # how the mechanism is evaluated
    "Actuator.efficiency", "Actuator.no_load_speed", "Actuator.stall",  # of the builder; named in MJCF
    "FileActuators.unused", "FileMetadata.unused_tendons",  # notes
    "SolverOptions.end_of_step",  # named in MJCF
    "modal_damping", "modal_stiffness",  # of flexible bodies, which files refuse
}  # fmt: skip
"""Fields that a robot of an MJCF file does not have."""


def test_fields_without_a_message_are_those_that_urdf_has(tmp_path):
    """Links welded together keep their masses, and names any characters."""
    assert FIELDS.keys() - NAMED_IN_URDF.keys() == {"welded links", "odd names"}
    for field in FIELDS.keys() - NAMED_IN_URDF.keys():
        mech = quiet(robot(**FIELDS[field]))
        path = tmp_path / f"{field}.urdf"
        with pytest.warns(ts.RobotFileWarning):
            ts.save(mech, path)
        again = quiet(path)
        q, qd = mech.random_state(3, generator=torch.Generator().manual_seed(0))
        want = ts.inverse_dynamics(mech, q, qd, qd)
        assert torch.allclose(ts.inverse_dynamics(again, q, qd, qd), want, rtol=0, atol=1e-12)
        assert (again.name, again.joint_names) == (mech.name, mech.joint_names)
        links, old = (
            {x.name: (x.mass, x.com) for x in m.file_metadata.links} for m in (again, mech)
        )
        assert links.items() >= old.items()


def differential():
    """A wrist whose second joint is moved by a motor and by the first joint."""
    b = ts.MechanismBuilder("wrist")
    I = ((0.01, 0.001, 0), (0.001, 0.02, 0), (0, 0, 0.015))
    for name, mass in (("a", 2.0), ("b", 1.0), ("rotor", 0.01)):
        b.link(name, mass=mass, com=(0.05, 0.02, 0.1), inertia=I)
    b.joint("j5", "revolute", child="a", axis=(0, 1, 0), lower=-1.5, upper=1.5, damping=0.1)
    b.joint("j6", "revolute", child="b", parent="a", position=(0, 0, 0.2), axis=(1, 0, 0))
    b.joint("m6", "revolute", child="rotor", axis=(0, 0, 1), friction=0.2)
    return b.couple("j6", {"m6": 1.0, "j5": -0.5}, offset=0.3).build()


def test_a_joint_that_follows_several_is_an_equality_of_a_tendon(tmp_path):
    mech = differential()
    ts.save(mech, tmp_path / "wrist.xml", strict=True)
    again = quiet(tmp_path / "wrist.xml")
    assert again.dependent_joint_names == ("j6",) and again.joint_names == mech.joint_names
    q, qd = mech.random_state(4, generator=torch.Generator().manual_seed(0))
    for robot_ in (mech, again):
        assert torch.allclose(
            ts.expand(robot_, q)[:, 1], q[:, 1] - 0.5 * q[:, 0] + 0.3, rtol=0, atol=1e-14
        )
    want = ts.inverse_dynamics(mech, q, qd, qd)
    assert torch.allclose(ts.inverse_dynamics(again, q, qd, qd), want, rtol=0, atol=1e-13)
    with pytest.warns(ts.RobotFileWarning, match="couplings of several joints.* j6"):
        ts.save(mech, tmp_path / "wrist.urdf")
    assert quiet(tmp_path / "wrist.urdf").joint_names == ("j5", "j6", "m6")


def test_a_robot_of_the_builder_keeps_what_was_replaced_in_it(tmp_path):
    """Massless links get the least inertia that MuJoCo accepts; parts without a counterpart are named."""
    b = ts.MechanismBuilder("cart")
    b.link("x").link("cart", mass=1.0, inertia=((0.1, 0, 0), (0, 0.1, 0), (0, 0, 0.1)))
    b.link("tool", mass=0.2, com=(0, 0, 0.1), inertia=((0.01, 0, 0), (0, 0.01, 0), (0, 0, 0.01)))
    b.joint("px", "prismatic", child="x", axis=(1, 0, 0), lower=-1, upper=2, effort=5, velocity=3)
    b.joint("py", "prismatic", parent="x", child="cart", axis=(0, 1, 0), stiffness=3, armature=0.2)
    b.joint("glue", "fixed", parent="cart", child="tool", position=(0.1, 0, 0.3))
    mech = b.build()
    mech = mech.replace(friction=mech.friction + 0.1, friction_speed=mech.friction_speed + 0.02)
    with pytest.warns(ts.RobotFileWarning) as found:
        ts.save(mech, tmp_path / "cart.xml")
    (message,) = (str(x.message) for x in found)
    for part in ("which get 2e-15 kg and kg m^2: x", "(friction_speed)", "velocity limits of px"):
        assert part in message
    again = quiet(tmp_path / "cart.xml")
    assert (again.body_names, again.joint_names) == (mech.body_names, mech.joint_names)
    assert [x.mass for x in again.file_metadata.links] == [2e-15, 1.0, 0.2]
    plain = mech.replace(
        friction_speed=torch.zeros_like(mech.friction_speed), has_smooth_friction=False
    )
    q, qd = mech.random_state(4, generator=torch.Generator().manual_seed(0))
    want = ts.forward_dynamics(plain, q, qd, qd)
    assert torch.allclose(ts.forward_dynamics(again, q, qd, qd), want, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "change",
    [
        lambda mech: {"geometry": replace(mech.geometry, shapes=mech.geometry.shapes[:1])},
        lambda mech: {"file_metadata": replace(mech.file_metadata, sensors=())},
        lambda mech: {
            "file_metadata": replace(
                mech.file_metadata, solver=replace(mech.file_metadata.solver, timestep=0.01)
            )
        },
    ],
    ids=["shapes", "sensors", "timestep"],
)
def test_changes_that_a_copy_of_the_file_lacks_are_named(change, tmp_path, request):
    text = robot(**FIELDS["sensors"])
    mech = quiet(text)
    ts.save(mech, tmp_path / "same.xml", like=text, strict=True)
    other = mech.replace(**change(mech))
    named = f"which like= does not write: {request.node.callspec.id}"
    with pytest.warns(ts.RobotFileWarning, match=named):
        ts.save(other, tmp_path / "other.xml", like=text)
    with pytest.raises(ts.MechanismError, match=named):
        ts.save(other, tmp_path / "strict.xml", like=text, strict=True)
    ts.save(other, tmp_path / "new.xml", strict=True)
    again = quiet(tmp_path / "new.xml")
    assert again.file_metadata.solver.timestep == other.file_metadata.solver.timestep
    assert len(again.file_metadata.sensors) == len(other.file_metadata.sensors)
    assert len(again.geometry.shapes) == len(other.geometry.shapes)


def test_a_body_with_an_unphysical_link_is_one_link(tmp_path):
    """MuJoCo refuses such a link, as of an antenna, though the body to which it is welded is physical."""
    b = ts.MechanismBuilder("mast")
    b.link("mast", mass=3.0, com=(0, 0, 0.1), inertia=((0.1, 0, 0), (0, 0.1, 0), (0, 0, 0.1)))
    b.link("antenna", mass=0.1, com=(0, 0.1, 0))
    b.joint("turn", "revolute", child="mast", axis=(0, 1, 0))
    b.joint("glue", "fixed", parent="mast", child="antenna", position=(0.1, 0, 0.3))
    mech = b.build()
    metadata = mech.file_metadata
    links = [
        replace(x, inertia=((1e-3, 0, 0), (0, 1e-3, 0), (0, 0, 1e-2))) if x.name == "antenna" else x
        for x in metadata.links
    ]
    inertia = mech.inertia + torch.diag(torch.tensor([1e-3, 1e-3, 1e-2]).to(mech.dtype))
    mech = mech.replace(file_metadata=replace(metadata, links=tuple(links)), inertia=inertia)
    ts.save(mech, tmp_path / "mast.xml", strict=True)
    again = quiet(tmp_path / "mast.xml")
    assert [x.mass for x in again.file_metadata.links] == pytest.approx([3.1, 0.0], abs=1e-15)
    for field in ("mass", "com", "inertia"):
        one, two = getattr(mech, field), getattr(again, field)
        assert torch.allclose(one, two, rtol=0, atol=1e-15)
