"""Findings: problems and remarks about a log or a fit, as data with a code and a severity.

A check is a function that takes a context and yields findings. Checks run once on the raw log, once before
the fit and once after it. A finding of severity "error" stops the fit, unless the caller chooses otherwise:
`torchsko.identification.identify` takes ``on_findings={"code": "ignore" | "warn" | "raise"}``, and the
command line takes ``--ignore CODE``. Reports list all other findings by severity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from torchsko.errors import FitError, unknown_name

Severity = Literal["error", "warning", "note"]
Action = Literal["ignore", "warn", "raise"]
Context = TypeVar("Context")

ACTIONS = ("ignore", "warn", "raise")

CODES: Mapping[str, tuple[Severity, str]] = {
    # Errors: the log contradicts the robot, and a fit of it would be meaningless.
    "bursts": ("error", "Times are receive times that come in bursts."),
    "sample_rate": ("error", "The sampling rate is below 5 Hz or above 30 kHz."),
    "force_above_limit": ("error", "The median force of a joint exceeds 5 times its effort limit."),
    "position_range": ("error", "A joint moves over more than 4 times the range of its limits."),
    "velocity_scale": ("error", "Velocities differ from the derivative of positions by a factor."),
    "velocity_column": ("error", "Velocities of a joint do not match its positions."),
    "quaternion_convention": ("error", "Velocities do not match the orientations of a joint."),
    "no_motion": ("error", "No joint moves more than the noise of its position sensor."),
    "support_force": ("error", "A floating base is supported, but the log has no support force."),
    "force_scale": ("error", "All forces differ from the nominal robot's by a factor or in sign."),
    "joint_force_scale": ("error", "Forces of one joint differ by a factor that no mass explains."),
    "wrong_unit": ("error", "The nominal robot explains the log better in another unit."),
    # Warnings: results may be wrong.
    "force_unit": ("warning", "All forces match the nominal robot better in another unit."),
    "wrong_zero": ("warning", "The nominal robot explains the log better with another zero."),
    "wrong_sign": ("warning", "The nominal robot explains the log better with another sign."),
    "delay": ("warning", "Forces are delayed relative to positions."),
    "joint_force_unit": ("warning", "The forces of one joint differ from the nominal robot's."),
    "negative_friction": ("warning", "Friction of a joint would have to drive it."),
    "coupled_force": (
        "warning",
        "Forces of coupled joints are missing from the joint they follow.",
    ),
    "coupled_position": ("warning", "Positions of a coupled joint do not follow its coupling."),
    "low_sample_rate": ("warning", "The sampling rate is low for the bandwidth of the motion."),
    "beyond_limits": ("warning", "A joint moves beyond the limits of the robot's file."),
    "unmodeled_force": ("warning", "The robot's file has forces that the model does not have."),
    "missing_force": ("warning", "The force of a moving joint was not measured."),
    "unknown_constant": ("warning", "The log does not determine the torque constant of a joint."),
    "zero_force": ("warning", "A joint has no force, but the nominal robot needs one."),
    "constant_force": ("warning", "The force of a joint never changes."),
    "joint_at_rest": ("warning", "A joint with dry friction is at rest for part of the log."),
    "physical_gap": ("warning", "Physical inertias predict a force worse than least squares."),
    "changed_mass": ("warning", "A fitted mass differs from the nominal one by a factor of two."),
    "unpredicted_force": ("warning", "The fit does not predict the force of a joint."),
    "position_noise_bias": ("warning", "Noise of positions biases the estimates."),
    "not_converged": ("warning", "The iterations stopped before they converged."),
    "interrupted": ("warning", "The user interrupted the selection of terms."),
    # Notes: how the data were treated, and the limits of the result.
    "unidentifiable": ("note", "The log determines only combinations of these parameters."),
    "unobserved": ("note", "No force in the log depends on these parameters."),
    "zero_coefficient": ("note", "The coefficient of a requested term is zero."),
    "term_remark": ("note", "A fitted term needs an explanation."),
    "torque_constants": ("note", "Torque constants were estimated from motor currents."),
    "static_joint": ("note", "A joint does not move, so its friction cannot be identified."),
    "repeated_motion": ("note", "The motion of the log is periodic."),
    "unmeasured_force": ("note", "The force at a floating base was not measured."),
    "ignored_coupled_force": ("note", "Measured forces of coupled joints are not used."),
    "unphysical_inertia": ("note", "A nominal inertia is not physical and was replaced."),
    "rotor_body": ("note", "A rotor without mass was replaced by a body of small mass."),
    "shooting": ("note", "Number of windows, and noise, of multiple shooting."),
    "residual_sample": ("note", "Residuals were computed for a part of the log."),
    "gaps": ("note", "The log has gaps in time."),
    "short_pieces": ("note", "Pieces between gaps are too short for the filter."),
    "outliers": ("note", "Forces contain outliers."),
    "invalid_positions": ("note", "Positions or velocities are missing or are outliers."),
    "repeated_samples": ("note", "A slow sensor repeats its positions."),
    "saturated_forces": ("note", "Forces are at the limit of the drive."),
    "unwrapped_angles": ("note", "Angles were unwrapped."),
}
"""Default severity and meaning of each code, the most important first."""


@dataclass(frozen=True)
class Finding:
    """A problem or a remark about a log or a fit.

    Attributes:
        code: a key of `CODES`.
        severity: "error", "warning" or "note".
        joints: names of the joints (or bodies) that it is about.
        message: a sentence with names and values.
        advice: an action that helps; empty if there is none.
        reason: why the finding matters; empty if it is obvious.
    """

    code: str
    severity: Severity
    joints: tuple[str, ...]
    message: str
    advice: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return " ".join(x for x in (self.message, self.reason, self.advice) if x)


class FindingError(FitError):
    """A finding that stops the fit; `code` names it."""

    def __init__(self, finding: Finding, log: str) -> None:
        self.finding, self.log, self.code = finding, log, finding.code
        override = (
            f'To fit anyway: on_findings={{"{finding.code}": "warn"}} or --ignore {finding.code}.'
        )
        super().__init__(
            f"{log}: {finding.message}", finding.reason, f"{finding.advice} {override}".strip()
        )

    def __reduce__(self) -> tuple[type[FindingError], tuple[Finding, str]]:
        return FindingError, (self.finding, self.log)


Check = Callable[[Context], Iterable[Finding]]


def finding(
    code: str, message: str, advice: str = "", *, joints: Iterable[str] = (), reason: str = ""
) -> Finding:
    """A finding with the default severity of its code."""
    return Finding(code, CODES[code][0], tuple(joints), message, advice, reason)


def check_actions(actions: Mapping[str, Action]) -> None:
    """Check the option `on_findings`.

    Raises:
        FitError: an unknown code or action.
    """
    for code, action in actions.items():
        if code not in CODES:
            raise FitError(*unknown_name("finding", code, tuple(CODES)))
        if action not in ACTIONS:
            raise FitError(
                f"on_findings[{code!r}] is {action!r}.",
                "The action decides what happens to findings with this code.",
                f"Pass one of {', '.join(map(repr, ACTIONS))}.",
            )


def collect(
    checks: Sequence[Check[Context]], context: Context, actions: Mapping[str, Action], log: str
) -> list[Finding]:
    """Run checks, and apply the caller's choice of action to each finding.

    Args:
        checks: functions of the context.
        context: the data that they examine.
        actions: by code; by default errors raise, and all other findings are returned.
        log: name of the log, for error messages.

    Raises:
        FindingError: at the first finding whose action is "raise".
    """
    return apply_actions((x for check in checks for x in check(context)), actions, log)


def apply_actions(
    findings: Iterable[Finding], actions: Mapping[str, Action], log: str
) -> list[Finding]:
    """Raise, keep or drop findings; see `collect`."""
    kept = []
    for each in findings:
        action = actions.get(each.code, "raise" if each.severity == "error" else "keep")
        if action == "raise":
            raise FindingError(each, log)
        if action != "ignore":
            kept.append(replace(each, severity="warning") if action == "warn" else each)
    return kept


def by_importance(findings: Iterable[Finding]) -> list[Finding]:
    """Findings in the order of `CODES`, those raised to a higher severity first."""
    severities, codes = ("error", "warning", "note"), list(CODES)
    return sorted(findings, key=lambda x: (severities.index(x.severity), codes.index(x.code)))
