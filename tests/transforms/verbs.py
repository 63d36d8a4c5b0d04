"""Every public function of mechanisms as data: the one registry that the transform tests run over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import torchsko as ts
from tests.strategies import random_mechanism
from torchsko.api.rows import ROWS
from torchsko.mechanism.dispatch import as_mechanism
from torchsko.mechanism.state import sizes

KINEMATIC = ("joint_rotation", "joint_position", "axis", "joint_parameters")
FRAMES = ("frame_rotation", "frame_position")
INERTIAL = ("mass", "com", "inertia")
PASSIVE = ("damping", "friction", "stiffness", "spring_reference")
SYSTEM = (*KINEMATIC, *INERTIAL, "armature")
DYNAMIC = (*SYSTEM, *PASSIVE, "gravity")

CONFIGURATIONS = ("q", "start", "end")
SHAPES = {name: shape for row in ROWS.values() for name, shape in row.shapes.items()} | {
    "x": ("num_dof",)
}
"""Shape of every tensor that a verb takes, for one sample, by name."""


@dataclass(frozen=True)
class Verb:
    """A public function: the states and the parameters that its result depends on, and how to call it."""

    name: str
    states: tuple[str, ...]
    parameters: tuple[str, ...]
    call: Callable[..., Tensor | tuple[Tensor, ...]]

    def reads(self, mech: ts.Mechanism) -> tuple[str, ...]:
        """Names of all its tensor inputs.

        Giving a tensor as armature or axis takes a shortcut away from a mechanism that has no
        armature, or coordinate axes only; such a mechanism keeps its own, and one without joint
        parameters has none to give.
        """
        kept = {
            "armature": not mech.has_armature,
            "axis": mech.aligned,
            "joint_parameters": not mech.num_joint_parameters,
        }
        return (*self.states, *(p for p in self.parameters if not kept.get(p, False)))

    def __call__(self, mech: ts.Mechanism, **inputs: Tensor) -> tuple[Tensor, ...]:
        """Results as a tuple; parameters among the inputs replace the mechanism's."""
        states = {name: inputs.pop(name) for name in self.states}
        result = self.call(mech.replace(**inputs), **states)
        return (result,) if isinstance(result, Tensor) else tuple(result)

    def function(self, mech: ts.Mechanism) -> Callable[..., tuple[Tensor, ...]]:
        """The verb as a function of the tensors that it reads, in order."""
        names = self.reads(mech)
        return lambda *tensors: self(mech, **dict(zip(names, tensors, strict=True)))


def _model(mech: ts.Mechanism, q: Tensor, qd: Tensor, f_ext: Tensor) -> tuple[Tensor, ...]:
    """Fields of the model; those that no batched input reaches keep no batch, so all are expanded."""
    model = ts.assemble(mech, q, qd, f_ext)
    fields = (
        model.edge_weight.dense(),
        model.joint_map,
        model.inertia,
        model.coriolis_accel,
        model.gyro_force,
    )
    return tuple(field.expand(*model.batch_shape, *field.shape[-3:]) for field in fields)


def _factor(mech: ts.Mechanism, q: Tensor) -> ts.algebra.Innovations:
    return ts.innovations(ts.assemble(mech, q))


def _frames(mech: ts.Mechanism) -> tuple[str, ...]:
    return as_mechanism(mech).frame_names


def _first_frame(mech: ts.Mechanism) -> str:
    return _frames(mech)[0]


def _reachable(mech: ts.Mechanism) -> list[str]:
    """The frame of a body that a free joint carries: it can accelerate in every direction."""
    mech = as_mechanism(mech)
    return [mech.body_names[mech.joint_kinds.index("free")]]


OPTIONS: dict[str, Callable[[ts.Mechanism], object]] = {
    "frames": _frames,
    "frame": lambda mech: as_mechanism(mech).body_names[-1],
    "prescribed": lambda mech: as_mechanism(mech).joint_names[::2],
}
"""What the tests give for arguments that are no tensors and have to be given."""


def of_row(name: str, parameters: tuple[str, ...], **options: object) -> Verb:
    """A verb as its row says: all its tensors, and options, each a value or a function of a mechanism."""
    row = ROWS[name]
    options = {n: OPTIONS[n] for n in row.options if n in OPTIONS} | options

    def call(mech: ts.Mechanism, **states: Tensor) -> Tensor | tuple[Tensor, ...]:
        chosen = {n: x(mech) if callable(x) else x for n, x in options.items()}
        return row.function(mech, **states, **chosen)

    label = f"{name}.{options['method']}" if "method" in options else name
    label += ".relative" if "relative_to" in options else ""
    return Verb(label, row.tensors, parameters, call)


