"""Every bad input has one error: it names what is wrong, says why, and says what to type."""

import math
import pickle
import subprocess
import sys

import pytest
import torch

import torchsko as ts
from tests.strategies import random_mechanism

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


def matrix(*diagonal: float, off: float = 0.0) -> list[list[float]]:
    a, b, c = diagonal
    return [[a, off, 0.0], [0.0, b, 0.0], [0.0, 0.0, c]]


DESCRIPTIONS = {
    "unknown kind": (lambda: build(kind="screw"), "'elbow' has the unknown kind 'screw'"),
    "unknown data": (lambda: build(dampng=1.0), "'elbow' has the unknown keyword 'dampng'"),
    "damping in words": (lambda: build(damping="oil"), "damping of joint 'elbow' is 'oil'"),
    "mass in words": (lambda: build(mass="heavy"), "mass of link 'elbow_link' is 'heavy'"),
    "scalar axis": (lambda: build(axis=1.0), "axis of joint 'elbow' has 1 comp"),
    "unknown parent": (
        lambda: build(parent="nobody"),
        "'elbow': its parent link 'nobody' does not exist",
    ),
    "empty parent": (lambda: build(parent=""), "'elbow': its parent link '' does not exist"),
    "unknown child": (
        lambda: build(child="nobody"),
        "'elbow': its child link 'nobody' does not exist",
    ),
    "negative mass": (lambda: build(mass=-1.0), "'elbow_link': the mass is -1.0"),
    "nan mass": (lambda: build(mass=NAN), "'elbow_link': mass, .* not finite"),
    "infinite mass": (lambda: build(mass=INF), "'elbow_link': mass, .* not finite"),
    "nan center": (lambda: build(com=(NAN, 0, 0)), "'elbow_link': .*center of mass.* not finite"),
    "flat center": (lambda: build(com=(0, 0)), "com of link 'elbow_link' has 2 components"),
    "nan inertia": (lambda: build(inertia=matrix(NAN, 1, 1)), "'elbow_link': .* not finite"),
    "flat inertia": (lambda: build(inertia=[[1, 0], [0, 1]]), "inertia of link 'elbow_link' has 2"),
    "diagonal": (
        lambda: build(inertia=(1, 1, 1)),
        "inertia of link 'elbow_link' is a row(.|\n)*xx",
    ),
    "diagonal tensor": (
        lambda: build(inertia=torch.ones(3)),
        "inertia of link 'elbow_link' is a row",
    ),
    "triangle": (lambda: build(inertia=matrix(1, 1, 5)), "'elbow_link': .*triangle inequality"),
    "negative inertia": (lambda: build(inertia=matrix(-1, 1, 1)), "'elbow_link': .*negative"),
    "skew inertia": (lambda: build(inertia=matrix(1, 1, 1, off=0.5)), "'elbow_link'.*symmetric"),
    "inertia frame": (lambda: build(inertia_rotation=matrix(2, 1, 1)), "'elbow_link'.*rotation"),
    "nan inertia frame": (lambda: build(inertia_rotation=matrix(NAN, 1, 1)), "'elbow_link'.*rota"),
    "stretch": (lambda: build(rotation=matrix(2, 1, 1)), "rotation of joint 'elbow' is not"),
    "mirror": (lambda: build(rotation=matrix(-1, 1, 1)), "rotation of joint 'elbow' is not"),
    "nan rotation": (lambda: build(rotation=matrix(NAN, 1, 1)), "rotation of joint 'elbow' is not"),
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
    "ends of a ball": (
        lambda: build(kind="spherical", upper=0.5),
        "'elbow' is spherical and has the limits",
    ),
    "negative speed": (lambda: build(velocity=-1), "'elbow' has the velocity limit -1"),
    "nan effort": (lambda: build(effort=NAN), "'elbow' has the effort limit nan"),
    "flat gravity": (lambda: build(gravity=(0, -9.81)), "gravity is"),
    "nan gravity": (lambda: build(gravity=(0, 0, NAN)), "gravity is"),
    "scalar gravity": (lambda: build(gravity=-9.81), "gravity is"),
    "gravity in words": (lambda: build(gravity="ear"), "gravity is"),
    "half precision": (
        lambda: build(dtype=torch.float16),
        "torch.float16 is not a dtype",
    ),
    "integers": (lambda: build(dtype=torch.int64), "torch.int64 is not a dtype for 'robot'"),
    "nothing": (lambda: pairs(links=""), "'robot' has no moving joint"),
    "nothing moves": (lambda: build(kind="fixed"), "'robot' has no moving joint"),
    "twin links": (lambda: pairs(("a", None), links="aa"), "2 links are named 'a'"),
    "twin joints": (twins, "2 joints are named 'twin'"),
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
    "no state": (lambda: ts.mass_matrix(MECH, None), "q was given as NoneType"),
    "no frames": (lambda: ts.frame_pose(MECH, Q, []), "names no frames"),
    "no frame's Jacobian": (lambda: ts.frame_jacobian(MECH, Q, []), "names no frames"),
    "a frame by itself": (lambda: ts.frame_pose(MECH, Q, "flange"), "no frame is named 'flange'"),
    "a joint for a frame": (
        lambda: ts.frame_pose(MECH, Q, MECH.joint_names[0]),
        f"{MECH.joint_names[0]!r} is a joint, which moves body {MECH.body_names[0]!r}",
    ),
    "a body for a joint": (
        lambda: MECH.q_slice(MECH.body_names[0]),
        f"{MECH.body_names[0]!r} is a body, moved by joint {MECH.joint_names[0]!r}",
    ),
    "a robot's name": (lambda: ts.load("panda"), r"torchsko\.robots\.find\('panda'\)"),
    "tuple of batch": (lambda: MECH.random_state((2, 3)), r"dimensions \(2, 3\)"),
    "batch in words": (lambda: MECH.random_state("many"), "dimensions 'many'"),
    "negative batch": (lambda: MECH.random_state(-2), "dimensions -2"),
    "type in words": (lambda: MECH.to("float32"), "'float32' is not a device"),
    "type in words at load": (
        lambda: ts.load(ts.robots.panda, dtype="float32"),
        "'float32' is not a dtype",
    ),
    "no device": (lambda: ts.load(ts.robots.panda, device="gpu"), "'gpu' is not a device"),
    "learn by list": (lambda: ts.Dynamics(MECH, ["body1"]), r"learn=\['body1'\] has no"),
    "learn by name": (lambda: ts.Dynamics(MECH, "body1"), "learn='body1' has no"),
    "to half": (lambda: MECH.to(torch.bfloat16), "torch.bfloat16 is not a dtype"),
}


