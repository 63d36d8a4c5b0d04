"""Robots written: into their own files with other numbers, and into new ones."""

import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import torchsko as ts
from tests.io.urdf_texts import robot
from tests.oracles.pinocchio_bridge import Robot, mass_matrix, robot_files, worst_error
from tests.oracles.test_mjcf import STACKED, gymnasium_models
from tests.strategies import agree, random_mechanism
from torchsko.io.mjcf.assets import asset_paths
from torchsko.shapes.mesh import Mesh
from torchsko.spatial.rotation import quaternion_exp, quaternion_to_matrix

pin = pytest.importorskip("pinocchio")
mujoco = pytest.importorskip("mujoco")

WRITTEN = ("mass", "com", "inertia", "joint_rotation", "joint_position", "damping", "friction")
BODIES = ("mass", "com", "inertia")
OF_DOFS = ("damping", "friction", "armature", "stiffness")
# A dozen of all sizes, of all authors: welded links, files of Windows, mimics, no name, dummy inertias.
DOZEN = (
    "double_pendulum_description/urdf/double_pendulum.urdf",
    "panda_description/urdf/panda.urdf",
    "ur_description/urdf/ur5_gripper.urdf",
    "so_arm_description/urdf/so100.urdf",
    "go2_description/urdf/go2.urdf",
    "anymal_c_simple_description/urdf/anymal.urdf",
    "b1_description/urdf/b1-z1.urdf",
    "g1_description/urdf/g1_29dof_with_hand_rev_1_0.urdf",
    "icub_description/robots/icub.urdf",
    "romeo_description/urdf/romeo_small.urdf",
    "talos_data/robots/talos_reduced.urdf",
    "tiago_description/robots/tiago_dual.urdf",
)
# Pinocchio's reader stops at a mimic of an unknown joint; so does ours.
NO_MIMIC = "alex_description/urdf/alex_psyonic_hands.urdf"
# At load entries of rotations within 1e-14 of 0 and +-1 become these.
SNAPPED = 1e-14
# Of a body of many welded links, whose inertia is a sum about its center of mass; in all else.
WELDED = 1e-15


def quiet(file: Path | str, **options) -> ts.Mechanism:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ts.RobotFileWarning)
        return ts.load(file, **options)


def scaled(mech: ts.Mechanism, names: tuple[str, ...], seed: int = 0) -> ts.Mechanism:
    """Every number between half and twice itself, rotations turned by some degrees."""
    g = torch.Generator().manual_seed(seed)

    def factor(*size: int) -> Tensor:
        return 0.5 + 1.5 * torch.rand(*size, generator=g, dtype=mech.dtype)

    kinds, own = mech.joints.kinds, {}
    per_joint = torch.cat([factor(1).expand(kind.num_dof) for kind in kinds])
    file = torch.cat([torch.full((k.num_dof,), n != "root_joint")
                      for k, n in zip(kinds, mech.tree_joint_names, strict=True)])  # fmt: skip
    turning = torch.tensor([[n != "root_joint"] for n in mech.tree_joint_names])
    turn = 0.3 * torch.randn(mech.num_bodies, 3, generator=g, dtype=mech.dtype) * turning
    for name in names:
        x = getattr(mech, name)
        if name == "joint_rotation":
            own[name] = x @ quaternion_to_matrix(quaternion_exp(turn))
        elif name == "inertia":
            own[name] = x * factor(len(x), 1, 1)
        elif name in OF_DOFS:
            own[name] = (x + 0.01) * per_joint * file
        else:
            own[name] = x * factor(*x.shape)
    return mech.replace(**own)


def off(mech: ts.Mechanism, other: ts.Mechanism, name: str) -> float:
    """How far a parameter is off, relative to the largest of it; of inertias to the body's largest."""
    x, y = getattr(mech, name), getattr(other, name)
    if not x.numel():
        return 0.0
    scale = x.abs().amax((1, 2), keepdim=True) if name == "inertia" else x.abs().max()
    error = (x - y).abs()
    return float(torch.where(error == 0, error, error / scale).max())


def goes_and_comes_back(file: Path, folder: Path, floating: bool, mimic: str = "couple") -> None:
    mech = quiet(file, floating_base=floating, mimic=mimic)
    same, new = folder / "same.urdf", folder / "new.urdf"
    ts.save(mech, same, like=file)
    assert same.read_bytes() == file.read_bytes()
    other = scaled(mech, WRITTEN)
    ts.save(other, new, like=file)
    back = quiet(new, floating_base=floating, mimic=mimic)
    errors = {name: off(other, back, name) for name in WRITTEN}
    assert errors.pop("joint_rotation") < SNAPPED
    R = other.joint_rotation
    near = ((R - R.round()).abs() <= SNAPPED) & (R != R.round())
    # What was made of such entries is a rotation to that only, and angles say rotations.
    bent = (R @ R.mT - torch.eye(3, dtype=R.dtype)).abs().amax((1, 2))
    apart = (R - back.joint_rotation).abs().amax((1, 2))
    assert bool((near.any(-1).any(-1) | (apart < WELDED + bent)).all())
    # Exact for a body of one link; the sums over welded links round.
    assert max(errors.values()) < WELDED, errors
    alone = [mech.frame_body.count(k) == 1 for k in range(mech.num_bodies)]
    for name in BODIES:
        assert torch.equal(getattr(other, name)[alone], getattr(back, name)[alone]), name