PLACED = (*SYSTEM, *FRAMES)
_OF_ROWS = (
    of_row("inverse_dynamics", DYNAMIC),
    of_row("forward_dynamics", DYNAMIC),
    of_row("hybrid_dynamics", DYNAMIC),
    of_row("mass_matrix", SYSTEM),
    of_row("bias_force", (*KINEMATIC, *INERTIAL, *PASSIVE, "gravity")),
    of_row("passive_force", PASSIVE),
    of_row("inverse_dynamics_derivatives", tuple({*DYNAMIC} - {"friction"})),
    of_row("forward_dynamics_derivatives", DYNAMIC),
    of_row("linear_model", DYNAMIC),
    of_row("coriolis_matrix", (*KINEMATIC, *INERTIAL)),
    of_row("christoffel_symbols", (*KINEMATIC, *INERTIAL)),
    of_row("passive_force_parts", PASSIVE),
    of_row("torque_regressor", (*KINEMATIC, "gravity")),
    of_row("friction_regressor", ("spring_reference",)),
    of_row("wrench_regressor", (*KINEMATIC, *FRAMES, "gravity")),
    of_row("momentum_regressor", KINEMATIC),
    of_row("kinetic_energy_regressor", KINEMATIC),
    of_row("potential_energy_regressor", (*KINEMATIC, "gravity")),
    of_row("forward_kinematics", KINEMATIC),
    of_row("frame_pose", (*KINEMATIC, *FRAMES)),
    of_row("frame_jacobian", (*KINEMATIC, *FRAMES)),
    of_row("operational_space_compliance", PLACED, frames=lambda mech: _frames(mech)[-2:]),
    of_row("operational_space_inertia", PLACED, frames=_reachable),
    of_row("consistent_jacobian_inverse", PLACED, frames=_reachable),
    of_row("external_force", (*KINEMATIC, *FRAMES)),
    of_row("external_force_derivative", (*KINEMATIC, *FRAMES)),
    of_row("integrate", ()),
    of_row("difference", ()),
    of_row("integrate_derivatives", ()),
    of_row("difference_derivatives", ()),
    of_row("expand", ()),
    of_row("expand_velocity", ()),
    of_row("expand_acceleration", ()),
    of_row("frame_velocity", (*KINEMATIC, *FRAMES), reference="world"),
    of_row("frame_acceleration", (*KINEMATIC, *FRAMES), reference="mixed", classical=True),
    of_row("frame_jacobian_rate", (*KINEMATIC, *FRAMES), reference="world"),
    of_row("frame_velocity_derivatives", (*KINEMATIC, *FRAMES), reference="mixed"),
    of_row(
        "frame_acceleration_derivatives", (*KINEMATIC, *FRAMES), reference="world", classical=True
    ),
    of_row("frame_coordinates", (*KINEMATIC, *FRAMES)),
    of_row("analytic_jacobian", (*KINEMATIC, *FRAMES), rotation="rpy"),
    of_row("manipulability", (*KINEMATIC, *FRAMES)),
    of_row("center_of_mass", (*KINEMATIC, "mass", "com")),
    of_row("com_velocity", (*KINEMATIC, "mass", "com")),
    of_row("com_acceleration", (*KINEMATIC, "mass", "com")),
    of_row("com_jacobian", (*KINEMATIC, "mass", "com")),
    of_row("kinetic_energy", SYSTEM),
    of_row(
        "potential_energy", (*KINEMATIC, "mass", "com", "stiffness", "spring_reference", "gravity")
    ),
    of_row("total_energy", (*SYSTEM, "stiffness", "spring_reference", "gravity")),
    of_row("power_balance", DYNAMIC),
    of_row("composite_inertias", (*KINEMATIC, *INERTIAL)),
    of_row("centroidal_inertia", (*KINEMATIC, *INERTIAL)),
    of_row("centroidal_derivatives", (*KINEMATIC, *INERTIAL)),
    of_row("centroidal_momentum", (*KINEMATIC, *INERTIAL)),
    of_row("centroidal_momentum_matrix", (*KINEMATIC, *INERTIAL)),
    of_row("subtree_centers", (*KINEMATIC, "mass", "com")),
    of_row("centroidal_momentum_rate", (*KINEMATIC, *INERTIAL)),
    of_row("centroidal_momentum_matrix_rate", (*KINEMATIC, *INERTIAL)),
    of_row("zero_moment_point", (*KINEMATIC, *INERTIAL, "gravity")),
    of_row("gravity_force", (*KINEMATIC, "mass", "com", "gravity")),
    of_row("joint_wrenches", (*KINEMATIC, *INERTIAL, "gravity")),
)
"""One case for every verb with a kernel: the parameters that its result depends on, and options to test."""
RELATIVE: dict[str, dict[str, object]] = {
    "frame_pose": {},
    "frame_velocity": {"reference": "world"},
    "frame_acceleration": {"reference": "mixed", "classical": True},
    "frame_jacobian": {"reference": "mixed"},
    "frame_jacobian_rate": {"reference": "world"},
}
"""Options to test motion relative to another frame with."""
OF_ROWS = {verb.name: verb for verb in _OF_ROWS}
PARAMETERS = {name: verb.parameters for name, verb in OF_ROWS.items()}

