"""The law of one actuator of a compiled MuJoCo model, as gains, biases and an activation.

PID loops and DC motors have types of their own. Without a state, and of one control u, their force is affine,
with the length l of the transmission: of a loop kp (u - l) - kd dl/dt, kd (u - dl/dt) - kp l, or u - kp l -
kd dl/dt, as u is a position, a rate or a force. A DC motor's own controller compensates the back-EMF, so its
force is that of the loop; commanded by its voltage it is K / R (u - K dl/dt).

Reference: MuJoCo documentation, "XML reference" (actuator/general, actuator/pid, actuator/dcmotor).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchsko.actuation.actuator import ACTIVATIONS, Activation, Affine
from torchsko.utils.optional_dependencies import require

FIXED, AFFINE = 0, 1
"""MuJoCo's types of gains, and of biases, where fixed is none (mjtGain, mjtBias)."""

RESISTANCE, CONSTANT, KP, KD, MOST_VOLTAGE = 0, 1, 4, 6, 7
"""Where a DC motor's parameters stand in its gain's; the constant is that of torque and of back-EMF."""

COGGING = 0
"""Where the amplitude of its cogging stands in its bias's."""

NONE: Affine = (0.0, 0.0, 0.0)

OTHER = "its law is that of a muscle, a user, or another of MuJoCo's own: not modelled"


@dataclass(frozen=True)
class Law:
    """What an actuator does, in the words of `torchsko.Actuator`.

    Attributes:
        gain: force per control: constant, per length, per rate.
        bias: force besides: constant, per length, per rate.
        activation: how the control acts.
    """

    gain: Affine
    bias: Affine
    activation: Activation = "none"


def law_of(model: Any, i: int) -> Law | str:
    """The law of an actuator, or why it is none of ours.

    Args:
        model: ``mujoco.MjModel``.
        i: its number.
    """
    gain, bias, dyn = (int(getattr(model, f"actuator_{x}type")[i]) for x in ("gain", "bias", "dyn"))
    if gain <= AFFINE and bias <= AFFINE and dyn < len(ACTIVATIONS):
        kind: Activation = ACTIVATIONS[dyn]  # type: ignore[assignment]
        return Law(_gain(model, i), _bias(model, i), kind)
    kinds = require("mujoco", "mjcf")
    if not hasattr(kinds, "mjtCtrlInput"):  # before there were signatures, gains had other units
        return OTHER
    if (gain, bias) == (_number(kinds.mjtGain, "mjGAIN_PID"), AFFINE):
        what, law = "a PID loop", _pid_law
    elif (gain, bias) == (
        _number(kinds.mjtGain, "mjGAIN_DCMOTOR"),
        _number(kinds.mjtBias, "mjBIAS_DCMOTOR"),
    ):
        what, law = "a DC motor", _dc_motor_law
    else:
        return OTHER
    if int(model.actuator_actnum[i]):
        return f"it is {what} with a state of its own: not modelled"
    if int(model.actuator_ctrlnum[i]) != 1:
        return f"it is {what} with {int(model.actuator_ctrlnum[i])} controls: those of one are modelled"
    return law(model, i)


def _pid_law(model: Any, i: int) -> Law | str:
    """A proportional and derivative loop."""
    bias = _bias(model, i)
    return _servo_law(model, i, -bias[1], -bias[2], bias)


def _dc_motor_law(model: Any, i: int) -> Law | str:
    """A DC motor without inductance."""
    gain = [float(x) for x in model.actuator_gainprm[i]]
    if model.actuator_biasprm[i][COGGING] or gain[MOST_VOLTAGE]:
        return "it is a DC motor that cogs, or limits its own voltage: not modelled"
    if "mjINPUT_VOLTAGE" == _input(model, i):
        rate = gain[CONSTANT] / gain[RESISTANCE]
        return Law((rate, 0.0, 0.0), (0.0, 0.0, -rate * gain[CONSTANT]))
    return _servo_law(model, i, gain[KP], gain[KD], (0.0, -gain[KP], -gain[KD]))


def _servo_law(model: Any, i: int, kp: float, kd: float, bias: Affine) -> Law | str:
    """A loop whose one control is a position, a rate or a force."""
    gains = {"mjINPUT_POS": kp, "mjINPUT_VEL": kd, "mjINPUT_FF": 1.0}
    given = _input(model, i)
    if given not in gains:
        return "its control is none that is known: not modelled"
    return Law((gains[given], 0.0, 0.0), bias)


def _input(model: Any, i: int) -> str:
    """MuJoCo's name of what the control of an actuator is; empty where it is of several kinds."""
    names = require("mujoco", "mjcf").mjtCtrlInput.__members__
    return next((n for n, x in names.items() if int(x) == int(model.actuator_ctrlspec[i])), "")


def _number(kinds: Any, name: str) -> int:
    """The number of a type; one that no actuator has where a version of MuJoCo has none of that name."""
    return int(kinds.__members__[name]) if name in kinds.__members__ else -1


def _gain(model: Any, i: int) -> Affine:
    if int(model.actuator_gaintype[i]) == AFFINE:
        return _three(model.actuator_gainprm[i])
    return float(model.actuator_gainprm[i][0]), 0.0, 0.0


def _bias(model: Any, i: int) -> Affine:
    return _three(model.actuator_biasprm[i]) if int(model.actuator_biastype[i]) == AFFINE else NONE


def _three(x: Any) -> Affine:
    a, b, c = map(float, x[:3])
    return a, b, c
