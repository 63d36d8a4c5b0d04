"""Fused objects are copied, pickled, saved and sent to other processes like any other object."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import torchsko as ts
from tests.fused.carts import driven, four_states, slider
from torchsko.fused.build import library_cache as build
from torchsko.fused.functions import lazy_kernel as traced


def energy_and_pose(mech, q, qd):
    M = ts.mass_matrix(mech, q)
    return {
        "energy": 0.5 * (qd * (M @ qd[..., None])[..., 0]).sum(-1),
        "pose": ts.forward_kinematics(mech, q),
    }


class Simulator(nn.Module):
    """A module that holds fused objects of every kind."""

    def __init__(self):
        super().__init__()
        mech = slider()
        self.policy = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
        self.fast = ts.fuse(mech)
        self.learnable = ts.fuse(mech, inputs=("mass",)).replace(mass=2 * mech.mass)
        self.step = ts.fuse(self.one, mech)
        self.energy = ts.fuse(energy_and_pose, mech)

    def one(self, mech, q, qd):
        return driven(self.policy)(mech, q, qd)

    def forward(self, q, qd):
        told = self.energy(q, qd)
        return (
            self.fast.forward_dynamics(q, qd, qd),
            self.learnable.mass_matrix(q),
            self.step(q, qd),
            told["energy"],
            told["pose"].position,
        )


class Samples(Dataset):
    """Every sample is computed by the kernels, in whatever process asks for it."""

    def __init__(self, simulator):
        self.simulator = simulator
        self.states = four_states()

    def __len__(self):
        return 4

    def __getitem__(self, k):
        return tuple(y.detach() for y in self.simulator(*(x[k] for x in self.states)))


@pytest.fixture(scope="module")
def simulator():
    torch.manual_seed(0)
    return Simulator()


@pytest.fixture(scope="module")
def states():
    return four_states()


def through_pickle(x):
    return pickle.loads(pickle.dumps(x))


def through_file(x):
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.some(2)
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, through_pickle, through_file])
def test_copies_compute_the_same_from_kernels_that_are_there(
    simulator, states, copied, monkeypatch
):
    expected = simulator(*states)
    monkeypatch.setattr(build, "compile_library", None)
    twin = copied(simulator)
    for mine, theirs in zip(twin(*states), expected, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle, through_file])
def test_copies_learn_on_their_own(simulator, states, copied):
    twin = copied(simulator)
    with torch.no_grad():
        twin.policy[0].weight += 1.0
    assert torch.equal(twin.step(*states), twin.step(*states))
    assert (twin.step(*states) - simulator.step(*states)).abs().max() > 1e-6
    eager = twin.one(twin.step.mechanism(), *states)
    torch.testing.assert_close(twin.step(*states), eager, rtol=1e-12, atol=1e-12)
    (mine,) = torch.autograd.grad(twin.step(*states).sin().sum(), twin.policy[0].weight)
    (theirs,) = torch.autograd.grad(eager.sin().sum(), twin.policy[0].weight)
    torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)


def test_averages_of_a_module_that_holds_kernels(simulator, states):
    averaged = torch.optim.swa_utils.AveragedModel(
        simulator, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    )
    averaged.update_parameters(simulator)
    moved = copy.deepcopy(simulator)
    with torch.no_grad():
        for p in moved.policy.parameters():
            p += 1.0
    averaged.update_parameters(moved)
    expected = copy.deepcopy(simulator)
    with torch.no_grad():
        for p in expected.policy.parameters():
            p += 0.5
    torch.testing.assert_close(averaged.module.step(*states), expected.step(*states))


def test_a_copy_holds_itself_once(simulator):
    twin = copy.deepcopy(simulator.step)
    assert twin._fn.__self__.step is twin


def test_a_copy_of_a_function_needs_no_trace(simulator, states, monkeypatch):
    expected = simulator.energy(*states)["energy"]
    monkeypatch.setattr(traced, "trace", None)
    assert torch.equal(copy.deepcopy(simulator.energy)(*states)["energy"], expected)


@pytest.mark.some(1)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader_run_the_kernels(simulator, states, method):
    expected = simulator(*states)
    loader = DataLoader(
        Samples(simulator), batch_size=4, num_workers=1, multiprocessing_context=method
    )
    (found,) = list(loader)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-13, atol=1e-13)


def test_a_lambda_is_named_by_the_error_that_pickle_raises(states):
    fast = ts.fuse(lambda mech, q, qd: q + qd, slider())
    with pytest.raises((AttributeError, pickle.PicklingError), match="<lambda>"):
        pickle.dumps(fast)
    assert torch.equal(copy.deepcopy(fast)(*states), fast(*states))
