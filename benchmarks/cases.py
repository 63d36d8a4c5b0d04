"""Cases: robots, states, and the results that every contestant must reproduce.

Every library reads one URDF, written here from the robot's mechanism after fixed links are merged
and joint losses dropped (Pinocchio and frax ignore losses; merged links are less work for all): one
link for each moving body, nothing else.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from robots import chain, humanoid
from torch import Tensor

import torchsko as ts

VERBS = ("inverse", "forward", "mass_matrix", "forward_vjp")
"""tau(q, qd, qdd); qdd(q, qd, tau); M(q); qdd with the pullback of one cotangent to q, qd, tau."""

NUM_CHECKED = 64

fuse = getattr(ts, "fuse", None)
"""`ts.fuse`, or None in an older torchsko: then the suite measures the others."""


@dataclass(frozen=True)
class Robot:
    """A robot for everybody: its canonical URDF, and whether a free joint carries its root.

    Attributes:
        name: in the tables.
        urdf: text; a fixed base is a link named "world", welded to the inertial frame.
        floating_base: whether the root link is free.
    """

    name: str
    urdf: str
    floating_base: bool

    @cached_property
    def mech(self) -> ts.Mechanism:
        """In float64."""
        return ts.load(self.urdf, floating_base=self.floating_base)

    @cached_property
    def path(self) -> Path:
        """The URDF as a file."""
        return self._file("", self.urdf)

    @cached_property
    def path_with_joint(self) -> Path:
        """The URDF with the free joint written as a floating joint, for readers without an option."""
        root = re.search('<link name="([^"]+)"', self.urdf)
        if not self.floating_base or root is None:
            return self.path
        joint = (
            '<link name="world"/><joint name="root_joint" type="floating"><parent link="world"/>'
            f'<child link="{root[1]}"/></joint>'
        )
        return self._file("_joint", self.urdf.replace("</robot>", f"{joint}</robot>"))

    def _file(self, suffix: str, text: str) -> Path:
        path = Path(tempfile.mkdtemp(prefix="torchsko-bench-")) / f"{self.name}{suffix}.urdf"
        path.write_text(text)
        return path


def robot(name: str, source: str | Path, floating_base: bool = False) -> Robot:
    """Bring a robot file into canonical form."""
    text = Path(source).read_text() if isinstance(source, Path) else source
    text = re.sub(r"<dynamics[^>]*/>", "", text)
    mech = ts.load(text, floating_base=floating_base, mimic="independent")
    return Robot(name, canonical_urdf(mech), floating_base)


def canonical_urdf(mech: ts.Mechanism) -> str:
    """URDF text of a mechanism of revolute and prismatic joints, perhaps on one free root."""
    parts = [f'<robot name="{mech.name}">']
    if mech.joint_kinds[0] != "free":
        parts.append(  # frax wants an inertia there; it has no effect once welded
            '<link name="world"><inertial><origin xyz="0 0 0" rpy="0 0 0"/><mass value="1"/>'
            '<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>'
        )
    for k, name in enumerate(mech.body_names):
        (a, b, c), (_, d, e), (_, _, f) = mech.inertia[k].tolist()
        parts.append(
            f'<link name="{name}"><inertial><origin xyz="{_words(mech.com[k])}" rpy="0 0 0"/>'
            f'<mass value="{mech.mass[k]:.17g}"/><inertia ixx="{a:.17g}" ixy="{b:.17g}" '
            f'ixz="{c:.17g}" iyy="{d:.17g}" iyz="{e:.17g}" izz="{f:.17g}"/></inertial></link>'
        )
    for k, name in enumerate(mech.joint_names):
        if mech.joint_kinds[k] == "free":
            continue
        parent = mech.body_names[mech.parents[k]] if mech.parents[k] >= 0 else "world"
        limits = 'lower="-3" upper="3" effort="100" velocity="3"'
        parts.append(
            f'<joint name="{name}" type="{mech.joint_kinds[k]}"><origin '
            f'xyz="{_words(mech.joint_position[k])}" rpy="{_words(_rpy(mech.joint_rotation[k]))}"/>'
            f'<parent link="{parent}"/><child link="{mech.body_names[k]}"/>'
            f'<axis xyz="{_words(mech.axis[k])}"/><limit {limits}/></joint>'
        )
    return "".join([*parts, "</robot>"])


def _words(x: Tensor) -> str:
    return " ".join(f"{v:.17g}" for v in x.tolist())


def _rpy(R: Tensor) -> Tensor:
    """Angles with R = Rz(yaw) Ry(pitch) Rx(roll)."""
    pitch = math.atan2(-R[2, 0], math.hypot(R[0, 0], R[1, 0]))
    if abs(math.cos(pitch)) > 1e-9:
        roll, yaw = math.atan2(R[2, 1], R[2, 2]), math.atan2(R[1, 0], R[0, 0])
    else:  # only their difference is defined
        roll, yaw = 0.0, math.atan2(-R[0, 1], R[1, 1])
    return torch.tensor([roll, pitch, yaw], dtype=torch.float64)


def panda() -> Robot:
    return robot("panda", ts.robots.panda)


def floating_humanoid() -> Robot:
    """Talos with a free base, 38 dof; without example-robot-data the 30-joint tree, 36 dof."""
    try:
        import pinocchio  # only to find the data beside it
    except ImportError:
        return robot("humanoid36", humanoid(), floating_base=True)
    folder = Path(pinocchio.__file__).parents[4] / "share" / "example-robot-data" / "robots"
    talos = folder / "talos_data" / "robots" / "talos_reduced.urdf"
    if not talos.exists():
        return robot("humanoid36", humanoid(), floating_base=True)
    return robot("talos", talos, floating_base=True)


def fixed_humanoid() -> Robot:
    return robot("humanoid30", humanoid())


def link_chain(links: int) -> Robot:
    return robot(f"chain{links}", chain(links))


def checked_samples(batch: int) -> Tensor:
    """Numbers of the samples that are compared, spread over a batch."""
    return torch.linspace(0, batch - 1, min(NUM_CHECKED, batch)).long()


@dataclass(frozen=True)
class Case:
    """A robot at a batch of states, in one dtype.

    Attributes:
        robot: the robot.
        dtype: float32 or float64.
        threads: cores to use.
        q: `[batch, num_q]`.
        qd: `[batch, num_dof]`.
        qdd: `[batch, num_dof]`, the acceleration for inverse dynamics.
        tau: `[batch, num_dof]`, zero on a free base, which ADAM cannot push.
        cotangent: of qdd, `[batch, num_dof]`.
    """

    robot: Robot
    dtype: torch.dtype
    threads: int
    q: Tensor
    qd: Tensor
    qdd: Tensor
    tau: Tensor
    cotangent: Tensor

    @staticmethod
    def random(robot: Robot, dtype: torch.dtype, batch: int, threads: int, seed: int = 0) -> Case:
        """States within the robot's limits."""
        g = torch.Generator().manual_seed(seed)
        q, qd = robot.mech.random_state(batch, generator=g)
        qdd, tau, cotangent = torch.randn(3, *qd.shape, generator=g, dtype=torch.float64).unbind()
        if robot.floating_base:
            tau = torch.cat([torch.zeros_like(tau[..., :6]), tau[..., 6:]], -1)
        # Rounded once, so that every dtype's answers are to one question.
        state = (x.to(dtype).contiguous() for x in (q, qd, qdd, tau, cotangent))
        return Case(robot, dtype, threads, *state)

    @property
    def batch(self) -> int:
        """Number of states."""
        return len(self.q)

    @cached_property
    def checked(self) -> Tensor:
        """Numbers of the states that are compared."""
        return checked_samples(self.batch)

    @cached_property
    def answers(self) -> dict[str, tuple[Tensor, ...]]:
        """Eager torchsko in float64 at the checked states; gradients to q in its tangent."""
        mech = self.robot.mech
        state = (self.q, self.qd, self.qdd, self.tau, self.cotangent)
        q, qd, qdd, tau, cotangent = (x[self.checked].double() for x in state)
        value, pullback = torch.func.vjp(
            lambda q, qd, tau: ts.forward_dynamics(mech, q, qd, tau), q, qd, tau
        )
        dq, dqd, dtau = pullback(cotangent)
        return {
            "inverse": (ts.inverse_dynamics(mech, q, qd, qdd),),
            "forward": (value,),
            "mass_matrix": (ts.mass_matrix(mech, q),),
            "forward_vjp": (value, tangent(mech, q, dq), dqd, dtau),
        }


