"""A `State` is a tuple of tensors of fixed shapes, and nothing of a reset sample is left."""

import io
import subprocess
import sys

import pytest
import torch
from torch.testing import assert_close
from torch.utils import _pytree as pytree

import torchsko as ts

CRATE = """<mujoco><option timestep=".004"/><worldbody><geom type="plane" size="5 5 1"/>
<body pos="0 0 .099"><freejoint/><geom type="box" size=".1 .1 .1" mass="1"/>
<body pos="0 0 .2"><joint name="a" axis="0 1 0"/><geom size=".05" pos=".1 0 0" mass=".2"/>
</body></body></worldbody>
<actuator><general name="drive" joint="a" dyntype="filter" dynprm=".05" gainprm="2"/></actuator>
<keyframe><key name="up" qpos="0 0 1 1 0 0 0 .5" qvel="0 0 0 0 0 0 2" act=".3" time="1.5"/></keyframe>
</mujoco>"""
"""A crate on the ground with an arm, whose actuator has an activation."""

MECH = ts.load(CRATE)
CONTACT = ts.ContactModel.of(MECH)
CTRL = torch.tensor([[0.3], [0.5], [-0.4]], dtype=torch.float64)
BAD = torch.tensor([False, True, False])


def run(state, steps=6, rows=slice(None)):
    for _ in range(steps):
        state = ts.step(MECH, state, CTRL[rows], contact=CONTACT)
    return state


def fresh():
    start = ts.initial_state(MECH, 3)
    return start._replace(qd=start.qd + 0.1 * torch.arange(3, dtype=torch.float64)[:, None])


def fields(state):
    return [(tuple(x.shape), x.dtype) for x in state]


def test_states_have_the_same_fields_before_and_after_a_step():
    first = fresh()
    assert fields(first) == fields(run(first)) == fields(ts.State(*first))
    assert fields(ts.State(first.q, first.qd, act=first.act)) == fields(first)


@pytest.mark.parametrize("start", [fresh(), ts.State(*fresh()[:2])], ids=["initial", "q and qd"])
def test_states_can_be_mixed_sample_by_sample(start):
    used = run(fresh())

    def choose(x, y):
        return torch.where(BAD[(..., *[None] * (y.ndim - 1))], x, y)

    for found in (
        pytree.tree_map(choose, start, used),
        ts.State(*(choose(x, y) for x, y in zip(start, used, strict=True))),
        ts.reset(used, BAD, start),
    ):
        assert isinstance(found, ts.State) and fields(found) == fields(used)
        assert_close(run(found)[:3], [torch.where(BAD[:, None], x, y) for x, y in zip(
            run(fresh())[:3], run(used)[:3], strict=True)], rtol=0, atol=0)  # fmt: skip


@pytest.mark.parametrize("field", ts.State._fields)
def test_nothing_of_a_diverged_sample_is_left_after_a_reset(field):
    """The reset sample runs as a new one and the others as before, both to the last bit."""
    used = run(fresh())
    value = getattr(used, field)
    broken = used._replace(
        **{field: torch.where(BAD[(..., *[None] * (value.ndim - 1))], torch.nan, value)}
    )
    found = run(ts.reset(run(broken, 2), BAD, fresh()))
    new, others = run(fresh()), run(run(used, 2))
    for x, y, z in zip(found, new, others, strict=True):
        assert x.isfinite().all()
        assert_close(x, torch.where(BAD[(..., *[None] * (x.ndim - 1))], y, z), rtol=0, atol=0)


def test_a_reset_state_without_a_batch_serves_all_samples():
    found = ts.reset(run(fresh()), BAD, ts.initial_state(MECH))
    assert fields(found) == fields(fresh())
    assert_close(found.q[1], MECH.initial())


def test_states_pass_through_vmap_compile_and_kernels():
    def one(mech, q, qd, ctrl):
        return ts.step(mech, ts.State(q, qd), ctrl, contact=CONTACT)

    start = ts.State(*fresh()[:2])
    expected = run(start, 1)
    kernel = ts.fuse(one, MECH, shapes={"ctrl": (1,)})(*start[:2], CTRL)
    mapped = torch.func.vmap(lambda *x: one(MECH, *x))(*start[:2], CTRL)
    for found in (kernel, mapped):
        assert isinstance(found, ts.State)
        assert_close(found[:4], expected[:4], rtol=1e-10, atol=1e-10)
    shifted = torch.compile(
        lambda s: s._replace(q=s.q + 1, t=s.t + 1), backend="eager", fullgraph=True
    )
    assert_close(shifted(start), start._replace(q=start.q + 1, t=start.t + 1))
    fresh_state = torch.compile(lambda q, qd: ts.State(q, qd), backend="eager", fullgraph=True)
    assert_close(fresh_state(*start[:2]), start)


def test_states_are_saved_and_loaded_with_weights_only(tmp_path):
    state, file = run(fresh()), tmp_path / "state.pt"
    torch.save(state, file)
    code = f"import torch, torchsko; print(torch.load({str(file)!r}, weights_only=True)._fields)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == str(ts.State._fields), done.stderr
    memory = io.BytesIO(file.read_bytes())
    assert_close(torch.load(memory, weights_only=True), state, rtol=0, atol=0)


def test_a_keyframe_is_a_state():
    key = MECH.keyframe("up", 2)
    assert fields(key) == fields(ts.initial_state(MECH, 2))
    assert key.act.tolist() == [[0.3], [0.3]] and key.t.tolist() == [1.5, 1.5]
    assert_close(key.q[1], MECH.keyframes["up"].q)
    with pytest.raises(ts.MechanismError, match=r"(?s)'down'.*'up'"):
        MECH.keyframe("down")