def test_only_the_numbers_that_change_are_other_bytes(tmp_path):
    arm, new = ts.load(ts.robots.panda), tmp_path / "new.urdf"
    ts.save(arm.replace(mass=2 * arm.mass), new, like=ts.robots.panda)
    old, mass = ts.robots.panda.read_bytes(), re.compile(rb'<mass value="([^"]*)"/>')
    pairs = zip(mass.findall(old), mass.findall(new.read_bytes()), strict=True)
    assert sum(float(theirs) == 2 * float(mine) for mine, theirs in pairs) == arm.num_bodies
    assert mass.sub(b"", new.read_bytes()) == mass.sub(b"", old)


@pytest.mark.some(4)
@pytest.mark.parametrize("floating", [False, True])
@pytest.mark.parametrize("name", DOZEN)
def test_a_robot_comes_back_from_its_file_with_the_numbers_it_was_given(name, floating, tmp_path):
    goes_and_comes_back(robot_files()[name], tmp_path, floating)


@pytest.mark.nightly
@pytest.mark.parametrize("floating", [False, True])
@pytest.mark.parametrize("name", robot_files())
def test_every_robot_comes_back_from_its_file(name, floating, tmp_path):
    file = robot_files()[name]
    if "hector" in name or "iris_simple" in name:
        floating = True  # nothing else moves
    mimic = "independent" if name == NO_MIMIC else "couple"
    goes_and_comes_back(file, tmp_path, floating, mimic)


@pytest.mark.parametrize("name", [DOZEN[1], DOZEN[5], DOZEN[10]])
def test_pinocchio_reads_what_was_written_as_we_do(name, tmp_path):
    mech = scaled(quiet(robot_files()[name]), ("mass", "com", "inertia"))
    ts.save(mech, tmp_path / "new.urdf", like=robot_files()[name])
    both = Robot.load(tmp_path / "new.urdf", False)
    none = torch.zeros_like(mech.damping)
    mech = mech.tree.replace(damping=none, friction=none)
    q, qd, *_ = both.states(8)
    assert worst_error(ts.mass_matrix(mech, q), both.map(mass_matrix, q, axes=2)) < 1e-12
    bias = both.map(pin.nonLinearEffects, q, qd)
    assert worst_error(ts.bias_force(mech, q, qd), bias) < 1e-12


# MJCF.