@pytest.mark.parametrize(
    ("call", "what"), (DESCRIPTIONS | CALLS).values(), ids=DESCRIPTIONS | CALLS
)
def test_bad_input_is_named(call, what):
    with pytest.raises(ts.TorchskoError, match=f"(?s){what}") as error:
        call()
    check_fields(error.value)


def check_fields(error: ts.TorchskoError) -> None:
    """The text is made of the fields, and pickling preserves them."""
    fields = [x for x in (error.what, error.why, error.advice) if x]
    assert str(error) == "\n".join(fields)
    assert len(str(error).splitlines()) >= 2, "an error has advice"
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and str(copy) == str(error)


@pytest.mark.parametrize(
    "name", ["TreeError", "ShapeError", "MechanismError", "RobotFileError", "FusedError"]
)
def test_every_error_can_be_caught_as_one_kind(name):
    assert issubclass(getattr(ts, name), ts.TorchskoError)
    assert issubclass(ts.TorchskoError, ValueError)


# Advice is typed, not only read: what the last line of a message says runs, and cures the fault.

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex128]
NAMES = {"ts": ts, "torch": torch, "mech": MECH}


def advised(call) -> list[str]:
    """The expressions in the last line of the error that a call raises."""
    with pytest.raises(ts.TorchskoError) as error:
        call()
    line = str(error.value).splitlines()[-1].removesuffix(", say.")
    line = line.removesuffix(", for example.").removesuffix(".")
    verb, _, rest = line.partition(" ")
    assert verb in ("Pass", "Type")
    return rest.split(", or ")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_state_of_another_type_is_cured_as_the_error_says(dtype):
    q = Q.to(dtype)
    for advice in advised(lambda: ts.mass_matrix(MECH, q)):
        found = eval(advice, NAMES | {"q": q})
        if isinstance(found, ts.Mechanism):
            ts.mass_matrix(found, q)
        else:
            ts.mass_matrix(MECH, found)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_parameter_of_another_type_is_cured_as_the_error_says(dtype):
    mass = MECH.mass.to(dtype)
    for advice in advised(lambda: MECH.replace(mass=mass)):
        found = eval(advice, NAMES | {"mass": mass})
        if isinstance(found, ts.Mechanism):
            found.replace(mass=mass)
        else:
            MECH.replace(mass=found)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_fused_mechanism_has_an_error_about_types_whose_advice_works(dtype):
    q = Q.to(dtype)
    for advice in advised(lambda: ts.fuse(MECH).mass_matrix(q)):
        eval(advice.removeprefix("fuse "), NAMES | {"q": q})


