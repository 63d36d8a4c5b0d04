"""`fuse`: a mechanism's dynamics, or a function of a mechanism, as kernels compiled for it.

The kernels are traced from the eager functions, such as `torchsko.forward_dynamics`. The mechanism's numbers
are constants of the program, where zeros and ones fold; parameters named in ``inputs`` stay inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TypeVar, cast, overload

from torchsko.errors import FusedError
from torchsko.fused.functions.traits import TraceContext
from torchsko.fused.fused_call import FusedCall
from torchsko.fused.fused_held import FusedHeldMechanism
from torchsko.fused.fused_mechanism import FusedMechanism
from torchsko.fused.workshop import Eager, workshop_of
from torchsko.integrators.finite_checks import NonFiniteChoice, check_nonfinite
from torchsko.mechanism.dispatch import (
    MechanismLayer,
    MechanismLike,
    as_mechanism,
    provides_mechanism,
)
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.held.held_mechanism import HeldMechanism

T = TypeVar("T")


@overload
def fuse(
    target: MechanismLike,
    mech: None = None,
    *,
    inputs: Sequence[str] = (),
    order: int = 2,
    verify: bool = True,
) -> FusedMechanism: ...


@overload
def fuse(
    target: HeldMechanism,
    mech: None = None,
    *,
    inputs: Sequence[str] = (),
    order: int = 2,
    verify: bool = True,
) -> FusedHeldMechanism: ...


@overload
def fuse(
    target: Eager,
    mech: MechanismLike,
    *,
    inputs: Sequence[str] = (),
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    order: int = 2,
    verify: bool = True,
    nonfinite: NonFiniteChoice = "ignore",
) -> FusedCall: ...


def fuse(
    target: MechanismLike | HeldMechanism | Eager,
    mech: MechanismLike | None = None,
    *,
    inputs: Sequence[str] = (),
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    order: int = 2,
    verify: bool = True,
    nonfinite: NonFiniteChoice = "ignore",
) -> FusedMechanism | FusedHeldMechanism | FusedCall:
    """Compile a mechanism's dynamics, or a function of it, to one kernel a call.

    A function is traced for one sample, and its kernel runs on each sample of a batch by itself: ``qd`` in
    it is `[num_dof]`, and what looks across a batch (``qd.mean(0)``, ``qd[0]``) looks along the joints of
    one sample instead. Compute what samples share outside, and pass it as an argument.

    Kernels are built when first called, within seconds, and kept on disk (see
    `torchsko.fused.build.library_cache.cache_directory`). Without a C++ compiler the eager
    functions run, after a warning.

    What a function captures, that is, reads from closures, globals, defaults, attributes and containers:

    * **Tensors and modules** are inputs, read at each call, with gradients: a policy may train. Integer
      tensors are constants. A tensor to which no path leads is refused.
    * **Python values** (numbers, texts, functions, arrays) are constants of the trace. At most about 10,000
      that attributes, closures and containers hold are compared at each call. After a change the function is
      traced again. If its program is the same, that value is ignored from then on; else new kernels are
      built, which takes seconds, with a warning of the logger ``torchsko``.
    * **Random draws** are refused.
    * For **all else**, such as a clock, a file or the state of an iterator, ``verify`` compares the results
      with the function's. ``fast.retrace()`` of the returned object traces again at the next call.

    A mechanism changed in place (``mech.mass.mul_(2)``) gets new kernels, too, on a CPU.

    Args:
        target: a mechanism; a constrained mechanism (`torchsko.constrain`);
            a layer, whose learned values stay inputs, read at each call, and get
            gradients; or an eager function, a bound method or a module, whose first argument is a mechanism.
        mech: with a function: the mechanism to compile it for, or a layer, which is read at each call, as
            a layer alone. Another object with a method ``mechanism`` is read once.
        inputs: parameters of the mechanism (names of its tensors, such as "mass" or "damping") that
            stay inputs: `replace` changes them without a new build, and gradients reach them. All
            others are constants of the kernels. Parameters with batch dimensions are always inputs.
        shapes: with a function: shapes, for one sample, of its arguments. Those of the mechanism's parameters
            and of arguments that verbs share (q, qd, qdd, tau, f_ext, ...) are known by their names
            (`torchsko.mechanism.state.SHAPES`); others have to be given.
        order: derivatives up to this order are kernels too, each built when first needed, within
            seconds; those of higher order run eagerly.
        verify: compare kernels of functions, and of controls in rollouts, with the eager function on one
            sample, at calls 1, 2, 4, 8, ... Each comparison takes one eager evaluation of a single sample,
            on the CPU. Comparisons that would take more than 0.1 s of processor time and 2 % of the process's
            time wait.
        nonfinite: with a function: what happens to samples whose results are not finite. "ignore": nothing.
            "zero": their results are constants, without gradients. "warn" and "raise": a warning or an error
            names the first one, where values can be read. In all cases a sample with zero cotangents has
            zero gradients: a mask of the loss is enough to keep it out of the gradients of shared parameters.

    Returns:
        For a mechanism or a layer an object with the verbs of `torchsko` (`FusedMechanism`); for a
        constrained mechanism one with the same methods; for a function another of
        the same arguments, less the mechanism.

    Raises:
        FusedError: the arguments, ``inputs`` or ``shapes`` are invalid. A parameter requires a gradient and
            is not an input. The function reads a value that is refused (see above), makes numbers of a
            wider dtype than the mechanism's, or captures a tensor that cannot be an input.

    One captured value serves the whole batch. Captured tensors of narrower types are promoted to the
    mechanism's. A function that changes a number each time that it runs, and depends on it, is refused.

    A function may simulate: `torchsko.rollout` of a few steps under a feedback law becomes one kernel. It
    may solve: `torch.linalg.solve`, ``inv``, ``det`` and ``lu_factor`` of up to 64 rows, ``cholesky``,
    ``solve_triangular`` and `torch.cholesky_solve` have kernels; a singular matrix gives numbers that are
    not finite. A long function, such as whole-body control, has a second kernel for one or two samples, which
    takes half of the first one's time for them; it is built when they first come.

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
    check_nonfinite(nonfinite)
    if mech is None and nonfinite != "ignore":
        raise FusedError(
            f"nonfinite={nonfinite!r} was given without a function.",
            "It applies to the results of functions; rollouts have an option of the same name.",
            "Call ts.fuse(fn, mech, nonfinite=...), or ts.rollout(..., nonfinite=...).",
        )
    if isinstance(target, HeldMechanism):
        kernels = kernels_of_robot(_layer_itself(target.source), inputs, order, verify=verify)
        return kernels.fuse_held(target)
    if provides_mechanism(target) and mech is not None:
        raise FusedError(
            f"fuse() got a {type(target).__name__} first, and {type(mech).__name__} as its mechanism.",
            "The function to fuse comes first; a mechanism alone has its verbs fused.",
            "Call ts.fuse(fn, mech), or ts.fuse(mech).",
        )
    target, mech = _layer_itself(target), _layer_itself(mech)
    if provides_mechanism(target):
        return kernels_of_robot(cast(MechanismLike, target), inputs, order, verify=verify)
    if mech is None:
        raise FusedError(
            "fuse() got a function and no mechanism.",
            "Kernels are compiled for one mechanism.",
            "Call ts.fuse(fn, mech).",
        )
    source = _source_of(mech)
    workshop, treatment = (
        workshop_of(source, inputs, order),
        {"verify": verify, "nonfinite": nonfinite},
    )
    return FusedCall(source, workshop, cast(Eager, target), shapes or {}, **treatment).prepare()