INCLUDED = """<mujoco>
  <!-- of all joints -->
  <default><joint damping="0.10" frictionloss='0.2'/>
    <default class="heavy"><geom density="2e3"/><joint armature="0.01"/></default></default>
</mujoco>
"""
COMMENTED = """<?xml version="1.0"?>
<!-- An arm, 2 links: mass="7" -->
<mujoco model="arm-2">
  <compiler angle="degree" meshdir="shapes" />
  <include file='parts/defaults.xml'/>
  <asset><mesh name="rod"   file="rod.obj"/></asset>
  <worldbody>
    <body name="one" pos="0 0 .5">\t<!-- a tab before -->
      <joint name="a" axis="0 1 0" range="-90 90"  limited="true" damping = '.3'/>
      <inertial mass="2.0" pos="0 0 -.2" diaginertia="0.03 0.03 0.005" quat="1 0 0 0"/>
      <geom type="mesh" mesh="rod"/>
      <body name="two" pos="0 0 -.4" childclass="heavy">
        <joint name="b" axis="0 1 0"/>
        <geom type="capsule" fromto="0 0 0  0 0 -.3" size=".03"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""
ROD = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"


def commented(folder: Path) -> Path:
    """A file with comments, defaults in an included file, and a mesh, in a folder."""
    for name, text in (
        ("arm.xml", COMMENTED),
        ("parts/defaults.xml", INCLUDED),
        ("shapes/rod.obj", ROD),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())
    return folder / "arm.xml"


def test_only_numbers_of_an_mjcf_file_change_beside_its_comments_defaults_and_includes(tmp_path):
    """What MuJoCo inferred, or took from defaults, is put in; without it, numbers blank, nothing differs."""
    file = commented(tmp_path)
    mech = ts.load(file)
    other = scaled(mech, (*BODIES, "damping", "friction", "armature"))
    ts.save(other, tmp_path / "new.xml", like=file)
    new = (tmp_path / "new.xml").read_bytes().decode()
    (inferred,) = re.findall(r"<inertial[^>]*/>", new.split('childclass="heavy"')[1])
    new = re.sub(rf"\n\s*{re.escape(inferred)}", "", new)
    old_joints, joints = (re.findall(r"<joint[^>]*>", text) for text in (COMMENTED, new))
    for was, now in zip(old_joints, joints, strict=True):
        put = set(re.findall(r"(\w+)\s*=", now)) - set(re.findall(r"(\w+)\s*=", was))
        assert put <= {"damping", "frictionloss", "armature"}
        new = new.replace(now, re.sub(rf"\s*\b({'|'.join(put) or '-'})\s*=\s*\"[^\"]*\"", "", now))
    number = r"(?<=['\" ])-?\d*\.?\d+(e[-+]?\d+)?"

    def blank(text: str) -> str:
        return "".join(re.sub(number, "#", x) if x[:1] == "<" and x[:2] != "<!" else x
                       for x in re.split(r"(<[^>]*>)", text))  # fmt: skip

    assert blank(new) == blank(COMMENTED)
    back = ts.load(tmp_path / "new.xml")
    assert max(off(other, back, x) for x in (*BODIES, "damping", "friction", "armature")) < 2e-15


def beside(source: Path | str, folder: Path) -> Path | str:
    """The file, with what it refers to in a folder where it is to be written."""
    if isinstance(source, Path):
        for part in source.parent.rglob("*"):
            if part.is_file() and part.suffix != ".xml":
                link = folder / part.relative_to(source.parent)
                link.parent.mkdir(exist_ok=True, parents=True)
                link.symlink_to(part)
    return source


@pytest.mark.some(7)
@pytest.mark.parametrize("name", ["stacked", *gymnasium_models()])
def test_a_model_comes_back_from_its_mjcf_with_the_numbers_it_was_given(name, tmp_path):
    """Whether its inertias were written there, or inferred from geoms, or scaled to a total mass."""
    source = STACKED if name == "stacked" else beside(gymnasium_models()[name], tmp_path)
    mech = ts.load(source)
    text = source if isinstance(source, str) else source.read_text()
    ts.save(mech, tmp_path / "same.xml", like=source)
    assert (tmp_path / "same.xml").read_bytes() == text.encode()
    other = scaled(mech, BODIES)
    kinds = mech.joints.kinds
    single = torch.cat([torch.full((k.num_dof,), k.vector) for k in kinds])
    new = {
        n: torch.where(single, getattr(scaled(mech, (n,)), n), getattr(mech, n)) for n in OF_DOFS
    }
    other = other.replace(**new)
    ts.save(other, tmp_path / "new.xml", like=source)
    back = ts.load(tmp_path / "new.xml")
    errors = {field: off(other, back, field) for field in (*BODIES, *OF_DOFS)}
    assert max(errors.values()) < 2e-15, errors  # principal axes as quaternions round once more


RESTING = """<worldbody><body name="arm"><joint name="a"/><geom size="0.1"/></body>
  <body name="tip"><joint name="c"/><inertial pos="0 0 0.1" mass="1" diaginertia="1 1 1"/>
  <geom size="0.1"/></body></worldbody>"""


@pytest.mark.parametrize("setting", ['inertiafromgeom="true"', 'settotalmass="4"'])
def test_an_inertial_that_did_not_count_is_written_anew_where_masses_change(setting, tmp_path):
    """Its inertia stayed as it stood there, and the robot was refused as read otherwise."""
    like, path = tmp_path / "like.xml", tmp_path / "new.xml"
    like.write_text(f"<mujoco><compiler {setting}/>{RESTING}</mujoco>")
    mech = ts.load(like)
    ts.save(mech.replace(mass=0.5 * mech.mass), path, like=like)
    new = ts.load(path)
    torch.testing.assert_close(new.mass, 0.5 * mech.mass)
    torch.testing.assert_close(new.inertia, mech.inertia)
    torch.testing.assert_close(new.com, mech.com)


@pytest.mark.parametrize(
    ("setting", "included"),
    [
        ('boundmass="3"', False),
        ('boundmass="3"', True),
        ('inertiafromgeom="true"', True),
        ('settotalmass="4"', True),
    ],
)
def test_settings_by_which_bodies_are_read_otherwise_are_named_with_what_to_type(
    setting, included, tmp_path
):
    compiler = f"<compiler {setting}/>"
    (tmp_path / "part.xml").write_text(f"<mujoco>{compiler}</mujoco>")
    like, path = tmp_path / "like.xml", tmp_path / "new.xml"
    head = '<include file="part.xml"/>' if included else compiler
    text = f"<mujoco>{head}{RESTING}</mujoco>"
    like.write_text(text)
    mech = ts.load(like)
    mech = mech.replace(mass=0.5 * mech.mass)
    with pytest.raises(ts.MechanismError, match=setting.split("=")[0]) as told:
        ts.save(mech, path, like=like)
    typed = str(told.value).splitlines()[-1]
    if included:
        added = re.search("<compiler.*?/>", typed).group()
        like.write_text(text.replace("<worldbody>", f"{added}<worldbody>"))
    else:
        like.write_text(text.replace(setting, re.search('bound.*?".*?"', typed).group()))
    ts.save(mech, path, like=like)
    torch.testing.assert_close(ts.load(path).mass, mech.mass)


@pytest.mark.parametrize("name", ["stacked", "ant.xml", "humanoid.xml"])
def test_places_ranges_and_gravity_of_an_mjcf_file_are_written(name, tmp_path):
    source = STACKED if name == "stacked" else beside(gymnasium_models()[name], tmp_path)
    mech = ts.load(source)
    g = torch.Generator().manual_seed(0)
    fixed = [kind.name == "free" or joint == "after"
             for kind, joint in zip(mech.joints.kinds, mech.tree_joint_names, strict=True)]  # fmt: skip
    keep = torch.tensor(fixed)[:, None]
    shift = torch.rand(mech.num_bodies, 3, generator=g, dtype=mech.dtype)
    turn = quaternion_to_matrix(quaternion_exp(shift))
    limited = mech.upper.isfinite()
    changes = {
        "joint_position": torch.where(keep, mech.joint_position, mech.joint_position + shift),
        "joint_rotation": torch.where(
            keep[..., None], mech.joint_rotation, turn @ mech.joint_rotation
        ),
        "upper": torch.where(limited, mech.upper + 0.1, mech.upper),
        "lower": torch.where(limited, mech.lower - 0.2, mech.lower),
        "gravity": mech.gravity + torch.tensor([0.1, 0.2, 0.3], dtype=mech.dtype),
    }
    ts.save(mech.replace(**changes), tmp_path / "new.xml", like=source)
    back = ts.load(tmp_path / "new.xml")
    for field, values in changes.items():
        mine, theirs = getattr(back, field).reshape(1, -1), values.reshape(1, -1)
        assert torch.equal(mine.isinf(), theirs.isinf())
        agree(mine[mine.isfinite()][None], theirs[theirs.isfinite()][None], 1e-14)
    assert torch.equal(back.gravity, changes["gravity"])


# New files.


def same_dynamics(mech: ts.Mechanism, other: ts.Mechanism) -> None:
    q, qd = mech.random_state(5, generator=torch.Generator().manual_seed(0))
    agree(ts.mass_matrix(other, q), ts.mass_matrix(mech, q), 1e-12)
    agree(ts.bias_force(other, q, qd), ts.bias_force(mech, q, qd), 1e-12)


KINDS = ("revolute", "prismatic", "spherical", "revolute", "planar", "prismatic")


@pytest.mark.parametrize("suffix", [".urdf", ".xml"])
@pytest.mark.parametrize("seed", range(3))
def test_a_new_file_is_the_robot(suffix, seed, tmp_path):
    mech = random_mechanism(list(KINDS), [-1, 0, 0, 2, 3, -1], seed, passive=suffix == ".xml")
    x = torch.tensor([1.0, 0.2, 0.1], dtype=mech.dtype)
    axis = mech.axis.clone()
    axis[4] = torch.tensor([0.0, 0.0, 1.0])
    along = {"joint_parameters": (x * torch.tensor([1, 0, 0])).to(mech.dtype)}
    mech = mech.replace(axis=axis, **along)
    if suffix == ".xml":
        free = torch.cat([torch.full((k.num_dof,), not k.vector) for k in mech.joints.kinds])
        mech = mech.replace(friction=torch.where(free, 0.3, mech.friction))
    ts.save(mech, tmp_path / f"new{suffix}")
    other = quiet(tmp_path / f"new{suffix}")
    same_dynamics(mech, other)
    assert set(mech.frame_names) <= set(other.frame_names)


def hand() -> ts.MechanismBuilder:
    builder = ts.MechanismBuilder("a hand & more")
    I = ((0.02, 0.001, 0), (0.001, 0.03, 0.002), (0, 0.002, 0.025))
    for name in ("palm", "left", "right", "tip"):
        builder.link(name, mass=0.5, com=(0.01, 0.02, -0.03), inertia=I)
    limits = {"lower": -0.5, "upper": 1.0, "effort": 3.0, "velocity": 2.0}
    builder.joint(
        "wrist", "revolute", child="palm", axis=(1, 0, 1), damping=0.1, friction=0.2, **limits
    )
    builder.joint(
        "l", "prismatic", parent="palm", child="left", axis=(0, 1, 0), position=(0, 0, 0.1)
    )
    builder.joint("r", "prismatic", parent="palm", child="right", axis=(0, 1, 0), **limits)
    turn = ((0, -1, 0), (1, 0, 0), (0, 0, 1))
    builder.joint("glue", "fixed", parent="right", child="tip", position=(0, 0, 0.2), rotation=turn)
    return builder


SHAPES = """<mujoco model="shapes"><worldbody><geom name="floor" type="plane" size="3 2 1"/>
<body name="a" pos="0 0.1 0"><joint name="turn"/>
  <geom name="x" type="box" size=".1 .2 .3" pos=".1 .2 .3" euler="10 20 30" rgba="1 0 0 .5"/>
  <geom type="ellipsoid" size=".1 .2 .3" group="4" solref="0.03 1.1"/>
  <body name="b" pos="1 0 0"><joint name="slide" type="slide"/>
    <geom type="capsule" fromto="0 0 0 1 1 1" size=".1" contype="0" conaffinity="0" mass="2"/>
    <body name="welded" pos="0 0 1" euler="0 40 0">
      <geom type="cylinder" size=".1 .3" pos="0 0 1" friction=".3 .1 .2"/></body></body></body>
