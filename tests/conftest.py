"""Shared settings: deterministic hypothesis in CI, kernels in a cache of their own, GPU tests skip."""

import os

import hypothesis
import pytest
import torch

from tests.papers import pytest_addoption as pytest_addoption
from tests.papers import pytest_collection_finish as pytest_collection_finish
from tests.papers import pytest_runtest_call as pytest_runtest_call

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, max_examples=25)
hypothesis.settings.register_profile("nightly", deadline=None, max_examples=400)
# Workers share the cores already, and an OpenMP barrier waits for whoever holds the other one.
torch.set_num_threads(1)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHSKO_CACHE", str(folder))
        yield folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "cuda" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))
