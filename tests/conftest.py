"""Shared settings and fixtures: deterministic hypothesis in CI, kernels in a cache of their own, an arm."""

import os
from collections import defaultdict

import hypothesis
import pytest
import torch

import torchsko as ts
from tests.papers import pytest_addoption as pytest_addoption
from tests.papers import pytest_collection_finish as pytest_collection_finish
from tests.papers import pytest_runtest_call as pytest_runtest_call

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, max_examples=12)
hypothesis.settings.register_profile("nightly", deadline=None, max_examples=400)
# Workers share the cores already, and an OpenMP barrier waits for whoever holds the other one.
torch.set_num_threads(1)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    # Workers share one: what one has built, the others load.
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernels"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHSKO_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def arm():
    return ts.load(ts.robots.panda)


@pytest.fixture(scope="module")
def fast(arm):
    return ts.fuse(arm)


@pytest.hookimpl(tryfirst=True)  # before pytest reads -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leave_most_to_the_night(items)
    if torch.cuda.is_available():
        return
    for item in items:
        if "cuda" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))


def leave_most_to_the_night(items: list[pytest.Item]) -> None:
    """Mark as nightly all cases of a test marked `some(n)` but n, evenly spread."""
    cases = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("some")
        if mark is not None and item.get_closest_marker("nightly") is None:
            cases[item.nodeid.split("[")[0], *mark.args].append(item)
    for (_, n), same in cases.items():
        last = len(same) - 1
        kept = {round(k * last / max(n - 1, 1)) for k in range(n)}
        for k, item in enumerate(same):
            if k not in kept:
                item.add_marker(pytest.mark.nightly)
