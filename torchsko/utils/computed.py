"""Attributes of immutable values that are computed when they are first read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class computed(Generic[T]):  # noqa: N801 - a decorator, as `property`
    """A method that becomes an attribute, evaluated at most once for each value.

    `functools.cached_property` holds a lock in Python 3.11, which `torch.compile` cannot trace.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, value: None, owner: type) -> computed[T]: ...
    @overload
    def __get__(self, value: object, owner: type) -> T: ...
    def __get__(self, value: object | None, owner: type) -> computed[T] | T:
        if value is None:
            return self
        result = self.function(value)
        object.__setattr__(value, self.name, result)
        return result
