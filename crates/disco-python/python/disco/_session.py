"""Sessions, and those that block until a result is there."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import (
    Any,
    Concatenate,
    NamedTuple,
    ParamSpec,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from . import _disco
from ._collective import run as run_collective
from ._disco import Mesh, Operation, Ref, Results
from ._errors import Closed, Timeout
from ._functions import Function, are_as_sent, describe, sent_of
from ._options import HASH_SEED, Options, chosen, native_options
from ._waiting import Blocking, Waiting

P = ParamSpec("P")
T = TypeVar("T")

#: A worker function.
Worker: TypeAlias = Function[P, T] | Callable[Concatenate[Any, P], T]
#: A reduction: its name, or a function that combines two arrays.
Op: TypeAlias = str | Callable[[Any, Any], Any]
#: Axes of the session's mesh, or all workers.
Axes: TypeAlias = str | Iterable[str] | None


class Replaced(NamedTuple):
    """What ``replace_lost`` has done."""

    #: Numbers of the new workers.
    workers: list[int]
    #: Number of the session's epoch.
    epoch: int


class Resized(NamedTuple):
    """What ``resize`` has done."""

    #: For each worker before, its number now; ``None`` if it has left or is lost.
    numbers: list[int | None]
    #: Numbers of the new workers.
    workers: list[int]
    #: Number of the session's epoch.
    epoch: int


class Loaded(NamedTuple):
    """A checkpoint on the workers of a session."""

    #: Its folder.
    path: os.PathLike[str]
    #: Its step.
    step: int
    #: Handles to the tensors, by name. A worker gets a :class:`Tensor`, which ``numpy.from_dlpack``
    #: takes.
    tensors: dict[str, Ref[Any]]
    #: What was saved beside them.
    notes: dict[str, Any]


class RemoteFunction:
    """A function of Rust, C or C++ on the workers: ``session["name"](*args)`` returns a handle to
    the results at once.

    Arguments are numbers, texts, bytes, arrays, lists, tuples and dicts of them, and handles.
    """

    def __init__(self, core: _disco.Session, name: str, handle: Ref[Any]) -> None:
        self._core, self.handle, self.name = core, handle, name

    def __call__(self, *args: Any) -> Ref[Any]:
        return self._core.call(self.handle, args)

    def __repr__(self) -> str:
        return f"<disco.RemoteFunction {self.name}>"


class Library:
    """A shared library that all workers have opened: ``library["name"](*args)`` calls a function
    that it exports by the C ABI of TVM-FFI. It is closed when this object, its functions and its
    objects are gone.
    """

    def __init__(self, core: _disco.Session, handle: Ref[Any]) -> None:
        self._core, self._handle = core, handle
        self._named: dict[str, RemoteFunction] = {}

    def __getitem__(self, name: str) -> RemoteFunction:
        found = self._named.get(name)
        if found is None:
            handle = self._core.library_function(self._handle, name).wait()
            found = self._named[name] = RemoteFunction(self._core, name, handle)
        return found


class Base:
    """What sessions of both kinds have."""

    def __init__(self, core: _disco.Session) -> None:
        self._core = core
        self._named: dict[str, RemoteFunction] = {}
        #: The mesh, and how often workers had been replaced when they got it.
        self._mesh: tuple[Mesh, int] | None = None
        self._mesh_lock = threading.Lock()

    @property
    def size(self) -> int:
        """Number of workers."""
        return self._core.size

    @property
    def groups(self) -> int:
        """Number of equal groups of workers."""
        return self._core.groups

    def __len__(self) -> int:
        return self._core.size

    @overload
    def call(self, function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Ref[T]: ...
    @overload
    def call(self, function: RemoteFunction, /, *args: Any) -> Ref[Any]: ...
    @overload
    def call(
        self,
        function: Callable[Concatenate[Any, P], T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Ref[T]: ...
    def call(self, function: Any, /, *args: Any, **kwargs: Any) -> Ref[Any]:
        """Calls ``function(ctx, *args, **kwargs)`` on all workers, and returns a handle to the
        results at once.

        A handle among the arguments stands for each worker's object. Other arguments are sent to
        all workers: an array keeps its library, and workers that are processes get a copy of their
        own.
        """
        return self._core.call(self._send(function), args, kwargs or None)

    @overload
    def call_on(
        self, workers: Iterable[int], function: Function[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Ref[T]: ...
    @overload
    def call_on(
        self, workers: Iterable[int], function: RemoteFunction, /, *args: Any
    ) -> Ref[Any]: ...
    @overload
    def call_on(
        self,
        workers: Iterable[int],
        function: Callable[Concatenate[Any, P], T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Ref[T]: ...
    def call_on(
        self, workers: Iterable[int], function: Any, /, *args: Any, **kwargs: Any
    ) -> Ref[Any]:
        """As :meth:`call`, on some workers. Others have ``None`` behind the handle. All ranks of a
        communicator that the function uses are to be among the workers."""
        return self._core.call_on(list(workers), self._send(function), args, kwargs or None)

    def call_each(
        self, function: RemoteFunction | Worker[..., T], args: Iterable[tuple[Any, ...]], /
    ) -> Ref[T]:
        """As :meth:`call`, with a tuple of arguments for each worker, in order:
        ``session.call_each(load, zip(paths, sizes))``. All workers get all arguments, and each
        takes its own: give large arrays with :meth:`put_each`, and pass the handle.
        """
        return self._core.call_each(self._send(function), list(args))

    @overload
    def call_streaming(self, function: RemoteFunction, /, *args: Any) -> Results[Any]: ...
    @overload
    def call_streaming(
        self, function: Worker[P, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> Results[Any]: ...
    def call_streaming(self, function: Any, /, *args: Any, **kwargs: Any) -> Results[Any]:
        """As :meth:`call`, of a function that sends results while it runs, by ``ctx.emit``. Iterate
        over them: ``for worker, loss in session.call_streaming(train, 10)``.
        """
        return self._core.call_streaming(self._send(function), args, kwargs or None)

    def cancel(self, call: Ref[Any], why: str = "the program has cancelled it") -> None:
        """Ends a call that has not ended: its collectives raise ``Cancelled``, and
        ``ctx.cancelled`` is true in it. A wait for its result raises ``Cancelled``, unless the
        function returns; later calls go on. If the call was in a collective, its communicators are
        broken, and the session needs ``init_ccl``.
        """
        self._core.cancel(call, why)

    def mesh(self, **axes: int) -> Mesh:
        """Gives the session a mesh, whose sizes have the number of workers as their product:
        ``session.mesh(dp=2, tp=4)``. In later calls, ``ctx.along("tp")`` has the collectives of the
        workers that differ along this axis only. After :meth:`resize` the session needs another
        one.
        """
        mesh = Mesh(**axes)
        with self._mesh_lock:
            changes = self._core.changes
            self._core.set_mesh(mesh)
            self._mesh = mesh, changes
        return mesh

    def all_reduce(self, x: Ref[T], op: Op = "sum", *, along: Axes = None) -> Ref[T]:
        """A handle to the reduction of all workers' arrays, or of those along axes of the mesh."""
        return self._collective("all_reduce", along, x, op=op)

    def reduce_scatter(self, x: Ref[T], op: Op = "sum", *, along: Axes = None) -> Ref[T]:
        """A handle to each worker's block of the reduction of the arrays, along axis 0."""
        return self._collective("reduce_scatter", along, x, op=op)

    def all_gather(self, x: Ref[T], *, along: Axes = None) -> Ref[T]:
        """A handle to the arrays, stacked along a new axis 0."""
        return self._collective("all_gather", along, x)

    def all_to_all(self, x: Ref[T], *, along: Axes = None) -> Ref[T]:
        """A handle to the blocks along axis 0 that all workers have for each worker."""
        return self._collective("all_to_all", along, x)

    def reduce(
        self, x: Ref[T], op: Op = "sum", *, root: int = 0, along: Axes = None
    ) -> Ref[T | None]:
        """A handle to the reduction of the arrays on rank ``root``, and ``None`` on others."""
        return self._collective("reduce", along, x, op=op, root=root)

    def gather(self, x: Ref[T], *, root: int = 0, along: Axes = None) -> Ref[T | None]:
        """A handle to the arrays, stacked along a new axis 0, on rank ``root``, and ``None`` on
        others.
        """
        return self._collective("gather", along, x, root=root)

    def broadcast(self, x: Ref[T], *, root: int = 0, along: Axes = None) -> Ref[T]:
        """Overwrites the arrays with that of rank ``root``; a handle to them."""
        return self._collective("broadcast", along, x, root=root)

    def _collective(self, name: str, along: Axes, x: Ref[Any], **kwargs: Any) -> Ref[Any]:
        axes = (along,) if isinstance(along, str) else None if along is None else tuple(along)
        return self.call(run_collective, name, axes, x, kwargs)

    def _send(self, function: Any) -> Ref[Any]:
        if self._mesh is not None and self._mesh[1] != self._core.changes:
            self._send_mesh()
        if isinstance(function, RemoteFunction):
            return function.handle
        plain = function.function if isinstance(function, Function) else function
        no_functions = (type, types.MethodDescriptorType, types.BuiltinFunctionType)
        if not callable(plain) or isinstance(plain, no_functions):
            raise TypeError(
                f"{plain!r} is no function of Python; call a function with the worker's context as "
                "its first argument"
            )
        # With the function, so that both are freed together: the names may lead to the function.
        # Objects that can be called may change at any time, and are sent each time.
        sent = sent_of(plain) if isinstance(plain, types.FunctionType) else None
        if sent is not None and self in sent:
            handle, changes, names = sent[self]
            if changes == self._core.changes and are_as_sent(names):
                return cast(Ref[Any], handle)
        changes = self._core.changes
        described, names = describe(plain)
        handle = self._core.define(
            getattr(plain, "__qualname__", type(plain).__qualname__), described
        )
        if sent is not None:
            sent[self] = (handle, changes, names)
        return handle

    def _send_mesh(self) -> None:
        """Sends the mesh to new workers, which lack it."""
        with self._mesh_lock:
            if self._mesh is None:
                return
            mesh, changes = self._mesh[0], self._core.changes
            if mesh.size == self._core.size:
                self._core.set_mesh(mesh)
            self._mesh = mesh, changes

    def __getitem__(self, name: str) -> RemoteFunction:
        """The function of Rust, C or C++ that is registered under this name."""
        found = self._named.get(name)
        if found is None:
            found = RemoteFunction(self._core, name, self._core.function(name).wait())
            self._named[name] = found
        return found

    def _subset(
        self, workers: Iterable[int], groups: int, backend: str | None, deadline: float | None
    ) -> Operation[_disco.Session]:
        numbers = list(workers)
        backend = None if backend is None else chosen(backend)
        return self._core.subset(numbers, groups, backend, deadline)

    def load_library(self, path: str | os.PathLike[str], *, send: bool = False) -> Library:
        """Opens a shared library on all workers. With ``send`` they get this program's file; else
        each opens its own.
        """
        return Library(self._core, self._core.load_library(path, send).wait())

    def global_function(self, name: str) -> RemoteFunction:
        """The function that a library has registered with libtvm_ffi under this name."""
        return RemoteFunction(self._core, name, self._core.global_function(name).wait())

    def __reduce__(self) -> Any:
        raise TypeError(
            "a session stays with its program: it can be neither an argument nor a global name of "
            "a worker function"
        )

    def status(self) -> dict[str, Any]:
        """The state of the session: its nodes and workers, and what each worker is doing. Times are
        in seconds.
        """
        status: dict[str, Any] = json.loads(self._core.status())
        return status

    def __repr__(self) -> str:
        try:
            workers = f"{self._core.size} workers"
        except RuntimeError:
            # After a fork.
            workers = "another process"
        return f"<{type(self).__module__}.{type(self).__qualname__} of {workers}>"

    @Waiting
    def put_each(
        self, values: Iterable[Any], *, timeout: float | None = None
    ) -> Operation[Ref[Any]]:
        """A handle to another object on each worker: one for each, in order."""
        return self._core.put_each(list(values))

    @Waiting
    def scatter(self, array: Any, *, timeout: float | None = None) -> Operation[Ref[Any]]:
        """A handle to one of N equal blocks of an array along axis 0 on each of N workers."""
        return self._core.put_each(blocks(array, self.size))

    @Waiting
    def get(
        self, ref: Ref[Any], worker: int = 0, *, timeout: float | None = None
    ) -> Operation[Any]:
        """The object of one worker. ``ref.get_all()``, or ``await ref``, has the objects of all."""
        return self._core.get(ref, worker)

    @Waiting
    def sync(self, worker: int | None = None, *, timeout: float | None = None) -> Operation[None]:
        """Waits until all workers, or one, have executed all calls so far."""
        return self._core.sync(worker)

    @Waiting
    def init_ccl(
        self, backend: str = "auto", devices: Sequence[int] = (), *, timeout: float | None = None
    ) -> Operation[None]:
        """Makes communicators of a backend on all workers. After a failure this makes the session
        usable again. Earlier calls that still wait in a collective for a rank fail then.

        ``devices`` has a device for each worker; without, worker i of a machine takes device i.
        """
        return self._core.init_ccl(chosen(backend), list(devices))

    @Waiting
    def recover(self, *, timeout: float | None = None) -> Operation[None]:
        """Lets the workers forget a failure; their communicators end. They keep their objects and
        state. Without a failure, this does nothing, also if a call waits for a rank: ``init_ccl``
        ends that.
        """
        return self._core.recover()

    @Waiting
    def is_whole(self, *, timeout: float | None = None) -> Operation[bool]:
        """Whether the communicators of all workers take operations: false before ``init_ccl``, and
        once an operation has failed or was cancelled.
        """
        return self._core.is_whole()

    @Waiting
    def replace_lost(self, *, timeout: float | None = None) -> Operation[Replaced]:
        """Starts new workers in the places of lost ones. They have no objects and no state yet."""
        return self._core.replace_lost().then(lambda found: Replaced(*found))

    @Waiting
    def resize(self, workers: int, *, timeout: float | None = None) -> Operation[Resized]:
        """Changes the number of workers: the last ones leave, or new ones join."""
        return self._core.resize(workers).then(lambda found: Resized(*found))

    @Waiting
    def save(
        self,
        folder: str | os.PathLike[str],
        step: int,
        tensors: Mapping[str, Ref[Any] | tuple[Ref[Any], str | int]],
        *,
        notes: Mapping[str, Any] | None = None,
        keep: int | None = None,
        timeout: float | None = None,
    ) -> Operation[os.PathLike[str]]:
        """Saves arrays as checkpoint ``step`` in a folder that all machines share, and returns the
        path of the checkpoint.

        ``tensors`` has handles by name, alone for arrays that are equal on all workers, or as
        ``(handle, axis)`` for parts of one array along an axis, which counts from 0, or ``(handle,
        "per_worker")``. ``notes`` is what JSON can write. Only the newest ``keep`` checkpoints
        stay.
        """
        pairs = [
            (name, x if isinstance(x, tuple) else (x, "replicated")) for name, x in tensors.items()
        ]
        entries = [(name, handle, layout) for name, (handle, layout) in pairs]
        saved = self._core.save(folder, step, entries, json.dumps(dict(notes or {})), keep)
        return saved.then(lambda found: found[0])

    @Waiting
    def load(
        self, folder: str | os.PathLike[str], *, timeout: float | None = None
    ) -> Operation[Loaded | None]:
        """Loads the newest checkpoint of a folder that has no damage; ``None`` if there is none.
        The session may have another number of workers than the one that saved: parts are split
        evenly again.
        """

        def loaded(found: tuple[Any, int, dict[str, Ref[Any]], str] | None) -> Loaded | None:
            if found is None:
                return None
            path, step, tensors, notes = found
            return Loaded(path, step, tensors, json.loads(notes))

        return self._core.load(folder).then(loaded)

    @Waiting
    def shutdown(self, *, timeout: float | None = None) -> Operation[None]:
        """Ends the session and its workers, after the calls so far. Later calls of this method do
        nothing.
        """
        return self._core.shutdown()


