"""Structures move between devices as a whole."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from torch import Tensor

from tests.linkages import LINKAGES


def tensors(x: Any) -> Iterator[Tensor]:
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, tuple):
        for part in x:
            yield from tensors(part)
    elif dataclasses.is_dataclass(x):
        for field in dataclasses.fields(x):
            yield from tensors(getattr(x, field.name))


@pytest.mark.parametrize("name", ["gear, cam and rod", "biped of six loops"])
def test_every_tensor_of_a_mechanism_moves_to_its_device(name):
    mech = LINKAGES[name]()
    assert {x.device.type for x in tensors(mech.to("meta"))} == {"meta"}
    assert mech.to("cpu").layout is mech.layout
