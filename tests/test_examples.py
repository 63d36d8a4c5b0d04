"""The examples run as scripts from any folder and print what they promise."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def run(name, folder, *options):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *options],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_fits_on_a_page(script):
    assert len(script.read_text().splitlines()) < 110


def test_01_differentiates(tmp_path):
    out = run("01_load_and_differentiate.py", tmp_path)
    assert "reverse and forward mode agree" in out


def test_02_identifies_down_to_the_noise(tmp_path):
    pytest.importorskip("mujoco")
    out = run("02_identify.py", tmp_path, "--steps", "100", "--out", str(tmp_path / "new"))
    assert (tmp_path / "new" / "identify.png").stat().st_size > 10_000
    held_out = out.split("torque error, held out")[1].splitlines()[2:9]
    for line in held_out:
        _, noise, start, identified = line.split()
        assert float(identified) - float(noise) < 0.25 * (float(start) - float(noise)), line


def test_03_factors(tmp_path):
    assert "log det against torch.logdet" in run("03_innovations.py", tmp_path)


@pytest.mark.nightly
def test_04_rolls_out_and_tunes(tmp_path):
    out = run("04_rollouts.py", tmp_path, "--arms", "16", "--steps", "20", "--iterations", "3")
    assert (tmp_path / "rollouts.png").stat().st_size > 10_000
    errors = [float(line.split()[-2]) for line in out.splitlines() if "iteration" in line]
    assert errors[-1] < errors[0]


@pytest.mark.nightly
def test_19_makes_a_coupler_point_follow_a_line(tmp_path):
    out = run("19_four_bar_synthesis.py", tmp_path)
    first, last = map(float, re.findall(r"([\d.]+) mm", out))
    assert last < first / 4


@pytest.mark.nightly
def test_11_sways_on_its_feet(tmp_path):
    pytest.importorskip("mujoco")
    out = run("11_whole_body.py", tmp_path, "--seconds", "0.2", "--rate", "200")
    assert float(re.search(r"([\d.]+) mm largest error", out)[1]) < 1.0
    assert (tmp_path / "whole_body.png").stat().st_size > 10_000


@pytest.mark.nightly
def test_09_makes_a_report_of_a_log(tmp_path):
    for needed in ("mujoco", "scipy", "matplotlib"):
        pytest.importorskip(needed)
    out = run("09_log_to_report.py", tmp_path, "--out", str(tmp_path / "new"))
    assert (tmp_path / "new" / "report.html").stat().st_size > 100_000
    before, after = re.search(
        r"base parameters: ([0-9.]+) % before, ([0-9.]+) % after", out
    ).groups()
    assert float(after) < 0.2 * float(before)
    inside, every = re.search(r"standard errors: (\d+) of (\d+)", out).groups()
    assert int(inside) >= 0.9 * int(every)


@pytest.mark.nightly
def test_07_computed_torque_is_exact_with_an_exact_model_and_adaptive_control_learns_the_tool(
    tmp_path,
):
    pytest.importorskip("mujoco")
    out = run("07_tracking.py", tmp_path, "--seconds", "4", "--out", str(tmp_path))
    assert (tmp_path / "tracking.png").stat().st_size > 10_000
    rows = re.findall(r"(exact model|unknown tool), (\w+): \S+ (\S+)", out)
    last = {(case, law): float(error) for case, law, error in rows}
    assert last["exact model", "computed_torque"] < 0.01 * last["exact model", "pd_control"]
    assert last["unknown tool", "computed_torque"] < last["unknown tool", "pd_control"]
    assert last["unknown tool", "adaptive_control"] < 0.1 * last["unknown tool", "computed_torque"]


@pytest.mark.nightly
def test_10_reaches_its_targets(tmp_path):
    options = ("--arms", "2", "--steps", "2", "--eager", "--out", str(tmp_path))
    out = run("10_ilqr.py", tmp_path, *options)
    assert (tmp_path / "ilqr.png").stat().st_size > 10_000
    assert "converged 2" in out


@pytest.mark.nightly
def test_13_learns_policies(tmp_path):
    sizes = ("--iterations", "3", "--steps", "4", "--batch", "2", "--eager")
    out = run("13_policies.py", tmp_path, *sizes, "--out", str(tmp_path / "new"))
    assert (tmp_path / "new" / "policies.png").stat().st_size > 10_000
    assert len(re.findall(r"(\S+) untrained, (\S+) trained", out)) == 2


@pytest.mark.nightly
def test_13_balances_and_reaches_from_new_starts(tmp_path):
    out = run("13_policies.py", tmp_path, "--out", str(tmp_path))
    (_, balance, worst), (untrained, reach, _) = re.findall(
        r"(\S+) untrained, (\S+) trained, worst (\S+)", out
    )
    assert float(balance) <= float(worst) < 0.02
    assert float(reach) < 0.1 * float(untrained)


@pytest.mark.nightly
def test_14_swings_up(tmp_path):
    out = run("14_swing_up.py", tmp_path, "--out", str(tmp_path))
    assert (tmp_path / "swing_up.png").stat().st_size > 10_000
    first, second = re.search(r"best: (\S+) and (\S+) degrees", out).groups()
    assert abs(float(first)) < 5 and abs(float(second)) < 5
    end, upright = re.search(r"(\S+) J at the end, (\S+) J upright", out).groups()
    assert abs(float(end) - float(upright)) < 0.02 * float(upright)


@pytest.mark.nightly
def test_14_improves_torques(tmp_path):
    sizes = ("--iterations", "2", "--steps", "14", "--guesses", "2", "--eager")
    out = run("14_swing_up.py", tmp_path, *sizes, "--out", str(tmp_path))
    assert (tmp_path / "swing_up.png").stat().st_size > 10_000
    assert "J upright" in out


@pytest.mark.nightly
def test_15_plans_at_each_step(tmp_path):
    sizes = ("--seconds", "0.16", "--horizon", "3", "--eager")
    out = run("15_predictive_control.py", tmp_path, *sizes, "--out", str(tmp_path))
    assert (tmp_path / "predictive_control.png").stat().st_size > 10_000
    assert re.search(r"one plan of 3 steps: median \S+ ms", out)


@pytest.mark.nightly
def test_08_is_a_spring(tmp_path):
    pytest.importorskip("mujoco")
    out = run("08_impedance.py", tmp_path, "--out", str(tmp_path))
    assert (tmp_path / "impedance.png").stat().st_size > 10_000
    assert "converged True" in out
    aside, spring = (float(x) for x in re.findall(r"([0-9.]+) mm", out)[:2])
    assert abs(aside - spring) < 0.01 * spring
    assert float(re.findall(r"released: ([0-9.]+) mm", out)[0]) < 0.01 * spring


@pytest.mark.nightly
def test_16_draws_an_eight_both_ways(tmp_path):
    pytest.importorskip("mujoco")
    out = run("16_along_a_curve.py", tmp_path, "--seconds", "0.3", "--out", str(tmp_path / "new"))
    assert (tmp_path / "new" / "along_a_curve.png").stat().st_size > 10_000
    errors = re.findall(r"hand ([0-9.]+) mm error", out)
    assert len(errors) == 2 and all(float(x) < 0.5 for x in errors)


@pytest.mark.nightly
def test_18_finds_friction_and_spin(tmp_path):
    pytest.importorskip("mujoco")
    out = run("18_friction_from_sliding.py", tmp_path, "--out", str(tmp_path))
    rows = re.findall(r"\w+ (-?[\d.]+) \(true (-?[\d.]+)\)", out)
    assert len(rows) == 2
    assert all(abs(float(found) / float(true) - 1) < 0.03 for found, true in rows)
    assert (tmp_path / "friction_from_sliding.png").stat().st_size > 10_000


@pytest.mark.nightly
def test_20_equals_mujoco(tmp_path):
    pytest.importorskip("mujoco")
    out = run("20_contact_beside_mujoco.py", tmp_path)
    assert float(re.search(r"in 300 steps: (\S+)", out)[1]) < 1e-10
    assert (tmp_path / "contact_beside_mujoco.png").stat().st_size > 10_000


@pytest.mark.nightly
def test_21_stands_with_its_weight_on_its_feet(tmp_path):
    out = run("21_pushed_quadruped.py", tmp_path)
    force, weight = map(float, re.search(r"robot: ([\d.]+) N, weight ([\d.]+) N", out).groups())
    assert abs(force / weight - 1) < 0.01
    assert 0 < int(re.search(r"stand at the end: (\d+)", out)[1]) < 16
    assert (tmp_path / "pushed_quadruped.png").stat().st_size > 10_000


@pytest.mark.nightly
def test_22_pushes_to_the_targets(tmp_path):
    pytest.importorskip("mujoco")
    errors = re.findall(r"error ([\d.]+) mm", run("22_push_to_target.py", tmp_path))
    assert float(errors[-1]) < 0.1 * float(errors[0])
    assert (tmp_path / "push_to_target.png").stat().st_size > 10_000


@pytest.mark.nightly
def test_23_lifts_boxes_by_friction(tmp_path):
    pytest.importorskip("mujoco")
    out = run("23_gripper.py", tmp_path)
    lifts, needed = (float(re.search(rf"{x} ([\d.]+)", out)[1]) for x in ("lifts", "at rest"))
    assert needed < lifts < needed + 0.04
    assert (tmp_path / "gripper.png").stat().st_size > 10_000


@pytest.mark.nightly
def test_24_squats_as_in_mujoco(tmp_path):
    for needed in ("mujoco", "pinocchio"):
        pytest.importorskip(needed)
    out = run("24_cassie_squat.py", tmp_path)
    assert 8 < float(re.search(r"squat ([\d.]+) cm", out)[1]) < 14
    assert (
        float(re.search(r"after a step (\S+) m", out)[1]) < 2e-8
    )  # the file's axes differ by 1e-8
    assert float(re.search(r"from MuJoCo ([\d.]+) mm", out)[1]) < 0.5
    assert (tmp_path / "cassie_squat.png").stat().st_size > 10_000


@pytest.mark.nightly
def test_25_trains_a_policy_and_tests_it_in_mujoco(tmp_path):
    for needed in ("gymnasium", "matplotlib", "viser"):
        pytest.importorskip(needed)
    sizes = ("--task", "InvertedPendulum-v5", "--updates", "40", "--envs", "32")
    out = run("25_hopper_by_shac.py", tmp_path, *sizes)
    here, there = map(float, re.search(r"return ([\d.]+) here, ([\d.]+) in MuJoCo", out).groups())
    assert here > 900 and there > 900
    assert (tmp_path / "InvertedPendulum-v5-1" / "rollout.gif").stat().st_size > 10_000


@pytest.mark.nightly
def test_26_trains_a_robot_of_a_urdf_file(tmp_path):
    pytest.importorskip("mujoco")
    out = run("26_task_from_urdf.py", tmp_path, "--updates", "2", "--envs", "4")
    here, there = (
        float(re.search(rf"return (-?[\d.]+) \(least \S+\) {x}", out)[1])
        for x in ("of 10", "in MuJoCo, nominal")
    )
    assert abs(here - there) < 1.0
    assert (tmp_path / "cart_pole" / "report.json").stat().st_size > 100


@pytest.mark.nightly
def test_27_differentiates_returns_by_the_friction(tmp_path):
    pytest.importorskip("mujoco")
    out = run("27_gradients_to_parameters.py", tmp_path)
    assert float(re.search(r"(-?[\d.]+) per unit of friction", out)[1]) < -20
    assert (tmp_path / "gradients_to_parameters.png").stat().st_size > 10_000


@pytest.mark.nightly
def test_28_swings_up_without_training(tmp_path):
    pytest.importorskip("mujoco")
    out = run("28_mppi.py", tmp_path)
    assert float(re.search(r"first, ([\d.]+) rad", out)[1]) < 0.2


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("script", "needed", "result"),
    [
        ("29_ppo_through_gymnasium.py", "gymnasium", r": (\d+) at first, (\d+)"),
        ("30_sac_of_torchrl.py", "torchrl", r"return (\d+) at first, (\d+)"),
    ],
)
def test_29_and_30_train_by_other_libraries(script, needed, result, tmp_path):
    pytest.importorskip(needed)
    first, last = map(float, re.search(result, run(script, tmp_path)).groups())
    assert last > 10 * first


@pytest.mark.nightly
def test_31_learns_to_stay_upright(tmp_path):
    for needed in ("mujoco", "matplotlib"):
        pytest.importorskip(needed)
    out = run("31_quadruped_commands.py", tmp_path, "--updates", "20", "--envs", "16")
    here, there = map(float, re.search(r"return (-?\d+) here, (-?\d+) in MuJoCo", out).groups())
    assert abs(here - there) < 0.1 * abs(here)
    assert (tmp_path / "quadruped_commands.png").stat().st_size > 10_000


@pytest.mark.nightly
def test_32_jumps_as_planned_in_mujoco(tmp_path):
    pytest.importorskip("mujoco")
    out = run("32_quadruped_jump.py", tmp_path)
    assert "converged True" in out and float(re.search(r"violation (\S+) N", out)[1]) < 1e-4
    assert float(re.search(r"rise ([\d.]+) cm", out)[1]) > 2
    moved, height, tilt = map(
        float, re.search(r"moves ([\d.]+) m.*at ([\d.]+) m.*by ([\d.]+) rad", out).groups()
    )
    assert abs(moved - 0.5) < 0.15 and 0.25 < height < 0.32 and tilt < 0.1


@pytest.mark.nightly
def test_33_steps_of_all_lengths(tmp_path):
    out = run("33_biped_step.py", tmp_path)
    assert "32 of 32 converged" in out and float(re.search(r"violation (\S+),", out)[1]) < 2e-4
    assert float(re.search(r"within ([\d.]+) mm", out)[1]) < 0.2


@pytest.mark.nightly
def test_34_spins_a_beam_up(tmp_path):
    out = run("34_beam_spin_up.py", tmp_path)
    stable, unstable = (float(line.split()[-2]) for line in out.splitlines()[:2])
    assert stable < 0.1 and unstable > 1


@pytest.mark.nightly
def test_35_identifies_stiffness_from_tip_motion(tmp_path):
    out = run("35_flexible_arm_stiffness.py", tmp_path)
    rows = re.findall(r"(\w+) +of \S+ +([\d.]+) +([\d.]+)", out)
    assert len(rows) == 8
    for field, nominal, found in rows:
        error = abs(float(found) - 1)
        assert error < (0.03 if field == "stiffness" else 0.9 * abs(float(nominal) - 1))


@pytest.mark.nightly
def test_36_leaves_no_vibration(tmp_path):
    out = run("36_slew_without_vibration.py", tmp_path)
    bang, best = (float(x) for x in re.findall(r"energy at the end (\S+) J", out))
    assert best < 1e-3 * bang
    bang, best = (float(x) for x in re.findall(r"tip up to ([\d.]+) mm", out))
    assert best < 0.05 * bang