</worldbody><contact><exclude body1="a" body2="b"/></contact></mujoco>"""


def places(mech: ts.Mechanism, q: Tensor) -> list[tuple]:
    """Every shape: its form, color, what it is for, how it touches, and where it is at a configuration."""
    found = []
    for shape in mech.geometry.shapes:
        turn, shift = (torch.tensor(x, dtype=q.dtype) for x in (shape.rotation, shape.position))
        if shape.frame is not None:
            pose = ts.frame_pose(mech, q, shape.frame)
            R, p = pose.rotation.reshape(3, 3), pose.position.reshape(3)
            turn, shift = R @ turn, p + R @ shift
        what = shape.form, shape.color, shape.visual, shape.collision, shape.surface
        found.append((*what, turn, shift))
    return found


def test_a_new_file_has_the_shapes_that_its_format_has_words_for(tmp_path):
    mech = ts.load(SHAPES)
    q = torch.tensor([0.3, -0.2]).double()
    mine = places(mech, q)
    ts.save(mech, tmp_path / "new.xml")
    with pytest.warns(
        ts.RobotFileWarning, match=r"1 of kind plane, 1 of kind ellipsoid(.|\n)*1 excluded"
    ):
        ts.save(mech, tmp_path / "new.urdf")
    again, urdf = ts.load(tmp_path / "new.xml"), ts.load(tmp_path / "new.urdf")
    theirs = places(again, q)
    # Of each body its own shapes come first, as MuJoCo numbers them.
    assert len(mine) == len(theirs) == 5
    for (*what, R, p), (*others, R_other, p_other) in zip(mine, theirs, strict=True):
        assert what[1:4] == others[1:4]
        # MuJoCo computes inverse weights anew, in the initial configuration of the new file.
        surface, other_surface = (
            replace(x, invweight=()) if x else x for x in (what[4], others[4])
        )
        assert surface == other_surface
        assert type(what[0]) is type(others[0])
        for size in vars(what[0]):
            assert getattr(others[0], size) == pytest.approx(getattr(what[0], size), rel=1e-15)
        torch.testing.assert_close(R_other, R, rtol=0, atol=1e-14)
        torch.testing.assert_close(p_other, p, rtol=0, atol=1e-14)
    assert again.geometry.excluded == mech.geometry.excluded
    kept = [x for x in mine if type(x[0]).__name__ not in ("Plane", "Ellipsoid")]
    seen = [x for x in places(urdf, q) if x[2]]
    assert [x[0] for x in seen] == [x[0] for x in kept] and [x[1] for x in seen] == [
        x[1] for x in kept
    ]
    for theirs, ours in zip(seen, kept, strict=True):
        torch.testing.assert_close(theirs[5], ours[5], rtol=0, atol=1e-14)
        torch.testing.assert_close(theirs[6], ours[6], rtol=0, atol=1e-14)
    assert sum(x[3] for x in places(urdf, q)) == sum(x[3] for x in kept) == 2
    # MuJoCo, by its own import, finds those that touch where they are.
    model = mujoco.MjModel.from_xml_string((tmp_path / "new.urdf").read_text())
    data = mujoco.MjData(model)
    data.qpos[:] = q.numpy()
    mujoco.mj_kinematics(model, data)
    touching = [x for x in kept if x[3]]
    torch.testing.assert_close(
        torch.tensor(data.geom_xpos), torch.stack([x[6] for x in touching]), rtol=0, atol=1e-14
    )


def test_meshes_keep_their_paths_in_a_new_urdf_and_are_told_in_mjcf(tmp_path):
    file = robot_files()["panda_description/urdf/panda.urdf"]
    mech = quiet(file)
    ts.save(mech, tmp_path / "new.urdf")
    mine, theirs = (
        {(s.form.path, s.frame, s.visual, s.position) for s in robot.geometry.shapes
         if isinstance(s.form, Mesh)}
        for robot in (mech, quiet(tmp_path / "new.urdf"))
    )  # fmt: skip
    assert mine == theirs and mine
    with pytest.warns(
        ts.RobotFileWarning, match=r"the MJCF file of 'panda' lacks:\n  shapes: \d+ of kind mesh"
    ):
        ts.save(mech, tmp_path / "new.xml")
    light = ts.load(ts.robots.humanoid)
    with pytest.warns(ts.RobotFileWarning, match="bodies without mass .* which get 2e-15 kg"):
        ts.save(light, tmp_path / "humanoid.xml")
    same_dynamics(light, quiet(tmp_path / "humanoid.xml"))


def test_one_robot_in_both_formats_and_through_mujocos_own_import_of_urdf(tmp_path):
    mech = hand().build()
    ts.save(mech, tmp_path / "hand.urdf")
    ts.save(mech, tmp_path / "hand.xml")
    text = (tmp_path / "hand.urdf").read_text()
    robots = [ts.load(tmp_path / "hand.urdf"), ts.load(tmp_path / "hand.xml"),
              ts.from_mujoco(mujoco.MjModel.from_xml_string(text), gravity=(0, 0, -9.81))]  # fmt: skip
    for other in robots:
        assert other.joint_names == ("wrist", "l", "r")
        same_dynamics(mech, other)
    q, _ = mech.random_state(3)
    for other in robots[:2]:
        for field in ("lower", "upper", "effort_limit", "damping", "friction"):
            assert torch.equal(getattr(other, field)[:1], getattr(mech, field)[:1]), field
        agree(
            ts.frame_pose(other, q, "tip").rotation, ts.frame_pose(mech, q, "tip").rotation, 1e-14
        )
    assert robots[0].lower[1] == -torch.inf
    model = pin.buildModelFromUrdf(str(tmp_path / "hand.urdf"))
    there = ts.conventions("pinocchio", mech, list(model.names)[1:])
    M = mass_matrix(model, model.createData(), there.q_to(q[0]).numpy())
    agree(there.mass_matrix_to(q[0], ts.mass_matrix(mech, q[0])), torch.from_numpy(M), 1e-12)


@pytest.mark.parametrize("suffix", [".urdf", ".xml"])
def test_joints_that_follow_others_and_floating_bases_are_written(suffix, tmp_path):
    mech = hand().couple("r", {"l": -0.5}, offset=0.02).build(floating_base=False)
    ts.save(mech, tmp_path / f"hand{suffix}")
    other = ts.load(tmp_path / f"hand{suffix}")
    assert other.dependent_joint_names == ("r",)
    same_dynamics(mech, other)
    I = ((0.3, 0, 0), (0, 0.4, 0), (0, 0, 0.5))
    builder = hand().link("base", mass=2.0, inertia=I).joint("wrist2", "free", child="base")
    mech = builder.build()
    ts.save(mech, tmp_path / f"two{suffix}")
    same_dynamics(mech, ts.load(tmp_path / f"two{suffix}"))


# What is put where, and what is refused.

TWO = robot(
    '<joint name="j" type="continuous"><parent link="a"/><child link="b"/></joint>',
    more='<link name="tool"><inertial><mass value="3"/><inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" '
    'izz="1"/></inertial></link><joint name="g" type="fixed"><parent link="b"/><child link="tool"/>'
    '<origin xyz="0 0 1"/></joint>',
)


def test_a_change_of_a_body_goes_to_its_heaviest_link_and_to_all_where_nothing_is_left_of_it(
    tmp_path,
):
    mech, new = ts.load(TWO), tmp_path / "new.urdf"
    ts.save(mech.replace(mass=mech.mass + 1), new, like=TWO)
    assert '<mass value="2"/>' in new.read_text() and '<mass value="4.0"/>' in new.read_text()
    ts.save(mech.replace(mass=mech.mass * 0.2), new, like=TWO, overwrite=True)
    text = new.read_text()
    assert [float(x) for x in re.findall('mass value="([^"]*)"', text)] == pytest.approx([0.4, 0.6])
    agree(ts.load(new).mass[None], mech.mass[None] * 0.2, 1e-15)


@pytest.mark.parametrize("seed", range(5))
def test_links_of_a_physical_body_stay_physical_whatever_it_changes_to(tmp_path, seed):
    """As MuJoCo asks of each link before it welds any."""
    g, mech = torch.Generator().manual_seed(seed), ts.load(TWO)
    mass = mech.mass * torch.rand(1, generator=g, dtype=mech.dtype)
    J = torch.randn(1, 3, 3, generator=g, dtype=mech.dtype)
    spread = 0.03 * mass[:, None, None] * (J @ J.mT)  # much smaller than the two links are apart
    trace = spread.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
    inertia = trace * torch.eye(3, dtype=mech.dtype) - spread
    other = mech.replace(mass=mass, com=mech.com + 0.3, inertia=inertia)
    ts.save(other, tmp_path / "new.urdf", like=TWO)
    back = ts.load(tmp_path / "new.urdf")
    for name in BODIES:
        agree(getattr(back, name), getattr(other, name), 1e-14)
    text = (tmp_path / "new.urdf").read_text()
    apart = '<mujoco><compiler fusestatic="false"/></mujoco></robot>'
    model = mujoco.MjModel.from_xml_string(text.replace("</robot>", apart))
    assert model.nbody == 4 and model.body_mass.sum() == pytest.approx(float(mass))


def test_elements_that_are_missing_are_put_in_and_the_rest_stays(tmp_path):
    text = """<?xml version='1.0'?>
