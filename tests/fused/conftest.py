"""Fixtures: a robot with two dofs, whose kernels compile quickly, and states of it."""

import pytest

from tests.fused import carts


@pytest.fixture(scope="module")
def slider():
    return carts.slider()


@pytest.fixture
def states():
    return carts.four_states()
