"""`fuse`: a mechanism's dynamics, or any function of it, as kernels compiled for it.

The kernels are traced from the eager functions (`torchsko.verbs.dynamics` and friends) with the numbers of
the mechanism as constants, so zeros and ones fold; parameters named in ``inputs`` stay inputs, with
gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TypeVar, cast, overload

from torchsko.errors import FusedError
from torchsko.fused.functions.traits import TraceContext
from torchsko.fused.fused_call import FusedCall
from torchsko.fused.fused_layer import FusedLayer, FusedLayerCall, workshop_of
from torchsko.fused.fused_mechanism import FusedMechanism
from torchsko.fused.workshop import Eager, Workshop
from torchsko.mechanism.dispatch import (
    MechanismLayer,
    MechanismLike,
    as_mechanism,
    provides_mechanism,
)

T = TypeVar("T")


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

    A function is traced for one sample, and its kernel runs on each sample of a batch by itself: ``qd`` in
    it is `[num_dof]`, and what looks across a batch (``qd.mean(0)``, ``qd[0]``) looks along the joints of
    one sample instead. Compute what samples share outside, and pass it as an argument.

    Kernels are built when first called, within seconds, and kept on disk (see
    `torchsko.fused.build.library_cache.cache_directory`). Without a C++ compiler the eager
    functions run, after a warning.

    Args:
        target: a mechanism; a layer, whose learned values stay inputs, read at each call, and get
            gradients; or an eager function, a bound method or a module, whose first argument is a mechanism.
        mech: with a function: the mechanism to compile it for, or a layer, which is read at each call, as
            a layer alone. Another object that gives a mechanism is read once.
        inputs: parameters of the mechanism (names of its tensors, such as "mass" or "damping") that
            stay inputs: `replace` changes them without a new build, and gradients reach them. All
            others are constants of the kernels. Parameters with batch dimensions are inputs anyway.
        shapes: with a function: shapes, for one sample, of its arguments. Known by their names are those of
            q, q0, qs, start, end, q_target (`[num_q]`), of qd, qdd, tau, step, x (`[num_dof]`), of f_ext
            (`[num_bodies, 6]`), of dt, and of the mechanism's parameters; others have to be given.
        order: derivatives up to this order are kernels too, each built when first asked for, within
            seconds; those of higher order run eagerly.

    Returns:
        For a mechanism or a layer an object with the verbs of `torchsko` (`FusedMechanism`); for a
        function another of the same arguments, less the mechanism.

    Raises:
        FusedError: arguments in another order, an unknown parameter or name in shapes, a parameter that
            requires a gradient but is no input, an argument of unknown shape, random numbers drawn in a
            function, numbers of a wider type than the mechanism's made in it, or a tensor from outside of
            it that cannot be an input.

    Tensors of real numbers that a function reads from elsewhere (a closure, a module's parameters and
    buffers, a global, the object of a bound method) are inputs, read anew at each call, and gradients
    reach them: a policy may train. Integer tensors, Python numbers and texts, arrays of NumPy, functions and
    objects, and how many entries a list or a dict has, as far as its text names them (``net.scale``), are
    constants: where one is another by now, the next call makes kernels anew, which takes seconds, and the
    logger ``torchsko`` says so. What it reads of files and ``os.environ`` is as it was when traced. Keep in
    tensors of real numbers what changes often. A function that changes a number each time that it runs is
    refused. Random numbers cannot be drawn within: pass them as an argument. One value of what is captured
    serves the whole batch. Numbers of narrower types are computed in the mechanism's.

    A function may simulate: `torchsko.rollout` of a few steps under a feedback law becomes one kernel. It
    may solve: `torch.linalg.solve`, ``inv``, ``det`` and ``lu_factor`` of up to 16 rows, ``cholesky``,
    ``solve_triangular`` and `torch.cholesky_solve` are written out; a matrix that is singular gives numbers
    that are not finite. A function that takes long, as whole-body control does, has a kernel of its own for
    one or two samples, built when they first come: it takes half of the other's time for them.

    Example:
        >>> import torch, torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> fast = ts.fuse(arm)
        >>> q, qd = arm.random_state(1000)
        >>> qdd = fast.forward_dynamics(q, qd, torch.zeros_like(qd))
        >>> torch.allclose(qdd, ts.forward_dynamics(arm, q, qd, torch.zeros_like(qd)))
        True
    """
    _check_choices(inputs, order)
    if provides_mechanism(target) and mech is not None:
        raise FusedError(
            f"fuse() got a {type(target).__name__} first, and {type(mech).__name__} as its mechanism.",
            "The function to fuse comes first; a mechanism alone has its verbs fused.",
            "Call ts.fuse(fn, mech), or ts.fuse(mech).",
        )
    target, mech = _layer_itself(target), _layer_itself(mech)
    if provides_mechanism(target):
        return kernels_of_robot(cast(MechanismLike, target), inputs, order)
    if mech is None:
        raise FusedError(
            "fuse() got a function and no mechanism.",
            "Kernels are compiled for one mechanism.",
            "Call ts.fuse(fn, mech).",
        )
    if isinstance(mech, MechanismLayer):
        workshop = workshop_of(mech, inputs, order)
        return FusedLayerCall(cast(Eager, target), workshop, mech, shapes or {})
    robot = as_mechanism(mech)
    return FusedCall(cast(Eager, target), Workshop(robot, inputs, order), robot, shapes or {})


def kernels_of_robot(
    given: MechanismLike, inputs: Sequence[str], order: int = 2, around: TraceContext = nullcontext
) -> FusedMechanism:
    """The verbs of a mechanism or a layer as kernels.

    Args:
        given: the mechanism or the layer.
        inputs: see `fuse`.
        order: likewise.
        around: makes a context to trace in.
    """
    if isinstance(given, MechanismLayer):
        return FusedLayer(workshop_of(given, inputs, order, around), given)
    robot = as_mechanism(given)
    return FusedMechanism(Workshop(robot, inputs, order, around), robot)


def _layer_itself(given: T) -> T | MechanismLayer:
    """The layer whose kernels were given: what it learns is read from it; all else as it is."""
    return given.layer if isinstance(given, FusedLayer) else given


def _check_choices(inputs: Sequence[str], order: int) -> None:
    if isinstance(inputs, str):
        raise FusedError(
            f"inputs={inputs!r} is one text, whose letters would be names.",
            "Inputs are several names, of parameters of the mechanism.",
            f"Call ts.fuse(..., inputs=({inputs!r},)).",
        )
    if type(order) is not int or order < 0:
        raise FusedError(
            f"order={order!r} is no number of derivatives.",
            "Derivatives up to this order are kernels, those of higher order eager functions.",
            "Call ts.fuse(..., order=2), say; order=0 for values alone.",
        )
