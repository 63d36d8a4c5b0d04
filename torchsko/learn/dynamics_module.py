"""`Dynamics`: a mechanism as an `nn.Module` with learnable, physically valid parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from torchsko.api.row import Row
from torchsko.api.rows import FUSIBLE, Verbs
from torchsko.bridge.singular_hinges import mark_singular_joints
from torchsko.errors import FusedError, MechanismError, TorchskoError
from torchsko.fused.automatic import PAYS, cost, kernels_for, rollout
from torchsko.fused.tracing.clean import has_saved_tensor_hooks, is_differentiated
from torchsko.learn.parametrized import assemble_field, assembly_plan, parametrize_target
from torchsko.learn.targets import default_parametrization, find_target, refuse_overlap
from torchsko.mechanism.dispatch import MechanismLayer, missing_attribute, provides_mechanism
from torchsko.mechanism.fields import FLAGS, PARAMETERS
from torchsko.mechanism.flexible.mode_factors import mode_groups
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.dtype import without_autocast
from torchsko.verbs.dynamics import forward_dynamics

if TYPE_CHECKING:
    from torchsko.fused.fused_mechanism import FusedMechanism


class Dynamics(nn.Module, Verbs, MechanismLayer):
    """Dynamics of a mechanism whose selected physical parameters are learnable.

    `mechanism()` returns a `Mechanism` with the current values, differentiable with respect to the
    parameters. Each method is the function of the same name, applied to that mechanism. Fixed values are
    buffers. Parameters and buffers follow ``.to`` and are part of ``state_dict``.

    Each parameter is an offset from the nominal value in the coordinates of its parametrization. Offsets
    start at zero, so weight decay pulls learned values towards the nominal robot.

    Args:
        mech: nominal mechanism; its tensors are copied and detached.
        learn: parametrization by target. Targets are a body ("link5": mass, center of mass and
            inertia together), a field of a body ("link5.mass", "link5.com") or of a joint
            ("joint4.damping", ".friction", ".friction_speed", ".offset", ".armature", ".stiffness",
            ".position", ".rotation"), the diagonal of the stiffness or damping of a flexible body or of an
            elastic joint ("beam_modes.modal_stiffness", ".modal_damping"), "gravity", "medium" and "wind".
            Parametrizations are those of `torchsko.learn`, or any module with ``forward`` and
            ``right_inverse`` as defined by `torch.nn.utils.parametrize`.
        fused: selects compiled kernels for the methods, including rollouts. True: from the first call. False:
            never. None: on a CPU, once the calls so far have cost about as much as the build (see
            `torchsko.fused.automatic`). A layer that is called within `torch.utils.checkpoint` before that
            stays eager, except for rollouts long enough to repay a build. Methods without a kernel run
            eagerly.

    Raises:
        MechanismError: when `mech` is not a `Mechanism`, or a target is unknown or has no parametrization.
            Also when a parametrization does not fit its target, an initial value is outside of its domain,
            or two targets set the same values.

    Example:
        >>> import torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> layer = ts.Dynamics(arm, learn={"link5": ts.learn.InertiaLogCholesky(),
        ...                                 "joint4.damping": ts.learn.Positive()})
        >>> q, qd = arm.random_state(16)
        >>> layer(q, qd, 0 * qd).square().sum().backward()
        >>> {name: tuple(p.grad.shape) for name, p in layer.named_parameters()}
        {'learned.link5/inertial.offset': (10,), 'learned.joint4/damping.offset': (1,)}
    """

    captured_attributes = (
        "start",
        "learned",
        "_structure",
    )  # see `torchsko.fused.tracing.object_graph`

    def __init__(
        self,
        mech: Mechanism,
        learn: Mapping[str, nn.Module] | None = None,
        *,
        fused: bool | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(mech, Mechanism):
            raise _not_a_mechanism(mech)
        self.fused, self._eager_cost = fused, 0
        self._fast: FusedMechanism | TorchskoError | None = None  # an error: why there are none
        learn = {} if learn is None else _by_target(mech, learn)
        self._targets = {name: find_target(mech, name, p) for name, p in learn.items()}
        refuse_overlap(self._targets)
        self.start = nn.Module()
        for name in PARAMETERS:
            self.start.register_buffer(name, getattr(mech, name).detach().clone())
        self.learned = nn.ModuleDict(
            {t.key: parametrize_target(mech, t, learn[name]) for name, t in self._targets.items()}
        )
        self._plan = assembly_plan(self._targets, mech)
        self._groups = mode_groups(mech)
        # Names, topology and index tensors. Its tensors of PARAMETERS are never read.
        still = {name: getattr(mech, name).detach() for name in PARAMETERS}
        flags = (field.name for field in fields(mech) if field.name.startswith("has_"))
        self._structure = mech.replace(**still, **{name: getattr(mech, name) for name in flags})
        if mech.singular_joints and learn:
            self._check_hinges()
        self.register_load_state_dict_post_hook(_update_structure)

    @without_autocast
    def mechanism(self) -> Mechanism:
        """The mechanism with the current values, differentiable with respect to the parameters."""
        fields = {name: getattr(self.start, name) for name in PARAMETERS}
        parts = {
            name: target.write(self.learned[target.key]()) for name, target in self._targets.items()
        }
        for field, runs in self._plan.items():
            fields[field] = assemble_field(field, fields[field], runs, parts, self._groups)
        start, learned = self._structure, self._plan.keys()
        if fields["mass"].is_meta:
            start = start.to("meta")
        flags = {
            flag: getattr(start, flag) or any(n in learned or self._acts(n) for n in names)
            for flag, names in FLAGS.items()
        }
        # `unused` is passed on, since deriving it reads the limits at every call.
        return start.replace(**fields, **flags, replaced=self.learned_fields, unused=start.unused)

    rollout = rollout

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Parameters, buffers and modules. The error names where a mechanism's attribute is found."""
            try:
                return super().__getattr__(name)
            except AttributeError:
                raise AttributeError(missing_attribute(self, name), name=name, obj=self) from None

    @property
    def stored_fields(self) -> Mapping[str, Tensor]:
        """Current tensors of the mechanism by name; learned fields have their initial values."""
        buffers = cast(dict[str, Tensor], self.start._buffers)
        if buffers.keys() >= PARAMETERS.keys():
            return buffers
        # The user has replaced a buffer by a parameter or a parametrization.
        return {name: getattr(self.start, name) for name in PARAMETERS}

    def _acts(self, name: str) -> bool:
        """True when a fixed tensor may be nonzero.

        The tensor is read at each call, because writes by collectives or through ``.data`` do not change its
        version counter. A compiled program cannot read it, and assumes True.
        """
        x = self.stored_fields[name]
        if x.numel() == 0:
            return False
        if torch.compiler.is_compiling() or is_differentiated(x):
            return True
        values = concrete_values(x)
        return values is None or bool(values.any())

    def _check_hinges(self) -> None:
        with torch.no_grad():
            found = mark_singular_joints(self.mechanism())
        self._structure = self._structure.replace(
            singular_joints=found.singular_joints, bare_joints=found.bare_joints
        )

    @property
    def learned_fields(self) -> tuple[str, ...]:
        """Names of the mechanism's tensors with at least one learned entry."""
        return tuple(self._plan)

    @property
    def fused_methods(self) -> frozenset[str]:  # type: ignore[override]
        """Names of the methods that may run as kernels."""
        return frozenset() if self.fused is False else FUSIBLE

    def forward(self, q: Tensor, qd: Tensor, tau: Tensor, f_ext: Tensor | None = None) -> Tensor:
        """Accelerations that joint forces produce; see `torchsko.forward_dynamics`."""
        return forward_dynamics(self, q, qd, tau, f_ext)

    def _verb(self, row: Row, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        fast = self._kernels((*args, *kwargs.values())) if row.name in self.fused_methods else None
        if fast is None or row.refusal(row.split(args, kwargs)[1]):
            return row.function(self.mechanism(), *args, **kwargs)
        return getattr(fast, row.name)(*args, **kwargs)

    def _kernels(self, args: Iterable[Any]) -> FusedMechanism | None:
        """The kernels, built when their cost is repaid; None for an eager call."""
        if torch.compiler.is_compiling():
            fast = self.fused_mechanism() if self.fused else None
            return None if isinstance(fast, TorchskoError) else fast
        batch = max([0, *(x.shape[:-1].numel() for x in args if isinstance(x, Tensor))])
        fast = self.fused_mechanism() if self.should_fuse(cost(1, batch)) else None
        return None if isinstance(fast, TorchskoError) else fast

    def should_fuse(self, samples: int) -> bool:
        """True when kernels compute a call; otherwise adds the cost of the eager call.

        Args:
            samples: eager cost of the call in samples; see `torchsko.fused.automatic`.
        """
        if self.fused:
            return True
        if self._fast is None and has_saved_tensor_hooks():
            self._fast = _CHECKPOINTED
        if self._fast is None:
            self._eager_cost += samples
            return self._eager_cost >= PAYS
        return not isinstance(self._fast, TorchskoError)

    def fused_mechanism(self) -> FusedMechanism | TorchskoError:
        """The kernels, built once, or the error that explains their absence."""
        if self.fused and self._fast is None and torch.compiler.is_compiling():
            raise FusedError(
                "kernels of a layer with fused=True are not built yet.",
                "torch.compile cannot build them, and would compile thousands of operations in their place.",
                "Call the layer once before the compiled program, or pass fused=False.",
            )
        fast = self._fast
        if fast is None or fast is _CHECKPOINTED:
            fast = kernels_for(self, log_build=not self.fused)
        if self._fast is None:
            self._fast = fast
        if self.fused and isinstance(fast, TorchskoError):
            raise FusedError(fast.what, fast.why, fast.advice)
        return fast

    def __getstate__(self) -> dict[str, Any]:
        # Kernels are rebuilt from the disk cache.
        return {**self.__dict__, "_fast": None}

    def extra_repr(self) -> str:
        """Name of the robot and its learned targets."""
        return f"{self._structure.name!r}, learn={list(self._targets)}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Dynamics:
        # .to(), .cuda() and .float() all end here. Index tensors belong to the structure and are not
        # buffers, so they are converted here. An unsupported dtype is refused before any conversion.
        structure = self._structure.to(fn(self.stored_fields["mass"].detach()[..., :0]).dtype)
        super()._apply(fn, recurse)
        self._fast = None  # kernels are built for one dtype and device
        like = self.stored_fields["mass"]
        # A layer on "meta" serves torch.func.functional_call with tensors on another device.
        self._structure = structure if like.is_meta else structure.to(like.device)
        return self


_CHECKPOINTED = FusedError(
    "it was called within torch.utils.checkpoint or under other saved-tensor hooks.",
    "Recomputation there requires the same saved tensors, so the layer cannot switch to kernels.",
    "Pass fused=True, which uses kernels from the first call.",
)
"""Reason for staying eager in a layer that was called under saved-tensor hooks."""


def _update_structure(layer: nn.Module, _: Any) -> None:
    """Adapt dtype, device and singular hinges to the values that ``load_state_dict`` has set."""
    dynamics = cast(Dynamics, layer)
    like = dynamics.stored_fields["mass"]
    if not like.is_meta:
        dynamics._structure = dynamics._structure.to(like.dtype).to(like.device)
        dynamics._check_hinges()


def _not_a_mechanism(value: Any) -> MechanismError:
    advice = "Pass ts.Dynamics(ts.load(path))."
    if provides_mechanism(value):
        advice = "Pass ts.Dynamics(x.mechanism()), which copies its values, and learn= again."
    return MechanismError(
        f"mech is a {type(value).__name__}.",
        "A layer copies the tensors of a Mechanism as nominal values.",
        advice,
    )


def _by_target(mech: Mechanism, learn: Any) -> dict[str, nn.Module]:
    if isinstance(learn, Mapping):
        return dict(learn)
    names = (
        [learn] if isinstance(learn, str) else list(learn) if isinstance(learn, Iterable) else []
    )
    name = next((n for n in names if isinstance(n, str)), "gravity")
    raise MechanismError(
        f"learn={learn!r} has no parametrizations.",
        "Each target needs one, which keeps its values physical.",
        f'Pass learn={{"{name}": ts.learn.{default_parametrization(mech, name)}()}}.',
    )
