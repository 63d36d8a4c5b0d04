"""Contestant frax (JAX), jitted and mapped over the batch; XLA uses all cores that the process may use.

Quaternion base, with MuJoCo's velocities: linear in the inertial frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from cases import Case, Entry, MissingPeerError, tangent
from torch import Tensor

from peers.conventions import Convention
from peers.native import array

NAME = "frax (JAX)"


def enter(case: Case) -> list[Entry]:
    """All verbs; the VJP by jax.vjp."""
    try:
        import frax
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise MissingPeerError("not installed (pip install frax)") from None
    free, mech = case.robot.floating_base, case.robot.mech
    # Its constants are doubles, which under x64 would make every result one.
    precision = jax.enable_x64(case.dtype == torch.float64)
    names = [name for name in mech.joint_names if not (free and name == "root_joint")]
    with precision:
        robot = frax.Robot(
            str(case.robot.path),
            joint_ordering=names,
            floating_base="quaternion" if free else None,
        )
    if list(robot.joint_names[robot.nv_floating :]) != names:
        raise MissingPeerError("it orders joints otherwise")
    convention = Convention(case, world=True)
    gravity = np.concatenate([-mech.gravity.numpy(), np.zeros(3)])

    def inverse(q: Any, v: Any, a: Any) -> Any:
        return robot.rnea(q, v, a, jnp.asarray(gravity, dtype=q.dtype), None)

    def forward(q: Any, v: Any, tau: Any) -> Any:
        return robot.forward_dynamics(q, v, tau, None)

    def pulled(q: Any, v: Any, tau: Any, cotangent: Any) -> Any:
        qdd, pullback = jax.vjp(forward, q, v, tau)
        return (qdd, *pullback(cotangent))

    def entry(verb: str, fn: Callable[..., Any], *given: Tensor) -> Entry:
        with jax.enable_x64(case.dtype == torch.float64):
            inputs = [jnp.asarray(array(x.to(case.dtype))) for x in given]
        compiled = jax.jit(jax.vmap(fn))

        def run() -> Any:
            with jax.enable_x64(case.dtype == torch.float64):
                return jax.block_until_ready(compiled(*inputs))

        def ours(result: Any) -> tuple[Tensor, ...]:
            parts = result if isinstance(result, tuple) else (result,)
            found = [torch.from_numpy(np.array(x))[case.checked].double() for x in parts]
            if verb != "forward_vjp":
                return getattr(convention, verb)(found[0])
            dq, dqd, dtau = convention.gradients(*found[1:])
            q = case.q[case.checked].double()
            return (*convention.forward(found[0]), tangent(mech, q, dq), dqd, dtau)

        return Entry(NAME, verb, run, ours, autodiff=verb == "forward_vjp")

    state = (case.q, convention.velocity)
    return [
        entry("inverse", inverse, *state, convention.accel),
        entry("forward", forward, *state, convention.force),
        entry("mass_matrix", robot.mass_matrix, case.q),
        entry("forward_vjp", pulled, *state, convention.force, convention.cotangent),
    ]