class Session(Base, Blocking):
    """A session: one controller, this program, and N workers. Made by :func:`session`.

    Use it in a ``with`` statement, which shuts it down, and after an exception waits at most 3 s
    for functions. Calls return at once; ``get``, ``get_all`` and ``sync`` wait. All workers execute
    the calls in the same order. Several threads may use a session.

    Each method that waits raises the failure of a worker as :class:`WorkerError`, :class:`Lost` if
    a worker is lost, and :class:`Timeout` after ``timeout`` seconds; Ctrl-C ends the wait, and not
    the command.
    """

    def put(self, value: T) -> Ref[T]:
        """A handle to the same object on all workers. Returns at once."""
        return self._core.put(value)

    def subset(
        self,
        workers: Iterable[int],
        groups: int = 1,
        backend: str | None = None,
        *,
        collective_deadline: float | None = None,
        timeout: float | None = None,
    ) -> Session:
        """A session of some workers of this one, in the same processes, with its own order of calls
        and its own failures, and with its own limit for one collective, if it is given.
        """
        begun = self._subset(workers, groups, backend, collective_deadline)
        return Session(begun.wait(timeout))

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        end(self._core, error)


def end(core: _disco.Session, error: BaseException | None) -> None:
    """Shuts down after the calls so far, and raises their failure unless the program knows it. An
    exception of the program, or Ctrl-C meanwhile, does not wait for a long function.
    """
    if error is not None:
        leave(core)
        return
    try:
        # The program may have shut it down.
        with contextlib.suppress(Closed):
            if not core.is_told:
                core.sync().wait()
        core.shutdown().wait()
    except BaseException:
        leave(core)
        raise