<robot name="r"><!-- a comment > with "signs" -->
  <link name="a"/>
  <link name='b'/>
\t<joint name="j" type="revolute" ><parent link="a"/><child link="b"/>
\t  <limit lower="-1" upper="2.50" effort = '3' velocity="4"/></joint>
</robot>"""
    mech = quiet(text)
    new = mech.replace(
        mass=mech.mass + 2, com=mech.com + 0.1, damping=mech.damping + 0.5,
        inertia=torch.eye(3, dtype=mech.dtype)[None], joint_position=mech.joint_position + 1.5,
    )  # fmt: skip
    ts.save(new, tmp_path / "new.urdf", like=text)
    written = (tmp_path / "new.urdf").read_text()
    back = ts.load(tmp_path / "new.urdf")
    for name in WRITTEN:
        assert torch.equal(getattr(back, name), getattr(new, name)), name
    assert (back.lower, back.upper) == (-1, 2.5)
    for line in text.splitlines()[:3] + [text.splitlines()[5][:-8]]:
        assert line in written
    again = tmp_path / "again.urdf"
    ts.save(back, again, like=tmp_path / "new.urdf")
    assert again.read_text() == written


def test_values_without_a_representation_are_refused_and_no_file_is_written(tmp_path):
    arm, file = ts.load(ts.robots.panda), tmp_path / "arm.urdf"
    file.write_text("mine")
    ones, own = torch.ones_like(arm.damping), ts.robots.panda
    other = random_mechanism(["helical", "revolute"], [-1, 0], seed=0)
    thin = arm.inertia.clone()
    thin[1] = torch.diag(torch.tensor([1.0, 0.1, 0.2]))
    refused = [
        (ts.RobotFileError, "exists already", lambda p: ts.save(arm, file)),
        (ts.RobotFileError, "has the ending '.txt'", lambda p: ts.save(arm, tmp_path / "a.txt")),
        (ts.RobotFileError, "cannot be written", lambda p: ts.save(arm, tmp_path / "no" / "a.urdf")),
        (ts.RobotFileError, "is an SDF file, which can be read", lambda p: ts.save(arm, p, like="<sdf/>")),
        (ts.RobotFileError, "given as bytes", lambda p: ts.save(arm, p, like=b"<robot/>")),
        (ts.MechanismError, "armature[0]", lambda p: ts.save(arm.replace(armature=ones), p, like=own)),
        (ts.MechanismError, "armature of joints joint1, joint2",
         lambda p: ts.save(arm.replace(armature=ones), p, strict=True)),
        (ts.MechanismError, "lower[0]", lambda p: ts.save(arm.replace(lower=ones), p, like=own)),
        (ts.MechanismError, "is not the robot of", lambda p: ts.save(other, p, like=own)),
        (ts.MechanismError, "has the batch shape",
         lambda p: ts.save(arm.replace(mass=arm.mass.expand(2, -1)), p)),
        (ts.MechanismError, "the inertia of 'link2' is unphysical",
         lambda p: ts.save(arm.replace(inertia=thin), p.with_suffix(".xml"))),
        (ts.MechanismError, "is helical", lambda p: ts.save(other, p)),
        (ts.MechanismError, "is helical", lambda p: ts.save(other, p.with_suffix(".xml"))),
    ]  # fmt: skip
    for kind, said, call in refused:
        with pytest.raises(kind, match=re.escape(said)):
            call(tmp_path / "new.urdf")
    assert [p.name for p in tmp_path.iterdir()] == ["arm.urdf"] and file.read_text() == "mine"
    ts.save(arm, file, like=ts.robots.panda, overwrite=True)
    assert file.read_bytes() == ts.robots.panda.read_bytes()


def test_a_file_that_would_be_read_otherwise_is_not_written(tmp_path):
    """A least mass that the file asks for."""
    text = STACKED.replace('angle="radian"', 'angle="radian" boundmass="0.3"')
    mech = ts.load(text)
    with pytest.raises(ts.MechanismError, match="mass of 'stacked' would differ"):
        ts.save(mech.replace(mass=0.5 * mech.mass), tmp_path / "new.xml", like=text)
    assert not list(tmp_path.iterdir())


def test_a_file_whose_parts_are_not_beside_the_new_one_is_not_written(tmp_path):
    old, other = tmp_path / "old", tmp_path / "other"
    old.mkdir()
    other.mkdir()
    part = STACKED.replace("<worldbody>", '<include file="part.xml"/><worldbody>')
    (old / "robot.xml").write_text(part)
    (old / "part.xml").write_text("<mujocoinclude><worldbody><site/></worldbody></mujocoinclude>")
    mech = ts.load(old / "robot.xml")
    with pytest.raises(ts.RobotFileError, match=r"could not be loaded again.*\n.*may lack meshes"):
        ts.save(mech, other / "robot.xml", like=old / "robot.xml")
    assert not list(other.iterdir())
    ts.save(mech, old / "new.xml", like=old / "robot.xml")
    assert (old / "new.xml").read_text() == part


@pytest.mark.parametrize("own", [True, False])
def test_springs_that_follow_from_inertias_stay_when_these_change(own, tmp_path):
    """As of dm_control's dog: a time constant and a ratio of damping, in the joint or its class."""
    rule = 'springdamper="0.05 0.7"'
    text = f"""<mujoco><default><joint {"" if own else rule} axis="0 1 0"/></default><worldbody>
      <body name="a"><joint name="j" {rule if own else ""}/>
      <joint name="k" frictionloss="0.1" armature="0.1" axis="1 0 0"/>
      <inertial pos="0 0 0.3" mass="1" diaginertia="0.02 0.03 0.04"/></body></worldbody></mujoco>"""
    mech = ts.load(text)
    assert bool(mech.stiffness[0] > 0) and bool(mech.damping[0] > 0)
    heavy = mech.replace(mass=2.0 * mech.mass)
    ts.save(heavy, tmp_path / "heavy.xml", like=text)
    again = ts.load(tmp_path / "heavy.xml")
    for field in ("mass", "stiffness", "damping", "friction"):
        assert torch.equal(getattr(again, field), getattr(heavy, field))
    for field in ("damping", "friction", "armature"):
        changed = mech.replace(**{field: 0.5 * getattr(mech, field)})
        ts.save(changed, tmp_path / f"{field}.xml", like=text)
        again = ts.load(tmp_path / f"{field}.xml")
        for each in ("stiffness", "damping", "friction"):
            assert torch.equal(getattr(again, each), getattr(changed, each))


