"""Kernels built by these tests go to a cache of their own."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHSKO_CACHE", str(folder))
        yield folder