VERBS = (
    *_OF_ROWS,
    *(
        of_row(name, (*KINEMATIC, *FRAMES), relative_to=_first_frame, **options)
        for name, options in RELATIVE.items()
    ),
    of_row("inverse_dynamics", DYNAMIC, method="composite"),
    of_row("forward_dynamics", DYNAMIC, method="composite"),
    Verb("assemble", ("q", "qd", "f_ext"), (*KINEMATIC, *INERTIAL, "gravity"), _model),
    Verb("innovations.solve", ("q", "x"), SYSTEM, lambda mech, q, x: _factor(mech, q).solve(x)),
    Verb("innovations.logdet", ("q",), SYSTEM, lambda mech, q: _factor(mech, q).logdet()),
    Verb("innovations.inverse", ("q",), SYSTEM, lambda mech, q: _factor(mech, q).inverse()),
    Verb("innovations.sqrt", ("q", "x"), SYSTEM, lambda mech, q, x: _factor(mech, q).sqrt(x)),
    Verb("innovations.whiten", ("q", "x"), SYSTEM, lambda mech, q, x: _factor(mech, q).whiten(x)),
    Verb(
        "innovations.sqrt_transpose",
        ("q", "x"),
        SYSTEM,
        lambda mech, q, x: _factor(mech, q).sqrt_transpose(x),
    ),
    Verb(
        "innovations.whiten_transpose",
        ("q", "x"),
        SYSTEM,
        lambda mech, q, x: _factor(mech, q).whiten_transpose(x),
    ),
)


def mixed_tree(*, armature: bool = False, aligned: bool = False) -> ts.Mechanism:
    """Joints of four kinds, branched, in an order that is not breadth first; springs on each.

    One link is merged into a moving body, one into the inertial frame.

    Args:
        armature: give every joint some.
        aligned: turn every axis to the z axis of its joint frame.
    """
    # A screw has a parameter of its own, and an H that is no unit vector.
    second = "prismatic" if aligned else "helical"
    kinds = ["revolute", second, "spherical", "free", "fixed", "fixed"]
    mech = random_mechanism(kinds, [-1, 0, 1, 0, 1, -1], seed=3, armature=armature)
    g = torch.Generator().manual_seed(4)
    reference, _ = mech.random_state(generator=g)
    stiffness = torch.rand(mech.num_dof, generator=g, dtype=torch.float64)
    mech = mech.replace(stiffness=stiffness, spring_reference=reference)
    z = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    return mech.replace(axis=z.expand(4, 3), aligned=True) if aligned else mech


def sample(mech: ts.Mechanism, name: str, batch: tuple[int, ...], g: torch.Generator) -> Tensor:
    """A random tensor `[*batch, ...]` for one input: a state, or a parameter near the mechanism's own.

    Parameters stay physical: rotations turn, unit axes stay unit, inertias gain a multiple of one.
    """

    def randn(*shape: int) -> Tensor:
        return torch.randn(*batch, *shape, generator=g, dtype=torch.float64)

    if name in CONFIGURATIONS or name == "spring_reference":
        return mech.random_state(*batch, generator=g)[0]
    if name in SHAPES:
        return (0.5 if name == "step" else 1.0) * randn(*sizes(mech, SHAPES[name]))
    value = getattr(mech, name)
    if name in ("joint_rotation", "frame_rotation"):
        return value @ torch.linalg.matrix_exp(0.3 * (w := randn(*value.shape)) - 0.3 * w.mT)
    if name == "axis":
        return torch.nn.functional.normalize(value + 0.3 * randn(*value.shape), dim=-1)
    if name == "inertia":
        eye = torch.eye(3, dtype=torch.float64)
        return value + randn(mech.num_bodies)[..., None, None].square() * eye
    if name in ("com", "joint_position", "frame_position", "gravity"):
        return value + 0.3 * randn(*value.shape)
    return value * (1 + 0.5 * torch.rand(*batch, *value.shape, generator=g, dtype=torch.float64))


def inputs(
    mech: ts.Mechanism, verb: Verb, batch: tuple[int, ...] = (), seed: int = 0
) -> dict[str, Tensor]:
    """One random tensor for every input of a verb, each `[*batch, ...]`."""
    g = torch.Generator().manual_seed(seed)
    return {name: sample(mech, name, batch, g) for name in verb.reads(mech)}


SAME_CODE = (
    "bias_force",
    "hybrid_dynamics",
    "operational_space_compliance",
    "operational_space_inertia",
    "consistent_jacobian_inverse",
    "innovations.inverse",
)
"""Verbs that read the armature only through others that are tested with it."""
SHORTCUT = ("forward_dynamics", "innovations.solve", "innovations.whiten", "hybrid_dynamics")

BARE, ARMED, ALIGNED = mixed_tree(), mixed_tree(armature=True), mixed_tree(aligned=True)

CASES = (
    {f"{verb.name}-bare": (verb, BARE) for verb in VERBS}
    | {
        f"{verb.name}-armature": (verb, ARMED)
        for verb in VERBS
        if "armature" in verb.parameters and verb.name not in SAME_CODE
    }
    | {f"{verb.name}-aligned": (verb, ALIGNED) for verb in VERBS if verb.name in SHORTCUT}
)
"""Every verb on the mixed tree; what reads the armature, or takes a shortcut, in those settings too."""

WITH_PARAMETERS = {label: case for label, case in CASES.items() if case[0].parameters}
"""Those whose result depends on a parameter of the mechanism."""
