"""Every bad input has one error: it names what is wrong, says why, and says what to type."""

import math

import pytest
import torch
from strategies import random_mechanism

import torchsko as ts

EYE = [[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]]
NAN, INF = math.nan, math.inf


def build(**changes) -> ts.Mechanism:
    """One link on one joint, with something wrong."""
    link = {"mass": 1.0, "inertia": EYE}
    link |= {key: changes.pop(key) for key in ("mass", "com", "inertia", "inertia_rotation")
             if key in changes}  # fmt: skip
    options = {key: changes.pop(key) for key in ("gravity", "dtype") if key in changes}
    joint = {"kind": "revolute", "child": "elbow_link"} | changes
    builder = ts.MechanismBuilder("robot").link("elbow_link", **link)
    return builder.joint("elbow", **joint).build(**options)


def pairs(*edges: tuple[str, str | None], links: str = "ab") -> ts.Mechanism:
    """Links by letter, one revolute joint per (child, parent)."""
    builder = ts.MechanismBuilder("robot")
    for name in links:
        builder.link(name, mass=1.0, inertia=EYE)
    for k, (child, parent) in enumerate(edges):
        builder.joint(f"j{k}", "revolute", child=child, parent=parent)
    return builder.build()


def twins() -> ts.Mechanism:
    builder = ts.MechanismBuilder("robot").link("a", mass=1.0).link("b", mass=1.0)
    builder.joint("twin", "prismatic", child="a")
    return builder.joint("twin", "prismatic", child="b").build()


def rooted_twice() -> ts.Mechanism:
    builder = ts.MechanismBuilder("robot").link("a", mass=1.0).link("b", mass=1.0)
    builder.joint("root_joint", "prismatic", child="b", parent="a")
    return ts.build_mechanism(builder.description(), floating_base=True)


def matrix(*diagonal: float, off: float = 0.0) -> list[list[float]]:
    a, b, c = diagonal
    return [[a, off, 0.0], [0.0, b, 0.0], [0.0, 0.0, c]]


DESCRIPTIONS = {
    "unknown kind": (lambda: build(kind="screw"), "'elbow' has the unknown kind 'screw'"),
    "unknown data": (lambda: build(dampng=1.0), "'elbow' was given the unknown 'dampng'"),
    "unknown parent": (lambda: build(parent="nobody"), "'elbow' names the unknown link 'nobody'"),
    "empty parent": (lambda: build(parent=""), "'elbow' names the unknown link ''"),
    "unknown child": (lambda: build(child="nobody"), "'elbow' names the unknown link 'nobody'"),
    "negative mass": (lambda: build(mass=-1.0), "'elbow_link': the mass is -1.0"),
    "nan mass": (lambda: build(mass=NAN), "'elbow_link': mass, .* not finite"),
    "infinite mass": (lambda: build(mass=INF), "'elbow_link': mass, .* not finite"),
    "nan centre": (lambda: build(com=(NAN, 0, 0)), "'elbow_link': .*centre of mass.* not finite"),
    "flat centre": (lambda: build(com=(0, 0)), "com of link 'elbow_link' has 2 components"),
    "nan inertia": (lambda: build(inertia=matrix(NAN, 1, 1)), "'elbow_link': .* not finite"),
    "flat inertia": (lambda: build(inertia=[[1, 0], [0, 1]]), "inertia of link 'elbow_link' has 2"),
    "triangle": (lambda: build(inertia=matrix(1, 1, 5)), "'elbow_link': .*triangle inequality"),
    "negative inertia": (lambda: build(inertia=matrix(-1, 1, 1)), "'elbow_link': .*negative"),
    "skew inertia": (lambda: build(inertia=matrix(1, 1, 1, off=0.5)), "'elbow_link'.*symmetric"),
    "inertia frame": (lambda: build(inertia_rotation=matrix(2, 1, 1)), "'elbow_link'.*rotation"),
    "nan inertia frame": (lambda: build(inertia_rotation=matrix(NAN, 1, 1)), "'elbow_link'.*rota"),
    "stretch": (lambda: build(rotation=matrix(2, 1, 1)), "'elbow' has a rotation that is none"),
    "mirror": (lambda: build(rotation=matrix(-1, 1, 1)), "'elbow' has a rotation that is none"),
    "nan rotation": (lambda: build(rotation=matrix(NAN, 1, 1)), "'elbow' has a rotation"),
    "nan position": (lambda: build(position=(0, NAN, 0)), "'elbow' has a placement"),
    "zero axis": (lambda: build(axis=(0, 0, 0)), "'elbow' has the axis"),
    "nan axis": (lambda: build(axis=(0, NAN, 0)), "'elbow' has the axis"),
    "negative damping": (lambda: build(damping=-1), "'elbow' has damping = -1"),
    "nan friction": (lambda: build(friction=NAN), "'elbow' has friction = nan"),
    "negative armature": (lambda: build(armature=-0.1), "'elbow' has armature = -0.1"),
    "infinite stiffness": (lambda: build(stiffness=INF), "'elbow' has a placement or spring"),
    "nan reference": (lambda: build(spring_reference=NAN), "'elbow' has a placement or spring"),
    "exchanged limits": (lambda: build(lower=1, upper=0), "'elbow' has the limits"),
    "nan limit": (lambda: build(lower=NAN), "'elbow' has the limits"),
    "negative speed": (lambda: build(velocity=-1), "'elbow' has the velocity limit -1"),
    "nan effort": (lambda: build(effort=NAN), "'elbow' has the effort limit nan"),
    "flat gravity": (lambda: build(gravity=(0, -9.81)), "gravity is"),
    "nan gravity": (lambda: build(gravity=(0, 0, NAN)), "gravity is"),
    "scalar gravity": (lambda: build(gravity=-9.81), "gravity is"),
    "gravity in words": (lambda: build(gravity="ear"), "gravity is"),
    "half precision": (
        lambda: build(dtype=torch.float16),
        "'robot' was asked for in torch.float16",
    ),
    "integers": (lambda: build(dtype=torch.int64), "'robot' was asked for in torch.int64"),
    "nothing": (lambda: pairs(links=""), "'robot' has no moving joint"),
    "nothing moves": (lambda: build(kind="fixed"), "'robot' has no moving joint"),
    "twin links": (lambda: pairs(("a", None), links="aa"), "two links are named 'a'"),
    "twin joints": (twins, "two joints are named 'twin'"),
    "twin of the root": (rooted_twice, "two joints are named 'root_joint'"),
    "cycle": (lambda: pairs(("a", "b"), ("b", "a")), "cycle.*a.*b"),
    "own parent": (lambda: pairs(("a", "a")), "'a'.*own parent"),
    "two parents": (lambda: pairs(("c", "a"), ("c", "b"), links="abc"), "'c' has two parents"),
}

