"""Methods that sessions of both kinds have: one waits for the result, the other one returns a
coroutine.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from ._disco import Operation

P = ParamSpec("P")
T = TypeVar("T")


class Blocking:
    """A session whose methods wait."""

    def _finish(self, operation: Operation[T], timeout: float | None) -> T:
        return operation.wait(timeout)


class Awaited:
    """A session whose methods are coroutines."""

    async def _finish(self, operation: Operation[T], timeout: float | None) -> T:
        from . import aio

        return await aio.wait(operation, timeout)


class Waiting(Generic[P, T]):
    """A method of a session that begins an operation. Its argument ``timeout``, in seconds, is the
    limit of the wait.
    """

    def __init__(self, begin: Callable[Concatenate[Any, P], Operation[T]]) -> None:
        self.begin = begin
        self.__doc__ = begin.__doc__

    @overload
    def __get__(self, session: None, kind: Any) -> Callable[Concatenate[Any, P], Any]: ...
    @overload
    def __get__(self, session: Blocking, kind: Any) -> Callable[P, T]: ...
    @overload
    def __get__(self, session: Awaited, kind: Any) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, session: Any, kind: Any) -> Any:
        @functools.wraps(self.begin)
        def run(session: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
            return session._finish(self.begin(session, *args, **kwargs), kwargs.get("timeout"))

        return run if session is None else types.MethodType(run, session)
