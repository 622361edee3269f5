"""Sessions for asyncio: the same methods as coroutines. No thread and no task runs beside the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import weakref
from typing import Any, Callable, Generator, Iterable, Mapping, Sequence, TypeVar

from . import _disco
from ._disco import Ref
from ._errors import Closed
from ._session import LEAVE_LIMIT, Base, Loaded, Replaced, Resized, blocks, chosen, entries_of, loaded_of, options_of

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


_of_loops: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Waits]" = weakref.WeakKeyDictionary()


async def wait(operation: _disco.Operation[T]) -> T:
    """The result of an operation. Cancelling ends the wait, and not the command."""
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


class Session(Base):
    """As :class:`disco.Session`, for asyncio. Made by :func:`session`."""

    async def put(self, value: T) -> Ref[T]:
        """A handle to the same object on all workers."""
        return self._core.put(value)

    async def put_each(self, values: Iterable[Any]) -> Ref[Any]:
        """A handle to another object on each worker: one for each, in order."""
        return await wait(self._core.put_each(list(values)))

    async def scatter(self, array: Any) -> Ref[Any]:
        """A handle to one of N equal blocks of an array along axis 0 on each of N workers."""
        return await wait(self._core.put_each(blocks(array, self.size)))

    async def get(self, ref: Ref[T], worker: int = 0) -> T:
        """The object of one worker. ``await ref`` has the objects of all."""
        found: T = await wait(self._core.get(ref, worker))
        return found

    async def sync(self, worker: int | None = None) -> None:
        """Waits until all workers, or one, have executed all calls so far."""
        await wait(self._core.sync(worker))

    async def init_ccl(self, backend: str = "auto", devices: Sequence[int] = ()) -> None:
        """Makes communicators of a backend on all workers."""
        await wait(self._core.init_ccl(chosen(backend, self.size), list(devices)))

    async def recover(self) -> None:
        """Lets the workers forget a failure."""
        await wait(self._core.recover())

    async def replace_lost(self) -> Replaced:
        """Starts new workers in the places of lost ones."""
        return Replaced(*await wait(self._core.replace_lost()))

    async def resize(self, workers: int) -> Resized:
        """Changes the number of workers."""
        return Resized(*await wait(self._core.resize(workers)))

    async def subset(self, workers: Iterable[int], groups: int = 1, backend: str | None = None) -> "Session":
        """A session of some workers of this one."""
        subset = Session(await wait(self._core.subset(list(workers), groups)))
        if backend is not None:
            await subset.init_ccl(backend)
        return subset

    async def save(
        self,
        folder: str | os.PathLike[str],
        step: int,
        tensors: Mapping[str, Ref[Any] | tuple[Ref[Any], str | int]],
        *,
        notes: Mapping[str, Any] | None = None,
        keep: int | None = None,
    ) -> "os.PathLike[str]":
        """Saves arrays as a checkpoint, as :meth:`disco.Session.save`."""
        saved = await wait(self._core.save(folder, step, entries_of(tensors), json.dumps(dict(notes or {})), keep))
        return saved[0]

    async def load(self, folder: str | os.PathLike[str]) -> Loaded | None:
        """Loads the newest checkpoint of a folder that has no damage."""
        return loaded_of(await wait(self._core.load(folder)))

    async def shutdown(self) -> None:
        """Ends the session and its workers, after the calls so far."""
        await wait(self._core.shutdown())

    async def __aenter__(self) -> "Session":
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
            async with asyncio.timeout(LEAVE_LIMIT):
                await self.shutdown()


class _Start:
    """A session that starts: ``await`` it, or use it in ``async with``."""

    def __init__(self, options: dict[str, Any], backend: str | None, devices: Sequence[int]) -> None:
        self._options, self._backend, self._devices = options, backend, devices
        self._session: Session | None = None

    def __await__(self) -> Generator[Any, None, Session]:
        return self._start().__await__()

    async def _start(self) -> Session:
        started = Session(await wait(_disco.Session.start(self._options)))
        if self._backend is not None:
            try:
                await started.init_ccl(self._backend, self._devices)
            except BaseException as error:
                await started.__aexit__(type(error), error, None)
                raise
        return started

    async def __aenter__(self) -> Session:
        self._session = await self._start()
        return self._session

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._session is not None:
            await self._session.__aexit__(kind, error, trace)


def session(
    *,
    processes: int | None = None,
    threads: int | None = None,
    nodes: int | None = None,
    per_node: int | None = None,
    backend: str | None = "auto",
    devices: Sequence[int] = (),
    **options: Any,
) -> _Start:
    """As :func:`disco.session`: ``async with session(processes=4) as s`` or ``s = await session(processes=4)``."""
    return _Start(options_of(processes, threads, nodes, per_node, options), backend, devices)