def kernels_of_robot(
    given: MechanismLike,
    inputs: Sequence[str],
    order: int = 2,
    around: TraceContext = nullcontext,
    *,
    verify: bool = True,
) -> FusedMechanism:
    """The verbs of a mechanism or a layer as kernels.

    Args:
        given: the mechanism or the layer.
        inputs: see `fuse`.
        order: see `fuse`.
        around: makes a context to trace in.
        verify: see `fuse`.
    """
    source = _source_of(given)
    return FusedMechanism(source, workshop_of(source, inputs, order, around), verify=verify)


def _source_of(given: MechanismLike) -> Mechanism | MechanismLayer:
    """A layer, which is read at each call, or the mechanism of another object."""
    return given if isinstance(given, MechanismLayer) else as_mechanism(given)


def _layer_itself(given: T) -> T | MechanismLayer:
    """The layer of kernels of a layer; any other object as it is."""
    layer = given.layer if isinstance(given, FusedMechanism) else None
    return given if layer is None else layer


def _check_choices(inputs: Sequence[str], order: int) -> None:
    if isinstance(inputs, str):
        raise FusedError(
            f"inputs={inputs!r} is a text.",
            "Inputs are a sequence of names of the mechanism's parameters.",
            f"Call ts.fuse(..., inputs=({inputs!r},)).",
        )
    if type(order) is not int or order < 0:
        raise FusedError(
            f"order={order!r} is not a number of derivatives.",
            "Derivatives up to this order are kernels, those of higher order eager functions.",
            "Pass a whole number: order=2, or order=0 for values alone.",
        )