def test_a_file_whose_parts_are_in_folders_that_are_trusted_is_written(tmp_path):
    """As most of metaworld is laid out; the new file is read in the same folders."""
    (tmp_path / "parts").mkdir()
    folder = tmp_path / "1" / "2" / "3" / "robots"
    folder.mkdir(parents=True)
    file, new = folder / "robot.xml", folder / "new.xml"
    file.write_text(
        STACKED.replace("<worldbody>", '<include file="../../../../parts/part.xml"/><worldbody>')
    )
    (tmp_path / "parts" / "part.xml").write_text("<mujocoinclude><size/></mujocoinclude>")
    mech = ts.load(file, mesh_path=[tmp_path])
    heavy = mech.replace(mass=2.0 * mech.mass)
    with pytest.raises(ts.RobotFileError, match="lies outside the folder"):
        ts.save(heavy, new, like=file)
    with pytest.raises(ts.RobotFileError, match="mesh_path is one path"):
        ts.save(heavy, new, like=file, mesh_path=str(tmp_path))
    ts.save(heavy, new, like=file, mesh_path=[tmp_path])
    assert torch.equal(ts.load(new, mesh_path=[tmp_path]).mass, heavy.mass)


def test_a_file_in_another_encoding_is_copied_or_refused(tmp_path):
    file = tmp_path / "wide.urdf"
    file.write_bytes(('<?xml version="1.0" encoding="utf-16"?>' + TWO).encode("utf-16"))
    mech = ts.load(file)
    ts.save(mech, tmp_path / "same.urdf", like=file)
    assert (tmp_path / "same.urdf").read_bytes() == file.read_bytes()
    with pytest.raises(ts.RobotFileError, match="UTF-8"):
        ts.save(mech.replace(mass=2 * mech.mass), tmp_path / "new.urdf", like=file)