MECH = random_mechanism(["revolute", "free"], [-1, 0], seed=1)
Q, QD = MECH.random_state(2, generator=torch.Generator().manual_seed(0))

CALLS = {
    "short q": (lambda: ts.mass_matrix(MECH, Q[..., :-1]), r"q has shape \[2, 7\]"),
    "q for qd": (lambda: ts.bias_force(MECH, Q, Q), r"qd has shape \[2, 8\]"),
    "no batch": (lambda: ts.mass_matrix(MECH, Q[0, 0]), r"q has shape \[\]"),
    "qdd": (lambda: ts.inverse_dynamics(MECH, Q, QD, QD[..., 1:]), r"qdd has shape \[2, 6\]"),
    "tau": (lambda: ts.forward_dynamics(MECH, Q, QD, QD[..., 1:]), r"tau has shape \[2, 6\]"),
    "f_ext": (lambda: ts.inverse_dynamics(MECH, Q, QD, QD, QD), r"f_ext has shape \[2, 7\]"),
    "single": (lambda: ts.mass_matrix(MECH, Q.float()), "q is torch.float32.*torch.float64"),
    "passive": (lambda: ts.passive_force(MECH, QD, QD), r"q has shape \[2, 7\]"),
    "assemble": (lambda: ts.assemble(MECH, QD), r"q has shape \[2, 7\]"),
    "integrate": (lambda: ts.integrate(MECH, Q, Q), r"step has shape \[2, 8\]"),
    "difference": (lambda: ts.difference(MECH, Q, QD), r"end has shape \[2, 7\]"),
    "kinematics": (lambda: ts.forward_kinematics(MECH, QD), r"q has shape \[2, 7\]"),
    "jacobian": (lambda: ts.frame_jacobian(MECH, QD, ["body0"]), r"q has shape \[2, 7\]"),
    "solve": (
        lambda: ts.innovations(ts.assemble(MECH, Q)).solve(Q),
        "length 8 was given where the model has 7",
    ),
    "frame": (lambda: ts.frame_pose(MECH, Q, ["bodyO"]), "frame.*'bodyO'"),
    "body": (lambda: MECH.body_index("bodyO"), "body.*'bodyO'"),
    "joint": (lambda: MECH.joint_index("jointl"), "joint.*'jointl'"),
    "dofs": (lambda: MECH.dof_slice("jointl"), "joint.*'jointl'"),
    "replace field": (lambda: MECH.replace(masses=MECH.mass), "field.*'masses'"),
    "replace number": (lambda: MECH.replace(mass=1.0), "mass was given as float"),
    "replace shape": (lambda: MECH.replace(mass=MECH.com), r"mass has shape \[2, 3\]"),
    "replace dtype": (lambda: MECH.replace(mass=MECH.mass.float()), "mass is torch.float32"),
    "replace device": (lambda: MECH.replace(mass=MECH.mass.to("meta")), "mass is on meta"),
    "to half": (lambda: MECH.to(torch.bfloat16), "asked for in torch.bfloat16"),
}


@pytest.mark.parametrize(
    ("call", "what"), (DESCRIPTIONS | CALLS).values(), ids=DESCRIPTIONS | CALLS
)
def test_bad_input_is_named(call, what):
    with pytest.raises(ts.TorchskoError, match=f"(?s){what}") as error:
        call()
    lines = str(error.value).splitlines()
    assert len(lines) >= 2, "an error says what to type, too"
    assert all(line.strip() for line in lines)


@pytest.mark.parametrize(
    "name", ["TreeError", "ShapeError", "MechanismError", "RobotFileError", "FusedError"]
)
def test_every_error_can_be_caught_as_one_kind(name):
    assert issubclass(getattr(ts, name), ts.TorchskoError)
    assert issubclass(ts.TorchskoError, ValueError)