#: Seconds that an exception waits for the functions of workers at the end of ``with``.
LEAVE_LIMIT = 3.0


def leave(core: _disco.Session) -> None:
    """Begins the shutdown, which goes on if a worker is in a long function."""
    with contextlib.suppress(Exception):
        core.shutdown().wait(LEAVE_LIMIT)


def blocks(array: Any, count: int) -> list[Any]:
    """Equal blocks along axis 0."""
    rows = len(array)
    if rows % count:
        raise ValueError(f"scatter: {rows} rows are not divisible into blocks for {count} workers")
    rows //= count
    return [array[rows * index : rows * (index + 1)] for index in range(count)]


def session(
    *, backend: str | None = "auto", devices: Sequence[int] = (), **options: Unpack[Options]
) -> Session:
    """Starts a session of ``processes`` on this machine, of ``threads`` of this process, or of
    ``nodes`` with ``per_node`` workers each. Without any of them, there is a process for each
    processor that this program may use. :class:`Options` has all options.

    All workers of processes and nodes are processes of their own, so that this program outlives any
    of them. Threads share its interpreter, so their Python functions run one at a time; they are
    for functions of Rust and C.

    ``backend`` is ``"local"``, ``"tcp"``, ``"mpi"``, ``"nccl"``, ``"rccl"`` or ``"auto"``; ``None``
    makes no communicators.
    """
    return Session(begin(backend, devices, options).wait())


