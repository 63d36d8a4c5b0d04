"""`fuse`: a mechanism's dynamics, or any function of it, as kernels compiled for it.

The kernels are traced from the eager functions (`torchsko.verbs.dynamics` and friends) with the numbers of
the mechanism as constants, so zeros and ones fold; parameters named in ``inputs`` stay inputs, with
gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast, overload

from torchsko.errors import FusedError
from torchsko.fused.call import FusedCall
from torchsko.fused.layer import FusedLayer, Layer, workshop_of
from torchsko.fused.mechanism import FusedMechanism
from torchsko.fused.workshop import Eager, Workshop
from torchsko.mechanism.verb import MechanismLike, as_mechanism


@overload
def fuse(
    target: MechanismLike, mech: None = None, *, inputs: Sequence[str] = (), order: int = 2
) -> FusedMechanism: ...


@overload
def fuse(
    target: Eager,
    mech: MechanismLike,
    *,
    inputs: Sequence[str] = (),
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    order: int = 2,
) -> FusedCall: ...


def fuse(
    target: MechanismLike | Eager,
    mech: MechanismLike | None = None,
    *,
    inputs: Sequence[str] = (),
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    order: int = 2,
) -> FusedMechanism | FusedCall:
    """Compile a mechanism's dynamics, or a function of it, to one kernel a call.

    Kernels are built when first called, within seconds, and kept on disk (see
    `torchsko.fused.build.cache_directory`). Without a C++ compiler the eager functions run, after a
    warning.

    Args:
        target: a mechanism; a layer, whose learned values stay inputs, read at each call, and get
            gradients; or an eager function, a bound method or a module, whose first argument is a mechanism.
        mech: with a function: the mechanism to compile it for, or a layer.
        inputs: parameters of the mechanism (names of its tensors, such as "mass" or "damping") that
            stay inputs: `replace` changes them without a new build, and gradients reach them. All
            others are constants of the kernels. Parameters with batch dimensions are inputs anyway.
        shapes: with a function: shapes, for one sample, of its arguments that are not called q, qd,
            qdd, tau or f_ext.
        order: derivatives up to this order are kernels too, each built when first asked for, within
            seconds; those of higher order run eagerly.

    Returns:
        For a mechanism or a layer an object with the verbs of `torchsko` (`FusedMechanism`); for a
        function another of the same arguments, less the mechanism.

    Raises:
        FusedError: an unknown parameter, one that requires a gradient but is no input, an argument
            of unknown shape, random numbers drawn in a function, or a tensor from outside of it that
            cannot be an input.

    Tensors of real numbers that a function reads from elsewhere (a closure, a module's parameters and
    buffers, a global, the object of a bound method) are inputs, read anew at each call, and gradients
    reach them: a policy may train. Python numbers, integer tensors and other objects are constants;
    where one of those through which tensors are reached is replaced, the next call says so. Random
    numbers cannot be drawn within: pass them as an argument. One value of what is captured serves the
    whole batch.

    A function may simulate: `torchsko.rollout` of a few steps under a feedback law becomes one kernel.

    Example:
        >>> import torch, torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> fast = ts.fuse(arm)
        >>> q, qd = arm.random_state(1000)
        >>> qdd = fast.forward_dynamics(q, qd, torch.zeros_like(qd))
        >>> torch.allclose(qdd, ts.forward_dynamics(arm, q, qd, torch.zeros_like(qd)))
        True
    """
    if hasattr(target, "learns"):
        layer = cast(Layer, target)
        return FusedLayer(workshop_of(layer, inputs, order), layer)
    if hasattr(target, "mechanism"):
        robot = as_mechanism(cast(MechanismLike, target))
        return FusedMechanism(Workshop(robot, inputs, order), robot)
    if mech is None:
        raise FusedError(
            "fuse() got a function and no mechanism.\nKernels are compiled for one mechanism.\n"
            "Call ts.fuse(fn, mech)."
        )
    robot = as_mechanism(mech)
    return FusedCall(cast(Eager, target), Workshop(robot, inputs, order), robot, shapes or {})