def test_what_an_attached_model_refers_to_goes_with_it(tmp_path):
    """Its paths count from its own folder."""
    texts = {
        "robot.xml": '<mujoco><asset><model name="m" file="a/child.xml"/></asset></mujoco>',
        "a/child.xml": '<mujoco><compiler meshdir="shapes"/><include file="rest.xml"/></mujoco>',
        "a/rest.xml": '<mujoco><asset><mesh file="rod.obj"/></asset></mujoco>',
        "a/shapes/rod.obj": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert {str(part) for part in asset_paths(tmp_path / "robot.xml")} == set(texts) - {"robot.xml"}


@pytest.mark.parametrize("tilt", [1e-8, 1e-10, 1e-12])
@pytest.mark.parametrize("like", [True, False])
def test_axes_of_inertia_that_are_nearly_the_bodys_are_kept(tilt, like, tmp_path):
    """MuJoCo takes the body's own there, and with them another inertia."""
    text = """<mujoco><worldbody><body name="a"><joint name="j" axis="0 1 0"/>
      <inertial pos="0 0 0" mass="1" diaginertia="0.02 0.03 0.04"/></body></worldbody></mujoco>"""
    mech = ts.load(text)
    inertia = mech.inertia.clone()
    inertia[0, 0, 2] = inertia[0, 2, 0] = tilt
    com = mech.com + torch.tensor([0.0, 0.0, tilt])
    ts.save(mech.replace(inertia=inertia, com=com), tmp_path / "a.xml", like=text if like else None)
    again = ts.load(tmp_path / "a.xml")
    assert torch.equal(again.com, com)
    assert float((again.inertia - inertia).abs().max()) < 1e-16


@pytest.mark.parametrize("like", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_flat_body_is_written_however_it_is_turned(like, dtype, tmp_path):
    """Its largest moment is the sum of the others, which MuJoCo wants to the last bit."""
    arm, g = ts.load(ts.robots.panda), torch.Generator().manual_seed(0)
    ts.save(arm, tmp_path / "arm.xml")
    turn = torch.linalg.qr(torch.randn(7, 3, 3, generator=g, dtype=arm.dtype)).Q
    flat = turn @ torch.diag(torch.tensor([0.1, 0.3, 0.4], dtype=arm.dtype)) @ turn.mT
    mech = ts.load(tmp_path / "arm.xml").replace(inertia=0.5 * (flat + flat.mT)).to(dtype)
    ts.save(mech, tmp_path / "flat.xml", like=tmp_path / "arm.xml" if like else None)
    again = ts.load(tmp_path / "flat.xml").to(dtype)
    assert torch.allclose(again.inertia, mech.inertia, rtol=0.0, atol=4 * torch.finfo(dtype).eps)


def test_stacked_joints_with_a_ball_are_those_of_one_body_again(tmp_path):
    """A slide and a ball in one body are two joints of ours, with a massless body between them."""
    text = """<mujoco><worldbody><body name="a"><joint name="s" type="slide" ref="0.2"/>
      <joint name="h" axis="1 1 0" ref="30"/><joint name="b" type="ball" pos="0 0.1 0"/>
      <inertial pos="0 0 0.1" mass="1" diaginertia="0.02 0.03 0.04"/></body></worldbody></mujoco>"""
    mech = ts.load(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ts.save(mech, tmp_path / "new.xml")
    again = ts.load(tmp_path / "new.xml")
    assert (again.body_names, again.joint_names) == (mech.body_names, mech.joint_names)
    assert torch.allclose(again.initial(), mech.initial(), rtol=0, atol=1e-15)
    same_dynamics(mech, again)
    model = mujoco.MjModel.from_xml_path(str(tmp_path / "new.xml"))
    assert [model.joint(i).name for i in range(model.njnt)] == ["s", "h", "b"] and model.nbody == 2
