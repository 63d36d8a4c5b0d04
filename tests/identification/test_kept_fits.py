"""A fit on disk that is not whole, or not its robot's, is refused by the name of its file."""

import shutil
import warnings

import pytest
import torch

import torchsko as ts
from tests.identification.test_fit import arm, friction, log_of
from torchsko.identification.friction import Viscous


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of a fit."""
    truth, nominal = arm()
    log, _ = log_of(truth, friction, seconds=6.0)
    options = {"joint_terms": [Viscous()], "cutoff": 8.0, "method": "ols"}
    folder = tmp_path_factory.mktemp("kept")
    ts.identification.identify(nominal, log, **options).save(folder)
    return folder


def other(data, name, value):
    return {**data, name: value}


CHANGES = {
    "no phi": (lambda d: {k: x for k, x in d.items() if k != "phi"}, "KeyError 'phi'"),
    "no joints": (lambda d: {k: x for k, x in d.items() if k != "joints"}, "KeyError 'joints'"),
    "an entry too many": (lambda d: other(d, "info", {**d["info"], "x": 1}), "TypeError.*'x'"),
    "no mapping": (lambda d: [1, 2], "is not a fit"),
    "a version in words": (
        lambda d: other(d, "version", "3"),
        "has the format version '3', this torchsko needs 7",
    ),
    "few numbers": (lambda d: other(d, "phi", d["phi"][:10]), r"phi has shape \[10\], not \[30\]"),
    "no numbers": (lambda d: other(d, "phi", d["phi"] * float("nan")), "phi is not finite"),
    "words": (lambda d: other(d, "phi", "x"), "AttributeError"),
    "few terms": (
        lambda d: other(d, "terms", d["terms"][:2]),
        "do not have one row for each of 3 dofs",
    ),
    "few rows": (lambda d: other(d, "numbers", d["numbers"][:2]), "numbers do not have one row"),
    "another's joints": (lambda d: other(d, "joints", ["a", "b", "c"]), "its joints are a, b, c"),
    "less than nothing": (
        lambda d: other(d, "mechanism", {**d["mechanism"], "mass": -d["mechanism"]["mass"]}),
        "a mass of its mechanism robot is negative",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_an_incomplete_fit_file_is_refused_by_name(folder, tmp_path, what):
    change, match = CHANGES[what]
    shutil.copytree(folder, tmp_path / "fit")
    data = torch.load(folder / "fit.pt", weights_only=True)
    torch.save(change(data), tmp_path / "fit" / "fit.pt")
    with pytest.raises(ts.FitError, match=f"(?s){match}") as error:
        ts.identification.Fit.load(tmp_path / "fit")
    said = str(error.value)
    assert "fit.pt" in said.splitlines()[0] and said.count("\n") == 2


@pytest.mark.parametrize("content", [b"", b"nothing", b"PK\x03\x04"])
def test_other_files_are_refused_by_name(folder, tmp_path, content):
    shutil.copytree(folder, tmp_path / "fit")
    (tmp_path / "fit" / "fit.pt").write_bytes(content)
    with pytest.raises(ts.FitError, match=r"fit\.pt is not a fit"):
        ts.identification.Fit.load(tmp_path / "fit")


def test_a_robot_file_edited_by_hand_has_a_warning_and_the_fit_is_used(folder, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = ts.identification.Fit.load(folder)
    shutil.copytree(folder, tmp_path / "fit")
    robot = tmp_path / "fit" / "robot.urdf"
    edited = ts.load(robot)
    mass = edited.mass * torch.tensor([1.0, 1.5, 1.0], dtype=edited.dtype)
    ts.save(edited.replace(mass=mass), robot, like=robot, overwrite=True)
    with pytest.warns(ts.RobotFileWarning, match=f"mass of body {edited.body_names[1]!r}"):
        again = ts.identification.Fit.load(tmp_path / "fit")
    assert torch.equal(again.mechanism.mass, fit.mechanism.mass)


def test_a_fit_of_a_planar_base_is_saved_and_its_losses_stay_in_the_fit(tmp_path):
    builder = ts.MechanismBuilder("mobile")
    builder.link(
        "base", mass=20.0, com=(0.05, 0, 0.1), inertia=[[1, 0, 0], [0, 1.2, 0], [0, 0, 1.5]]
    )
    builder.joint("wheels", "planar", child="base", axis=(0, 0, 1))
    truth = builder.build()
    losses = torch.tensor([5.0, 4.0, 3.0], dtype=truth.dtype)
    t = torch.arange(2000, dtype=truth.dtype)[:, None] / 100
    w = torch.tensor([0.5, 0.9, 1.3], dtype=t.dtype)
    q, qd, qdd = (w * t).sin(), w * (w * t).cos(), -w * w * (w * t).sin()
    tau = ts.inverse_dynamics(truth.replace(damping=losses), q, qd, qdd)
    log = ts.identification.Log(t[:, 0].numpy(), q.numpy(), tau.numpy(), qd=qd.numpy())
    robot = tmp_path / "nominal.urdf"
    ts.save(truth, robot)
    fit = ts.identification.identify(ts.load(robot), log, joint_terms=[Viscous()])
    with pytest.warns(ts.RobotFileWarning, match="damping of wheels 5, 4, 3"):
        fit.save(tmp_path / "fit", like=robot)
    again = ts.identification.Fit.load(tmp_path / "fit")
    assert torch.equal(again.mechanism.damping, fit.mechanism.damping)
    assert torch.equal(ts.load(tmp_path / "fit" / "robot.urdf").mass, fit.mechanism.mass)
