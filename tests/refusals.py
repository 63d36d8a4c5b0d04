"""How an error of the library reads: what is wrong by name, why, and what to type."""

from collections.abc import Callable

import pytest

import torchsko as ts


def assert_refused(call: Callable[[], object], what: str) -> None:
    """A call ends in an error of the library, of three lines, that matches a pattern."""
    with pytest.raises(ts.TorchskoError, match=f"(?s){what}") as error:
        call()
    lines = str(error.value).splitlines()
    assert len(lines) == 3
    assert all(line.strip() for line in lines)