def test_a_missing_state_is_cured_as_the_error_says():
    (advice,) = advised(lambda: ts.inverse_dynamics(MECH, Q, QD, None))
    ts.inverse_dynamics(MECH, Q, QD, eval(advice, NAMES))


def test_a_batch_given_as_a_tuple_is_cured_as_the_error_says():
    (advice,) = advised(lambda: MECH.random_state((2, 3)))
    assert eval(advice, NAMES)[0].shape[:-1] == (2, 3)


@pytest.mark.parametrize("learn", [["body1"], ("joint0.damping",), "gravity", {"body1"}, 3])
def test_targets_without_parametrizations_are_cured_as_the_error_says(learn):
    (advice,) = advised(lambda: ts.Dynamics(MECH, learn))
    mech = MECH.replace(damping=torch.ones_like(MECH.damping))
    ts.Dynamics(mech, eval(advice.removeprefix("learn="), NAMES))


@pytest.mark.parametrize("kind", [ts.learn.Bounded, ts.learn.Positive, torch.nn.Linear, 3])
def test_a_parametrization_that_is_no_module_is_cured_as_the_error_says(kind):
    advice, *_ = advised(lambda: ts.Dynamics(MECH, {"joint0.damping": kind}))
    learn = eval(advice.removesuffix(" with parentheses").removeprefix("learn="), NAMES)
    ts.Dynamics(MECH.replace(damping=torch.ones_like(MECH.damping)), learn)


def test_bounds_the_wrong_way_round_are_cured_as_the_error_says():
    for bounds in ((1.0, 1.0), (2.0, 1.0)):
        (advice,) = advised(lambda bounds=bounds: ts.learn.Bounded(*bounds))
        eval(f"ts.learn.{advice}", NAMES)


@pytest.mark.parametrize("name", ["qd", "f_ext"])
def test_batches_that_do_not_broadcast_are_cured_as_the_error_says(name):
    state = {"qd": QD[:1].expand(3, -1), "f_ext": Q.new_zeros(3, MECH.num_bodies, 6)}[name]
    with pytest.raises(ts.ShapeError) as error:
        ts.bias_force(MECH, **({"q": Q, "qd": QD} | {name: state}))
    advice = str(error.value).rpartition(": ")[2].removesuffix(".")
    cured = {"q": Q, "qd": QD} | {name: eval(advice, {name: state})}
    assert ts.bias_force(MECH, **cured).shape == (3, 2, MECH.num_dof)


def test_a_robot_in_which_nothing_moves_is_cured_as_the_error_says():
    builder = ts.MechanismBuilder("box").link("box", mass=1.0, inertia=EYE)
    with pytest.raises(ts.MechanismError, match="or pass floating_base=True"):
        builder.build()
    assert builder.build(floating_base=True).joint_kinds == ("free",)


def test_malformed_xml_is_found_by_the_command_of_the_error(tmp_path):
    file = tmp_path / "r.urdf"
    file.write_text("<robot")
    with pytest.raises(ts.RobotFileError) as error:
        ts.load(file)
    command = str(error.value).rpartition(" is ")[2].replace("FILE", str(file))
    command = command.replace("python", sys.executable, 1)
    run = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert run.returncode != 0 and "ExpatError" in run.stderr


@pytest.mark.parametrize("name", ["loop", "two parents"])
def test_errors_about_loops_do_not_advise_missing_functions(name):
    edges = {"loop": (("a", "b"), ("b", "a")), "two parents": (("c", "a"), ("c", "b"))}[name]
    with pytest.raises(ts.TreeError) as error:
        pairs(*edges, links="abc")
    assert "aggregate" not in str(error.value) and "constraint" not in str(error.value)
    pairs(edges[0], ("b", None), links="abc")


def test_an_error_lists_all_of_a_few_names():
    """Of an arm's frames the one that a stranger looks for is the last."""
    arm = ts.load(ts.robots.panda)
    with pytest.raises(ts.MechanismError) as caught:
        ts.frame_pose(arm, arm.middle(), "hand")
    for name in arm.frame_names:
        assert repr(name) in str(caught.value)