def tangent(mech: ts.Mechanism, q: Tensor, gradient: Tensor) -> Tensor:
    """The gradient to steps from q, `[*batch, num_dof]`, of a gradient to q."""
    step = q.new_zeros(*q.shape[:-1], mech.num_dof)
    (found,) = torch.func.vjp(lambda x: ts.integrate(mech, q, x), step)[1](gradient)
    return found


@dataclass(frozen=True)
class Entry:
    """One contestant in one verb.

    Attributes:
        name: in the tables.
        verb: one of `VERBS`.
        run: what is timed: from inputs in the library's own layout to its own results.
        ours: maps its results at the checked states to torchsko's conventions, as in `Case.answers`.
        autodiff: whether derivatives come from automatic differentiation.
    """

    name: str
    verb: str
    run: Callable[[], object]
    ours: Callable[[object], tuple[Tensor, ...]]
    autodiff: bool = False


class MissingPeerError(Exception):
    """A contestant that cannot take part; the message has the reason and enters the report."""


def largest_error(case: Case, entry: Entry, result: object) -> float:
    """Largest error over the checked states, relative to the largest entry of each state's answer."""
    worst = 0.0
    for mine, right in zip(entry.ours(result), case.answers[entry.verb], strict=True):
        error, size = ((x.double().flatten(1)).abs().amax(1) for x in (mine - right, right))
        worst = max(worst, (error / size).nan_to_num(math.inf).max().item())
    return worst
