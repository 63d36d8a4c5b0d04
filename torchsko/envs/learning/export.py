"""Policies as files for other programs: TorchScript, ONNX, and NumPy with MuJoCo."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

from torchsko.envs.learning.policy import EPSILON, Policy
from torchsko.envs.learning.run_folder import write
from torchsko.utils.optional_dependencies import require

RUNNER = '''"""Run the policy in MuJoCo, with NumPy alone. Adapt `observe` to your task."""
from pathlib import Path

import numpy as np

W = np.load(Path(__file__).with_name("policy.npz"))


def act(x):
    x = (x - W["mean"]) / W["std"]
    for k in range(W["layers"]):
        x = x @ W[f"weight{k}"].T + W[f"bias{k}"]
        x = np.where(x > 0, x, np.expm1(np.minimum(x, 0)))  # ELU, then normalization of the layer
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + W["epsilon"])
        x = x * W[f"scale{k}"] + W[f"shift{k}"]
    u = np.tanh(x @ W["weight"].T + W["bias"])
    return W["low"] + (W["high"] - W["low"]) * 0.5 * (1 + u)


def observe(data):
    return np.r_[data.qpos, data.qvel][-len(W["mean"]) :]  # as in most tasks of Gymnasium


if __name__ == "__main__":
    import mujoco

    model = mujoco.MjModel.from_xml_path(str(Path(__file__).with_name("robot.xml")))
    data = mujoco.MjData(model)
    for _ in range(1000):
        data.ctrl[:] = act(observe(data))
        mujoco.mj_step(model, data, int(W["frame_skip"]))
    print("position after 1000 control steps:", data.qpos)
'''


def save_torchscript(path: Path, policy: Policy) -> None:
    """Write a TorchScript module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        script = torch.jit.trace(policy, policy.normalizer.mean[None])
        write(path, lambda new: torch.jit.save(script, str(new)))


def save_numpy(path: Path, policy: Policy, frame_skip: int) -> None:
    """Write the weights as ``.npz``, and a program beside it that needs NumPy and MuJoCo alone."""
    normalizer = policy.normalizer
    linear = [x for x in policy.mu if isinstance(x, nn.Linear)]
    norms = [x for x in policy.mu if isinstance(x, nn.LayerNorm)]
    arrays = {
        "mean": normalizer.mean, "std": (normalizer.var + EPSILON).sqrt(),
        "low": policy.low, "high": policy.high,
        "weight": linear[-1].weight, "bias": linear[-1].bias,
    }  # fmt: skip
    for k, (layer, norm) in enumerate(zip(linear[:-1], norms, strict=True)):
        arrays |= {f"weight{k}": layer.weight, f"bias{k}": layer.bias}
        arrays |= {f"scale{k}": norm.weight, f"shift{k}": norm.bias}
    content = {name: x.detach().cpu().numpy() for name, x in arrays.items()}
    content |= {"layers": np.array(len(norms)), "epsilon": np.array(norms[0].eps)}
    content["frame_skip"] = np.array(frame_skip)
    write(path, lambda new: np.savez(new, **content))
    write(path.with_name("run_policy.py"), lambda new: new.write_text(RUNNER))


def save_onnx(path: Path, policy: Policy) -> None:
    """Write an ONNX model with a batch of any size.

    Raises:
        MissingExtraError: if onnx and onnxscript are not installed.
    """
    for module in ("onnx", "onnxscript"):
        require(module, "onnx")
    example = policy.normalizer.mean.expand(2, -1).clone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            policy, (example,), str(path), input_names=["observation"], output_names=["action"],
            dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False, external_data=False,
        )  # fmt: skip
