"""Identify the friction and the initial spin of a ball from its path on the floor, beside MuJoCo.

MuJoCo simulates a ball that is thrown on a floor with backspin, slides, and rolls. Gradients through the
steps of torchsko find its friction coefficient and its spin from positions with noise. Needs
pip install ".[mjcf,plot]".
"""

import matplotlib.pyplot as plt
import mujoco
import torch
from command_line import parse_options, save_figure

import torchsko as ts

TEXT = """<mujoco><option cone="elliptic" timestep="0.005"/><worldbody>
  <geom type="plane" size="5 5 1" friction="0.23"/><body name="ball" pos="0 0 0.0995"><freejoint/>
  <geom size="0.1" mass="0.5" friction="0.23"/></body></worldbody></mujoco>"""
TRUE = {"friction": 0.23, "spin": -6.0}  # 1, rad/s
SPEED, NOISE, STEPS = 1.5, 2e-4, 120  # m/s, m, 1


def measure():
    """Positions x of the ball in MuJoCo with noise, `[STEPS]`."""
    model = mujoco.MjModel.from_xml_string(TEXT)
    data, path = mujoco.MjData(model), []
    data.qvel[0], data.qvel[4] = SPEED, TRUE["spin"]
    for _ in range(STEPS):
        mujoco.mj_step(model, data)
        path.append(data.qpos[0])
    noise = torch.randn(STEPS, generator=torch.Generator().manual_seed(0))
    return torch.tensor(path, dtype=torch.float64) + NOISE * noise


def main():
    args = parse_options(__doc__)
    ball = ts.load(TEXT)
    contact, measured = ts.ContactModel.of(ball), measure()

    def one_step(mech, q, qd, friction):
        friction = friction[..., None, :] * torch.ones_like(contact.friction)
        state = ts.step(mech, ts.State(q, qd), contact=contact.replace(friction=friction))
        return state.q, state.qd

    print("Building the kernel of a step with contact ...", flush=True)
    fast = ts.fuse(one_step, ball, shapes={"q": (7,), "qd": (6,), "friction": (1,)})
    spin_axis, slide_axis = torch.eye(6, dtype=torch.float64)[[1, 3]]

    def path(parameters):
        friction, spin = parameters[:, None]
        q, qd, found = ball.initial(), spin * spin_axis + SPEED * slide_axis, []
        for _ in range(STEPS):
            q, qd = fast(q, qd, friction)
            found.append(q[0])
        return torch.stack(found)

    parameters = torch.tensor([0.1, 0.0], dtype=torch.float64)
    for k in range(6):  # Gauss-Newton steps
        J = torch.autograd.functional.jacobian(lambda x: path(x)[::4], parameters)
        error = (measured - path(parameters))[::4]
        parameters = parameters + torch.linalg.lstsq(J, error[:, None]).solution[:, 0]
        print(f"iteration {k}: rms error {1e3 * error.square().mean().sqrt():.3f} mm", flush=True)
    for (name, true), value in zip(TRUE.items(), parameters.tolist(), strict=True):
        print(f"{name} {value:.4f} (true {true})")
    t = contact.options.timestep * torch.arange(1, STEPS + 1)
    plt.plot(t, measured, ".", label="MuJoCo with noise")
    plt.plot(t, path(parameters), label="identified")
    plt.gca().set(xlabel="time [s]", ylabel="position [m]")
    plt.legend()
    save_figure(plt.gcf(), args.out / "friction_from_sliding.png", dpi=120)


if __name__ == "__main__":
    main()
