"""Frequencies of beams and of an elastic slider-crank against flexible bodies (flex) of MuJoCo 4."""

import mujoco
import numpy as np
import pytest
import torch
from torch.func import jacfwd

import torchsko as ts
from tests.flexible.test_beams import at_rest, clamped
from torchsko.mechanism.flexible.craig_bampton import rigid_motions

Matrices = tuple[np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture(autouse=True)
def folder_of_logs(tmp_path, monkeypatch):
    """MuJoCo writes its log into the working folder."""
    monkeypatch.chdir(tmp_path)


def linearized(model) -> Matrices:
    """Mass matrix, stiffness by central differences, and Jacobian of the equalities, at rest."""
    data, n = mujoco.MjData(model), model.nv
    mujoco.mj_forward(model, data)
    M, K, J, q = np.zeros((n, n)), np.zeros((n, n)), np.zeros((data.nefc, n)), data.qpos.copy()
    mujoco.mj_fullM(model, data, M)
    if mujoco.mj_isSparse(model):
        parts = (data.efc_J_rownnz, data.efc_J_rowadr, data.efc_J_colind)
        mujoco.mju_sparse2dense(J, data.efc_J, *parts)
    else:
        J[:] = data.efc_J.reshape(J.shape)
    for i in range(n):
        forces = []
        for step in (1e-6, -1e-6):
            data.qpos[:] = q
            mujoco.mj_integratePos(model, data.qpos, step * np.eye(n)[i], 1.0)
            mujoco.mj_fwdPosition(model, data)
            mujoco.mj_fwdVelocity(model, data)
            forces.append(data.qfrc_passive.copy())
        K[:, i] = (forces[1] - forces[0]) / 2e-6
    return M, (K + K.T) / 2, J


def frequencies(M: np.ndarray, K: np.ndarray, J: np.ndarray) -> np.ndarray:
    """Angular frequencies of motions with J qd = 0, ascending."""
    _, sizes, rows = np.linalg.svd(J)
    N = rows[int((sizes > 1e-9 * sizes.max(initial=0)).sum()) :].T
    inner = np.linalg.inv(np.linalg.cholesky(N.T @ M @ N))
    return np.sqrt(np.linalg.eigvalsh(inner @ N.T @ K @ N @ inner.T).clip(min=0))


def rod(cells: int, section: str) -> str:
    """A rod along x, clamped by its first two nodes, whose ends are half a cell from the nodes."""
    return f"""<mujoco><option gravity="0 0 0"/><worldbody><flexcomp name="rod" type="grid" dim="1"
      count="{cells + 1} 1 1" spacing="{1 / cells} 1 1" mass="{1 + 1 / cells}" radius=".01">
      <elasticity young="1e7" poisson=".3" {section}/><pin id="0 1"/>
      <contact selfcollide="none" contype="0" conaffinity="0"/></flexcomp></worldbody></mujoco>"""


@pytest.mark.parametrize(
    ("section", "EI"),
    [
        ('section="circle"', [1e7 * np.pi * 0.01**4 / 4] * 2),
        ('section="box" sectionsize=".02 .01"', [1e7 * 0.02 * 0.04**3 / 12, 1e7 * 0.04 * 0.02**3 / 12]),
    ],
    ids=["circle", "box"],
)  # fmt: skip
def test_rods_of_mujoco_converge_to_beams(section, EI):
    """The error of the lowest three frequencies of each plane falls with the square of the size of cells."""
    found = []
    for k in (0, 1):
        beam = ts.FlexibleBody.beam(1.0, 1.0, EI_y=EI[k], shapes=(6, 0))
        found.append(at_rest(clamped(beam)).sqrt().numpy()[:3])
    wanted, errors = np.sort(np.concatenate(found)), []
    for cells in (10, 30):
        model = mujoco.MjModel.from_xml_string(rod(cells, section))
        M, K, _ = linearized(model)
        axes, slides = model.jnt_axis, model.jnt_type == 2
        planes = [np.flatnonzero(slides & (axes[:, k] > 0.9)) for k in (1, 2)]
        theirs = [
            frequencies(M[np.ix_(i, i)], K[np.ix_(i, i)], np.zeros((0, len(i))))[:3] for i in planes
        ]
        errors.append(np.abs(np.sort(np.concatenate(theirs)) / wanted - 1).max())
    assert errors[1] < 2e-3 and errors[0] > 7 * errors[1]


FITTINGS = "".join(
    f'<connect body1="rod_{i}_{j}_{k}" body2="{fitting}" anchor="0 0 0"/>'
    for i, fitting in ((0, "left"), (12, "right"))
    for j in (0, 1)
    for k in (0, 1)
)
SLIDER_CRANK = f"""<mujoco><option gravity="0 0 0"/><worldbody>
  <body name="crank" pos="-.5 0 .7"><joint name="drive" axis="0 1 0"/>
    <geom type="cylinder" size=".18 .025" euler="90 0 0" mass=".4"/>
    <body name="left" pos=".18 0 0"><joint axis="0 1 0"/>
      <geom type="box" size=".025 .045 .035" mass=".03"/></body></body>
  <body name="slider" pos=".58 0 .7"><joint type="slide" axis="1 0 0"/>
    <geom type="box" size=".065 .11 .06" mass="1"/>
    <body name="right"><joint axis="0 1 0"/><geom type="box" size=".025 .045 .035" mass=".03"/></body></body>
  <body name="frame" pos="-.32 0 .7"><flexcomp name="rod" type="grid" count="37 3 3" spacing=".025 .03 .02"
    pos=".45 0 0" dim="3" dof="trilinear" cellcount="12 1 1" mass=".15" radius=".001">
    <elasticity young="1e6" poisson=".25"/>
    <contact selfcollide="none" contype="0" conaffinity="0"/></flexcomp></body>
</worldbody><equality>{FITTINGS}</equality></mujoco>"""
"""Masses, elements and attachments of model/flex/mechanisms/slidercrank.xml of MuJoCo 4.0."""


def reduced_rod(model, M: np.ndarray, K: np.ndarray) -> ts.FlexibleBody:
    """The flex as a finite-element model with its frame at the left fitting."""
    dofs = [i for i in range(model.nv) if model.body(model.dof_bodyid[i]).name.startswith("rod")]
    names = [model.body(model.dof_bodyid[i]).name for i in dofs[::3]]
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    x = np.array([data.body(name).xpos for name in names])
    root, end = (
        [i for i, name in enumerate(names) if name.startswith(f"rod_{k}_")] for k in (0, 12)
    )
    x = x - x[root].mean(0)
    R = rigid_motions(x, 3)  # differences leave small forces of rigid motions
    P = np.eye(len(dofs)) - R @ np.linalg.solve(R.T @ R, R.T)
    M, K = M[np.ix_(dofs, dofs)], P @ K[np.ix_(dofs, dofs)] @ P
    options = {"root": root, "markers": {"end": end}, "modes": 8}
    return ts.FlexibleBody.from_finite_elements(M, (K + K.T) / 2, x, **options, second_order=None)


def slider_crank(rod: ts.FlexibleBody) -> ts.Mechanism:
    def box(x: float, y: float, z: float, mass: float) -> list[list[float]]:
        moments = [
            mass / 3 * (y * y + z * z),
            mass / 3 * (x * x + z * z),
            mass / 3 * (x * x + y * y),
        ]
        return np.diag(moments).tolist()

    disk = 0.4 * 0.18**2 * np.diag([0.25, 0.5, 0.25]) + 0.4 * 0.05**2 / 12 * np.diag([1, 0, 1])
    fitting = {"mass": 0.03, "inertia": box(0.025, 0.045, 0.035, 0.03)}
    builder = ts.MechanismBuilder("slider-crank").link("crank", mass=0.4, inertia=disk.tolist())
    builder.link("left", **fitting).link("right", **fitting).link("slider", mass=1.0)
    builder.flexible_link("rod", rod)
    builder.joint("drive", "revolute", child="crank", axis=(0, 1, 0))
    pin = {"position": (0.18, 0, 0), "axis": (0, 1, 0)}
    builder.joint("pin", "revolute", parent="crank", child="left", **pin)
    builder.joint("slide", "prismatic", child="slider", position=(1.08, 0, 0), axis=(1, 0, 0))
    builder.joint("left_end", "fixed", parent="left", child="rod")
    builder.joint("right_end", "fixed", parent="rod/end", child="right")
    hinge = (((1, 0, 0), (0, 0, 1), (0, -1, 0)), (0, 0, 0))  # z of the loop is y
    builder.close("bolt", "revolute", "right", hinge, "slider", hinge, method="cut")
    return builder.build(gravity=(0, 0, 0))


def test_an_elastic_slider_crank_has_the_frequencies_of_mujoco():
    """Of the eight lowest modes, in and out of the plane, after the motion of the mechanism."""
    model = mujoco.MjModel.from_xml_string(SLIDER_CRANK)
    M, K, J = linearized(model)
    wanted = frequencies(M, K, J)[1:9]
    mech = slider_crank(reduced_rod(model, M, K))
    q, qd = mech.neutral(), torch.zeros(mech.num_dof, dtype=mech.dtype)
    K = jacfwd(lambda q: ts.passive_force(mech, q, qd))(q).numpy()
    J = ts.constrain(mech, mech.closures).jacobian(q).numpy()
    found = frequencies(ts.mass_matrix(mech, q).numpy(), K, J)[1:9]
    assert np.abs(found / wanted - 1).max() < 1e-2


def test_a_flex_of_a_file_is_named():
    with pytest.warns(ts.RobotFileWarning, match=r"1 flexible bodies \(rod\): .*FlexibleBody"):
        ts.load(rod(4, ""))
    with pytest.raises(ts.TorchskoError, match=r"flexible bodies \(rod\)"):
        ts.load(rod(4, ""), strict=True)
