"""A mechanism as an `nn.Module`: some of its numbers learn, and stay physical while they do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from torchsko.api.verb_table import FUSIBLE, Row, Verbs
from torchsko.bridge.singular_hinges import checked
from torchsko.errors import FusedError, MechanismError
from torchsko.fused.automatic import PAYS, cost, kernels_for, rollout
from torchsko.fused.tracing.clean import is_differentiated, is_followed
from torchsko.learn.parametrized import (
    ParametrizedValue,
    assemble_field,
    assembly_plan,
    parametrize_target,
)
from torchsko.learn.targets import default_parametrization, find_target, refuse_overlap
from torchsko.mechanism.dispatch import MechanismLayer, missing_attribute, provides_mechanism
from torchsko.mechanism.mechanism import PARAMETERS, Mechanism
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.dtype import without_autocast
from torchsko.verbs.dynamics import forward_dynamics

if TYPE_CHECKING:
    from torchsko.fused.fused_mechanism import FusedMechanism


class Dynamics(nn.Module, Verbs, MechanismLayer):
    """Dynamics of a mechanism, some of whose physical parameters are `nn.Parameter`s.

    The layer holds no dynamics of its own: `mechanism()` gives a `Mechanism` with the current
    values, differentiable with respect to the parameters, and every method is the function of the
    same name on it. What is not learned is a buffer. Both move with ``.to``, and live in
    ``state_dict``.

    Args:
        mech: the start; its tensors are copied, without the graph they came from.
        learn: parametrization by target. Targets are a body ("link5": mass, centre of mass and
            inertia together), a field of a body ("link5.mass", "link5.com") or of a joint
            ("joint4.damping", ".friction", ".armature", ".stiffness", ".position", ".rotation"),
            and "gravity". Parametrizations are those of `torchsko.learn`, or any module with
            ``forward`` and ``right_inverse`` as `torch.nn.utils.parametrize` wants them.
        fused: whether kernels compute the methods, rollouts too. None: on a CPU, from the call on where all
            calls together have cost about as much as the build (see `torchsko.fused.automatic`); a layer
            that is called
            within `torch.utils.checkpoint` before that stays as it is, rollouts apart that pay alone. True:
            from the first. False: never. What has no kernel runs eagerly.

    Raises:
        MechanismError: on what is no `Mechanism`, targets without a parametrization, an unknown target, a
            parametrization that does not fit it, a start value outside of its domain, or two targets
            that set the same numbers.

    Example:
        >>> import torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> layer = ts.Dynamics(arm, learn={"link5": ts.learn.InertiaLogCholesky(),
        ...                                 "joint4.damping": ts.learn.Positive()})
        >>> q, qd = arm.random_state(16)
        >>> layer(q, qd, 0 * qd).square().sum().backward()
        >>> {name: tuple(p.grad.shape) for name, p in layer.named_parameters()}
        {'learned.link5/inertial.parametrizations.value.original': (10,),
         'learned.joint4/damping.parametrizations.value.original': (1,)}
    """

    def __init__(
        self,
        mech: Mechanism,
        learn: Mapping[str, nn.Module] | None = None,
        *,
        fused: bool | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(mech, Mechanism):
            raise MechanismError(_no_start(mech))
        self.fused, self._eager_cost = fused, 0
        self._fast: FusedMechanism | str | None = None  # a text says why there are no kernels
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
        # Names, topology and index tensors; the tensors of PARAMETERS in it are never read.
        still = {name: getattr(mech, name).detach() for name in PARAMETERS}
        flags = (field.name for field in fields(mech) if field.name.startswith("has_"))
        self._structure = mech.replace(**still, **{name: getattr(mech, name) for name in flags})
        if mech.singular_joints and learn:
            self._check_hinges()
        self.register_load_state_dict_post_hook(_loaded)

    @without_autocast
    def mechanism(self) -> Mechanism:
        """The mechanism with the current values, differentiable with respect to the parameters."""
        fields = {name: getattr(self.start, name) for name in PARAMETERS}
        parts = {
            name: target.write(cast(ParametrizedValue, self.learned[target.key]).value)
            for name, target in self._targets.items()
        }
        for field, runs in self._plan.items():
            fields[field] = assemble_field(field, fields[field], runs, parts)
        start, learned = self._structure, self._plan.keys()
        if fields["mass"].is_meta:
            start = start.to("meta")
        flags = {
            flag: getattr(start, flag) or any(n in learned or self._acts(n) for n in names)
            for flag, names in _FLAGS.items()
        }
        # Notes as they are: nobody is to read limits at every call.
        return start.replace(**fields, **flags, replaced=self.learned_fields, unused=start.unused)

    rollout = rollout

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Parameters, buffers and modules; of what only the mechanism has, where that is."""
            try:
                return super().__getattr__(name)
            except AttributeError:
                raise AttributeError(missing_attribute(self, name), name=name, obj=self) from None

    @property
    def stored_fields(self) -> Mapping[str, Tensor]:
        """The mechanism's tensors by name, as they are now; of those that learn the start."""
        own = cast(dict[str, Tensor], self.start._buffers)
        if own.keys() >= PARAMETERS.keys():
            return own
        # Somebody made a parameter of one, or parametrized it.
        return {name: getattr(self.start, name) for name in PARAMETERS}

    def _acts(self, name: str) -> bool:
        """Whether a tensor of the start may be other than zero.

        Looked at in each call: what collectives, and ``.data``, write is not counted as a change. A compiled
        program cannot look.
        """
        x = self.stored_fields[name]
        if torch.compiler.is_compiling() or is_differentiated(x):
            return True
        read = concrete_values(x)
        return read is None or bool(read.any())

    def _check_hinges(self) -> None:
        with torch.no_grad():
            found = checked(self.mechanism())
        self._structure = self._structure.replace(
            singular_joints=found.singular_joints, bare_joints=found.bare_joints
        )

    @property
    def learned_fields(self) -> tuple[str, ...]:
        """Names of the mechanism's tensors that are learned, in whole or in part."""
        return tuple(self._plan)

    @property
    def fused_methods(self) -> frozenset[str]:  # type: ignore[override]
        """Names of the methods that may be kernels."""
        return frozenset() if self.fused is False else FUSIBLE

    def forward(self, q: Tensor, qd: Tensor, tau: Tensor, f_ext: Tensor | None = None) -> Tensor:
        """Accelerations that joint forces produce; see `torchsko.forward_dynamics`."""
        return forward_dynamics(self, q, qd, tau, f_ext)

    def _verb(self, row: Row, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        fast = self._kernels((*args, *kwargs.values())) if row.name in self.fused_methods else None
        if fast is None or row.refusal(row.split(args, kwargs)[1]):
            return row.function(self.mechanism(), *args, **kwargs)
        return getattr(fast, row.name)(*args, **kwargs)

    def _kernels(self, given: Iterable[Any]) -> FusedMechanism | None:
        """The kernels, made where they pay by now; None where calls are eager."""
        if torch.compiler.is_compiling():
            return None
        batch = max([0, *(x.shape[:-1].numel() for x in given if isinstance(x, Tensor))])
        fast = self.fused_mechanism() if self.should_fuse(cost(1, batch)) else ""
        return None if isinstance(fast, str) else fast

    def should_fuse(self, samples: int) -> bool:
        """Whether kernels take a call over; if not, it is eager work that counts from then on.

        Args:
            samples: what it costs eagerly, in samples; see `torchsko.fused.automatic`.
        """
        if self.fused:
            return True
        if self._fast is None and is_followed():
            self._fast = _FOLLOWED
        if self._fast is None:
            self._eager_cost += samples
            return self._eager_cost >= PAYS
        return not isinstance(self._fast, str)

    def fused_mechanism(self) -> FusedMechanism | str:
        """The kernels, made once; or why there are none."""
        fast = self._fast
        if fast is None or fast is _FOLLOWED:
            fast = kernels_for(self, tell=not self.fused)
        if self._fast is None:
            self._fast = fast
        if self.fused and isinstance(fast, str):
            raise FusedError(fast)
        return fast

    def __getstate__(self) -> dict[str, Any]:
        # Kernels are made again, from the disk cache.
        return {**self.__dict__, "_fast": None}

    def extra_repr(self) -> str:
        """The robot and what is learned of it."""
        return f"{self._structure.name!r}, learn={list(self._targets)}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Dynamics:
        # .to(), .cuda(), .float() and their kin all end here. Index tensors are no buffers (they
        # are the mechanism's structure), so they follow here, once, and no call has to look.
        # A type that no mechanism has is refused before anything is converted.
        structure = self._structure.to(fn(self.stored_fields["mass"].detach()[..., :0]).dtype)
        super()._apply(fn, recurse)
        self._fast = None  # made for one type and device
        like = self.stored_fields["mass"]
        # A skeleton on "meta" serves torch.func.functional_call with tensors that lie elsewhere.
        self._structure = structure if like.is_meta else structure.to(like.device)
        return self


_FOLLOWED = (
    "it was called within torch.utils.checkpoint, or other hooks of what autograd saves.\n"
    "What a call saves is counted there, and has to be the same when it is made again.\n"
    "Pass fused=True: kernels run from the first call on."
)
"""Why a layer does not take kernels in the midst of its calls."""

_FLAGS = {
    "has_armature": ("armature",),
    "has_losses": ("damping", "friction", "higher_damping"),
    "has_higher_damping": ("higher_damping",),
    "has_gravcomp": ("gravcomp",),
}
"""What a mechanism says of its tensors being other than zero."""


def _loaded(layer: nn.Module, _: Any) -> None:
    """Make the verdict on the hinges anew, of the values loaded; those assigned have types of their own."""
    own = cast(Dynamics, layer)
    like = own.stored_fields["mass"]
    if not like.is_meta:
        own._structure = own._structure.to(like.dtype).to(like.device)
        own._check_hinges()


def _no_start(given: Any) -> str:
    """Message that a layer starts from a mechanism itself."""
    advice = "ts.Dynamics(ts.load(path))"
    if provides_mechanism(given):
        advice = "ts.Dynamics(given.mechanism()), whose values are copied; say learn= anew"
    return (
        f"a layer was to start from a {type(given).__name__}.\n"
        "It starts from the tensors of a Mechanism, and learns what it is told to.\n"
        f"Type {advice}."
    )


def _by_target(mech: Mechanism, learn: Any) -> dict[str, nn.Module]:
    if isinstance(learn, Mapping):
        return dict(learn)
    names = (
        [learn] if isinstance(learn, str) else list(learn) if isinstance(learn, Iterable) else []
    )
    name = next((n for n in names if isinstance(n, str)), "gravity")
    raise MechanismError(
        f"learn={learn!r} says what to learn, not how.",
        "Each target has a parametrization, which keeps its numbers physical.",
        f'Type learn={{"{name}": ts.learn.{default_parametrization(mech, name)}()}}, say.',
    )