def begin(
    backend: str | None, devices: Sequence[int], options: Options
) -> Operation[_disco.Session]:
    """Begins the start of a session."""
    native = native_options(**options)
    backend = None if backend is None else chosen(backend)
    return _disco.Session.start(native, backend, list(devices))


def init() -> None:
    """Returns in the program, and serves in a process that a session or a launcher has started as a
    worker or a node.

    Call it first: the process of a worker or a node may have to start its interpreter again, with
    the hash seed of all workers.
    """
    if HASH_SEED and sys.executable and _disco.is_server():
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **HASH_SEED})
    _disco.init()


@atexit.register
def _end_all() -> None:
    is_interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt
    for core in _disco.Session.open():
        # After Ctrl-C nobody waits for a long function.
        limit = 0.5 if is_interrupted else 10
        try:
            if not core.is_told and not is_interrupted:
                core.sync().wait(limit)
        except Closed:
            # An exception has left it, and was not to wait.
            limit = 0.5
        except Timeout:
            print(
                "disco: the program ends before the calls of a session that it has left open",
                file=sys.stderr,
            )
        except Exception as error:
            print(
                f"disco: a session that the program has left open has failed: {error}",
                file=sys.stderr,
            )
        try:
            core.shutdown().wait(limit)
        except Exception:
            if core.has_threads:
                # They would run Python in an interpreter that is being taken down.
                print(
                    "disco: workers that are threads are still in a function: the program ends at "
                    "once",
                    file=sys.stderr,
                )
                sys.stdout.flush()
                os._exit(130 if is_interrupted else 1)


os.register_at_fork(after_in_child=_disco.note_fork)
