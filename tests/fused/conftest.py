"""The small robot of kernels that are built in no time, and states of it."""

import pytest

from tests.fused import carts


@pytest.fixture(scope="module")
def slider():
    return carts.slider()


@pytest.fixture
def states():
    return carts.four_states()
