"""Sessions for asyncio: the same methods as coroutines. No thread and no task runs beside the event
loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import weakref
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, TypeVar, Unpack

from . import _disco
from ._disco import Operation, Ref
from ._errors import Closed, DiscoError, Timeout
from ._options import Options
from ._session import LEAVE_LIMIT, Base, begin
from ._waiting import Awaited

__all__ = ["Session", "session", "wait"]

T = TypeVar("T")


class _Waits:
    """The waits of one event loop."""

    def __init__(self) -> None:
        self.native = _disco.Waits()
        self.numbers = itertools.count()
        #: What goes on, by number.
        self.pending: dict[int, Callable[[], None]] = {}

    def go_on(self) -> None:
        for number in self.native.ready():
            if (go_on := self.pending.get(number)) is not None:
                go_on()


_of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Waits] = (
    weakref.WeakKeyDictionary()
)


async def wait(operation: Operation[T], timeout: float | None = None) -> T:
    """The result of an operation. Cancelling ends the wait, and not the command; so does the limit
    of ``timeout`` seconds, with :class:`disco.Timeout`.
    """
    if timeout is None:
        return await _wait(operation)
    try:
        async with asyncio.timeout(timeout):
            return await _wait(operation)
    except TimeoutError as error:
        if isinstance(error, DiscoError):
            raise
        raise Timeout(
            f"no result after {timeout} s: the wait has ended, and what is submitted goes on"
        ) from None


async def _wait(operation: Operation[T]) -> T:
    loop = asyncio.get_running_loop()
    waits = _of_loops.get(loop)
    if waits is None:
        waits = _of_loops[loop] = _Waits()
    number = next(waits.numbers)
    result = operation.poll(waits.native, number)
    if result is not None:
        return result[0]
    future: asyncio.Future[T] = loop.create_future()

    def go_on() -> None:
        if future.done():
            return
        try:
            result = operation.poll(waits.native, number)
        except BaseException as error:
            future.set_exception(error)
        else:
            if result is not None:
                future.set_result(result[0])

    if not waits.pending:
        loop.add_reader(waits.native.fileno(), waits.go_on)
    waits.pending[number] = go_on
    try:
        return await future
    finally:
        del waits.pending[number]
        if not waits.pending:
            loop.remove_reader(waits.native.fileno())
        operation.close()


class Session(Base, Awaited):
    """As :class:`disco.Session`, for asyncio. Made by :func:`session`."""

    async def put(self, value: T) -> Ref[T]:
        """A handle to the same object on all workers."""
        return self._core.put(value)

    async def subset(
        self,
        workers: Iterable[int],
        groups: int = 1,
        backend: str | None = None,
        *,
        collective_deadline: float | None = None,
        timeout: float | None = None,
    ) -> Session:
        """As :meth:`disco.Session.subset`."""
        begun = self._subset(workers, groups, backend, collective_deadline)
        return Session(await wait(begun, timeout))

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            await self._leave()
            return
        try:
            # The program may have shut it down.
            with contextlib.suppress(Closed):
                if not self._core.is_told:
                    await self.sync()
            await self.shutdown()
        except BaseException:
            await self._leave()
            raise

    async def _leave(self) -> None:
        with contextlib.suppress(Exception):
            await self.shutdown(timeout=LEAVE_LIMIT)


class _Start:
    """A session that starts: ``await`` it, or use it in ``async with``."""

    def __init__(self, start: Callable[[], Operation[_disco.Session]]) -> None:
        self._begin = start
        self._session: Session | None = None

    def __await__(self) -> Generator[Any, None, Session]:
        return self._start().__await__()

    async def _start(self) -> Session:
        return Session(await wait(self._begin()))

    async def __aenter__(self) -> Session:
        self._session = await self._start()
        return self._session

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._session is not None:
            await self._session.__aexit__(kind, error, trace)


def session(
    *, backend: str | None = "auto", devices: Sequence[int] = (), **options: Unpack[Options]
) -> _Start:
    """As :func:`disco.session`: ``async with session(processes=4) as s`` or
    ``s = await session(processes=4)``."""
    return _Start(lambda: begin(backend, devices, options))
