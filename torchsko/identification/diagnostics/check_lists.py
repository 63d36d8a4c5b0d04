"""The lists of checks: of the raw log, before the fit, and after it."""

from __future__ import annotations

from torchsko.identification.diagnostics import (
    changed_masses,
    coupled_joints,
    fit_quality,
    force_delay,
    force_scale,
    hypothesis_search,
    log_quality,
    missing_forces,
    quaternion_convention,
    unit_checks,
    velocity_checks,
)

RAW_LOG_CHECKS = (
    unit_checks.bursts,
    unit_checks.sample_rate,
    unit_checks.force_above_limit,
    unit_checks.position_range,
    velocity_checks.velocity_scale,
    velocity_checks.velocity_column,
    quaternion_convention.quaternion_convention,
)
"""Checks of the log as it was measured."""

CHECKS_BEFORE_FIT = (
    log_quality.no_motion,
    missing_forces.support_force,
    coupled_joints.coupled_position,
    coupled_joints.coupled_force,
    force_scale.force_scale,
    hypothesis_search.inconsistent_log,
    force_scale.negative_friction,
    force_delay.force_delay,
    log_quality.nominal_inertia,
    log_quality.unmodeled_force,
    log_quality.static_joint,
    log_quality.torque_constants,
    missing_forces.unmeasured_force,
    missing_forces.zero_force,
    log_quality.low_sample_rate,
    log_quality.beyond_limits,
    log_quality.repeated_motion,
    log_quality.faulty_samples,
)
"""Checks of the prepared problem, in the order in which a wrong log is best explained."""

CHECKS_AFTER_FIT = (
    fit_quality.zero_coefficient,
    fit_quality.unpredicted_force,
    fit_quality.physical_gap,
    changed_masses.changed_mass,
    fit_quality.constant_force,
    fit_quality.joint_at_rest,
    fit_quality.term_remark,
    fit_quality.identifiability,
    fit_quality.position_noise_bias,
)
"""Checks of the finished fit."""
