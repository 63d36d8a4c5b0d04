"""Force laws of the actuators of a compiled MuJoCo model, as gains, biases and activations.

PID loops and DC motors are separate types in MuJoCo. Without a state and with one control u, their force is
affine in the length l of the transmission. The force of a PID loop is kp (u - l) - kd dl/dt if u is a
position. It is kd (u - dl/dt) - kp l if u is a rate, and u - kp l - kd dl/dt if u is a force. The built-in
controller of a DC motor compensates the back-EMF, so its force is that of the loop. Under voltage control it
is K / R (u - K dl/dt).

Reference: MuJoCo documentation, "XML reference" (actuator/general, actuator/pid, actuator/dcmotor).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchsko.mechanism.file_data.actuator import ACTIVATIONS, Activation, Affine
from torchsko.utils.optional_dependencies import require

FIXED, AFFINE = 0, 1
"""MuJoCo's types of gains and biases; a fixed bias is zero (mjtGain, mjtBias)."""

RESISTANCE, CONSTANT, KP, KD, MAX_VOLTAGE = 0, 1, 4, 6, 7
"""Indices of a DC motor's parameters in its gain; the constant is both torque and back-EMF constant."""

COGGING = 0
"""Index of the cogging amplitude in a DC motor's bias."""

ZERO: Affine = (0.0, 0.0, 0.0)

UNKNOWN_LAW = "its law is that of a muscle, a user function, or another type of MuJoCo: not modeled"


@dataclass(frozen=True)
class Law:
    """Force law of an actuator, in the terms of `torchsko.actuators.Actuator`.

    Attributes:
        gain: force per control: constant, per length, per rate.
        bias: force independent of the control: constant, per length, per rate.
        activation: dynamics of the activation.
    """

    gain: Affine
    bias: Affine
    activation: Activation = "none"


def law_of(model: Any, i: int) -> Law | str:
    """The law of an actuator, or the reason why it is not modeled."""
    gain, bias, dyn = (int(getattr(model, f"actuator_{x}type")[i]) for x in ("gain", "bias", "dyn"))
    if gain <= AFFINE and bias <= AFFINE and dyn < len(ACTIVATIONS):
        kind: Activation = ACTIVATIONS[dyn]  # type: ignore[assignment]
        return Law(_gain(model, i), _bias(model, i), kind)
    kinds = require("mujoco", "mjcf")
    if not hasattr(kinds, "mjtCtrlInput"):  # older versions use other units of gains
        return UNKNOWN_LAW
    if (gain, bias) == (_number(kinds.mjtGain, "mjGAIN_PID"), AFFINE):
        what, law = "a PID loop", _pid_law
    elif (gain, bias) == (
        _number(kinds.mjtGain, "mjGAIN_DCMOTOR"),
        _number(kinds.mjtBias, "mjBIAS_DCMOTOR"),
    ):
        what, law = "a DC motor", _dc_motor_law
    else:
        return UNKNOWN_LAW
    if int(model.actuator_actnum[i]):
        return f"it is {what} with a state: not modeled"
    if int(model.actuator_ctrlnum[i]) != 1:
        return f"it is {what} with {int(model.actuator_ctrlnum[i])} controls: only one is modeled"
    return law(model, i)


def _pid_law(model: Any, i: int) -> Law | str:
    """A proportional-derivative loop."""
    bias = _bias(model, i)
    return _servo_law(model, i, -bias[1], -bias[2], bias)


def _dc_motor_law(model: Any, i: int) -> Law | str:
    """A DC motor without inductance."""
    gain = [float(x) for x in model.actuator_gainprm[i]]
    if model.actuator_biasprm[i][COGGING] or gain[MAX_VOLTAGE]:
        return "it is a DC motor with cogging or a voltage limit: not modeled"
    if "mjINPUT_VOLTAGE" == _input(model, i):
        rate = gain[CONSTANT] / gain[RESISTANCE]
        return Law((rate, 0.0, 0.0), (0.0, 0.0, -rate * gain[CONSTANT]))
    return _servo_law(model, i, gain[KP], gain[KD], (0.0, -gain[KP], -gain[KD]))


def _servo_law(model: Any, i: int, kp: float, kd: float, bias: Affine) -> Law | str:
    """A loop whose control is a position, a rate or a force."""
    gains = {"mjINPUT_POS": kp, "mjINPUT_VEL": kd, "mjINPUT_FF": 1.0}
    control = _input(model, i)
    if control not in gains:
        return "the type of its control is unknown: not modeled"
    return Law((gains[control], 0.0, 0.0), bias)


def _input(model: Any, i: int) -> str:
    """MuJoCo's name for the type of an actuator's control; empty if it has several."""
    names = require("mujoco", "mjcf").mjtCtrlInput.__members__
    return next((n for n, x in names.items() if int(x) == int(model.actuator_ctrlspec[i])), "")


def _number(kinds: Any, name: str) -> int:
    """The number of a type; -1 if this version of MuJoCo does not have it."""
    return int(kinds.__members__[name]) if name in kinds.__members__ else -1


def _gain(model: Any, i: int) -> Affine:
    if int(model.actuator_gaintype[i]) == AFFINE:
        return _three(model.actuator_gainprm[i])
    return float(model.actuator_gainprm[i][0]), 0.0, 0.0


def _bias(model: Any, i: int) -> Affine:
    return _three(model.actuator_biasprm[i]) if int(model.actuator_biastype[i]) == AFFINE else ZERO


def _three(x: Any) -> Affine:
    a, b, c = map(float, x[:3])
    return a, b, c
