"""`python -m torchsko train` and `play`: options, files of users, and errors without tracebacks."""

from pathlib import Path

import pytest

from torchsko.cli.main import main
from torchsko.cli.train import parse_option

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "26_task_from_urdf.py"


def test_values_of_options_are_python_literals_or_text():
    assert parse_option("horizon=16") == ("horizon", 16)
    assert parse_option("actor_units=(64, 64)") == ("actor_units", (64, 64))
    assert parse_option("model=robot.xml") == ("model", "robot.xml")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("train", "Hoper-v5", "--out", "DIR"), "Hopper-v5"),
        (("train", "absent.py:Task", "--out", "DIR"), "absent.py"),
        (("train", "Hopper-v5", "--out", "DIR", "--set", "horizon"), "OPTION=VALUE"),
        (("train", "Hopper-v5", "--out", "DIR", "--set", "horizons=3"), "horizons"),
        (("play", "DIR"), "no settings.json"),
    ],
)
def test_a_wrong_word_is_named(words, text, tmp_path, capsys):
    pytest.importorskip("gymnasium")
    words = [str(tmp_path) if word == "DIR" else word for word in words]
    assert main(words) == 2
    assert text in capsys.readouterr().err


@pytest.mark.nightly
def test_a_task_of_a_file_is_trained_and_shown(tmp_path, capsys):
    for needed in ("mujoco", "matplotlib"):
        pytest.importorskip(needed)
    task, folder = f"{EXAMPLE}:CartPole", str(tmp_path / "run")
    words = ["--updates", "2", "--num-envs", "4", "--set", "horizon=4", "--set", "episode_length=9"]
    assert main(["train", task, "--out", folder, "--algo", "ppo", *words]) == 0
    gif = tmp_path / "a.gif"
    assert main(["play", folder, "--env", task, "--gif", str(gif)]) == 0
    assert "in 9 steps" in capsys.readouterr().out and gif.stat().st_size > 1000