def test_the_residual_of_a_step_is_the_largest_of_its_substeps():
    state, largest = fresh(), torch.zeros(3, dtype=torch.float64)
    after = ts.step(MECH, state, CTRL, contact=CONTACT, substeps=5)
    for _ in range(5):
        state = ts.step(MECH, state, CTRL, contact=CONTACT)
        largest = torch.maximum(largest, state.residual)
    assert_close(after, state._replace(residual=largest), rtol=0, atol=0)
    assert (largest > state.residual).any()


OTHER = ts.load(
    """<mujoco><worldbody><body><joint name="a"/><geom name="g" size=".1"/></body></worldbody></mujoco>"""
)
WRONG = {
    "dt is 0.0": lambda s: ts.step(MECH, s, dt=0.0),
    "dt is -0.1": lambda s: ts.step(MECH, s, dt=-0.1),
    "substeps is 0": lambda s: ts.step(MECH, s, substeps=0),
    "substeps is 1.5": lambda s: ts.step(MECH, s, substeps=1.5),
    "ctrl is torch.float32": lambda s: ts.step(MECH, s, CTRL.float()),
    "ctrl has shape \\[3, 2\\]": lambda s: ts.step(MECH, s, CTRL.expand(3, 2)),
    "act has shape \\[3, 2\\].*Activations: drive": lambda s: ts.step(
        MECH, s._replace(act=s.act.expand(3, 2))
    ),
    "the batch dimensions \\[3\\], ctrl has \\[2\\]": lambda s: ts.step(MECH, s, CTRL[:2]),
    "controls were given as list": lambda s: ts.step(MECH, s, CTRL.tolist()),
    "state was given as tuple": lambda s: ts.step(MECH, tuple(s)),
    "state was given as Tensor": lambda s: ts.step(MECH, s.q, s.qd, CTRL),
    "contact model has the (shape|joints)": lambda s: ts.step(
        OTHER, ts.initial_state(OTHER), contact=CONTACT
    ),
    "contact model is a str": lambda s: ts.step(MECH, s, contact="soft"),
    "contact model is a SmoothContact": lambda s: ts.rollout(
        MECH, s, None, steps=2, method=ts.ContactStep(ts.contact.SmoothContact.of(MECH))
    ),
    "actuators are torch.float32": lambda s: ts.step(
        MECH, s, CTRL, actuators=ts.actuators.actuators_of(MECH.to(torch.float32))
    ),
    "warmstart has shape \\[3, 2\\]": lambda s: ts.step(MECH, s._replace(warmstart=s.q[:, :2])),
    "contact model is torch.float32": lambda s: ts.step(MECH, s, contact=CONTACT.to(torch.float32)),
    "friction .*\\[8\\], the states have \\[3\\]": lambda s: ts.step(
        MECH, s, contact=CONTACT.replace(friction=CONTACT.friction.expand(8, -1, -1))
    ),
    "mask of a reset is of torch.float64": lambda s: ts.reset(s, s.t, s),
    "mask of a reset has shape \\[2\\]": lambda s: ts.reset(s, BAD[:2], s),
    "start was given as tuple": lambda s: ts.reset(s, BAD, tuple(s)),
    "got the batch dimensions \\(2, 3\\)": lambda s: ts.initial_state(MECH, (2, 3)),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments_are_named_with_advice(message):
    with pytest.raises(
        ts.TorchskoError, match=f"(?s){message}.*(Pass|Give|Type|Expand|insert|Make|as in)"
    ):
        WRONG[message](fresh())


@pytest.mark.parametrize(
    "call",
    [
        lambda s: ts.step(MECH, s),
        lambda s: ts.rollout(MECH, s, steps=1),
        lambda s: ts.rollout(MECH, s, steps=1, method=ts.ContactStep()),
        lambda s: ts.integrators.advance(MECH, s),
        lambda s: ts.linearize(MECH, s),
    ],
)
def test_forces_in_place_of_activations_are_refused(call):
    q, qd = fresh()[:2]
    with pytest.raises(
        ts.ShapeError, match=r"(?s)act has shape \[3, 7\].*drive.*Forces are an arg"
    ):
        call(ts.State(q, qd, torch.ones_like(qd)))


LOOP = """<mujoco><worldbody><body><joint name="a" axis="0 1 0"/><geom size=".1"/><body pos="1 0 0">
<joint name="b" axis="0 1 0"/><geom size=".1"/></body></body></worldbody>
<equality><connect body1="world" body2="body2" anchor="1 0 0"/></equality></mujoco>"""


def test_the_contact_model_of_a_cut_loop_does_not_fit_the_embedded_one():
    names = LOOP.replace('<body pos="1', '<body name="body2" pos="1')
    cut, embedded = (ts.load(names, closures=x) for x in ("cut", "embed"))
    with pytest.raises(ts.MechanismError, match="other couplings or loops"):
        ts.step(embedded, ts.initial_state(embedded), contact=ts.ContactModel.of(cut))


def test_a_captured_batch_of_friction_is_refused_with_the_shapes_of_the_argument():
    many = CONTACT.replace(friction=CONTACT.friction.expand(8, -1, -1))

    def one(mech, q, qd):
        return ts.step(mech, ts.State(q, qd), contact=many).q

    message = r"(?s)friction .*batch dimensions \[8\].*shapes=\{'friction': \(\d, 5\)\}"
    with pytest.raises(ts.MechanismError, match=message):
        ts.fuse(one, MECH)
