"""Sessions that block until a result is there."""

from __future__ import annotations

import atexit
import contextlib
import glob
import json
import os
import sys
import types
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence, TypeVar, cast

from . import _disco
from ._disco import Ref
from ._errors import Closed, Timeout
from ._functions import Function, are_as_sent, describe, sent_of

T = TypeVar("T")


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
    path: "os.PathLike[str]"
    #: Its step.
    step: int
    #: Handles to the tensors, by name. A worker gets a :class:`Tensor`, which ``numpy.from_dlpack`` takes.
    tensors: dict[str, Ref[Any]]
    #: What was saved beside them.
    notes: dict[str, Any]


class RemoteFunction:
    """A function of Rust, C or C++ on the workers: ``session["name"](*args)`` returns a handle to the results at once.

    Arguments are numbers, texts, bytes, arrays, lists, tuples and dicts of them, and handles.
    """

    def __init__(self, core: _disco.Session, name: str, handle: Ref[Any]) -> None:
        self._core, self._handle, self.name = core, handle, name

    def __call__(self, *args: Any) -> Ref[Any]:
        return self._core.call_plain(self._handle, args)

    def __repr__(self) -> str:
        return f"<disco.RemoteFunction {self.name}>"


class Library:
    """A shared library that all workers have opened: ``library["name"](*args)`` calls a function that it exports by the C ABI
    of TVM-FFI. It is closed when this object, its functions and its objects are gone.
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
    """What sessions of both kinds do without waiting."""

    def __init__(self, core: _disco.Session) -> None:
        self._core = core
        self._named: dict[str, RemoteFunction] = {}

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

    def call(self, function: Function[Any] | Callable[..., Any], /, *args: Any, **kwargs: Any) -> Ref[Any]:
        """Calls ``function(ctx, *args, **kwargs)`` on all workers, and returns a handle to the results at once.

        A handle among the arguments stands for each worker's object. Other arguments are sent to all workers: an array
        keeps its library, and workers that are processes get a copy of their own.
        """
        return self._core.call(self._send(function), args, kwargs or None)

    def _send(self, function: Any) -> Ref[Any]:
        plain = function.function if isinstance(function, Function) else function
        if not callable(plain) or isinstance(plain, (type, types.MethodDescriptorType, types.BuiltinFunctionType)):
            raise TypeError(f"{plain!r} is no function of Python; call a function with the worker's context as its first argument")
        # With the function, so that both are freed together: the names may lead to the function. Objects that can be called
        # may change at any time, and are sent each time.
        sent = sent_of(plain) if isinstance(plain, types.FunctionType) else None
        if sent is not None and self in sent:
            handle, changes, names = sent[self]
            if changes == self._core.changes and are_as_sent(names):
                return cast(Ref[Any], handle)
        changes = self._core.changes
        described, names = describe(plain)
        handle = self._core.define(getattr(plain, "__qualname__", type(plain).__qualname__), described)
        if sent is not None:
            sent[self] = (handle, changes, names)
        return handle

    def __getitem__(self, name: str) -> RemoteFunction:
        """The function of Rust, C or C++ that is registered under this name."""
        found = self._named.get(name)
        if found is None:
            found = self._named[name] = RemoteFunction(self._core, name, self._core.function(name).wait())
        return found

    def load_library(self, path: str | os.PathLike[str], *, send: bool = False) -> Library:
        """Opens a shared library on all workers. With ``send`` they get this program's file; else each opens its own."""
        return Library(self._core, self._core.load_library(path, send).wait())

    def global_function(self, name: str) -> RemoteFunction:
        """The function that a library has registered with libtvm_ffi under this name."""
        return RemoteFunction(self._core, name, self._core.global_function(name).wait())

    def __reduce__(self) -> Any:
        raise TypeError("a session stays with its program: it can be neither an argument nor a global name of a worker function")

    def status(self) -> dict[str, Any]:
        """The state of the session: its nodes and workers, and what each worker is doing. Times are in seconds."""
        status: dict[str, Any] = json.loads(self._core.status())
        return status

    def __repr__(self) -> str:
        try:
            workers = f"{self._core.size} workers"
        except RuntimeError:
            # After a fork.
            workers = "another process"
        return f"<{type(self).__module__}.{type(self).__qualname__} of {workers}>"


class Session(Base):
    """A session: one controller, this program, and N workers. Made by :func:`session`.

    Use it in a ``with`` statement, which shuts it down, and after an exception waits at most 3 s for functions. Calls return at
    once; ``get``, ``get_all`` and ``sync`` wait. All workers execute the calls in the same order. Several threads may use a
    session.

    Each method that waits raises the failure of a worker as :class:`WorkerError`, :class:`Lost` if a worker is lost, and
    :class:`Timeout` after ``timeout`` seconds; Ctrl-C ends the wait, and not the command.
    """

    def put(self, value: T) -> Ref[T]:
        """A handle to the same object on all workers. Returns at once."""
        return self._core.put(value)

    def put_each(self, values: Iterable[Any], timeout: float | None = None) -> Ref[Any]:
        """A handle to another object on each worker: one for each, in order."""
        return self._core.put_each(list(values)).wait(timeout)

    def scatter(self, array: Any, timeout: float | None = None) -> Ref[Any]:
        """A handle to one of N equal blocks of an array along axis 0 on each of N workers."""
        return self._core.put_each(blocks(array, self.size)).wait(timeout)

    def sync(self, worker: int | None = None, timeout: float | None = None) -> None:
        """Waits until all workers, or one, have executed all calls so far."""
        self._core.sync(worker).wait(timeout)

    def init_ccl(self, backend: str = "auto", devices: Sequence[int] = ()) -> None:
        """Makes communicators of a backend on all workers. After a failure this makes the session usable again. Earlier calls that
        still wait in a collective for a rank fail then.

        ``devices`` has a device for each worker; without, worker i of a machine takes device i.
        """
        self._core.init_ccl(chosen(backend, self.size), list(devices)).wait()

    def recover(self) -> None:
        """Lets the workers forget a failure; their communicators end. They keep their objects and state. Without a failure, this does
        nothing, also if a call waits for a rank: ``init_ccl`` ends that."""
        self._core.recover().wait()

    def replace_lost(self) -> Replaced:
        """Starts new workers in the places of lost ones. They have no objects and no state yet."""
        return Replaced(*self._core.replace_lost().wait())

    def resize(self, workers: int) -> Resized:
        """Changes the number of workers: the last ones leave, or new ones join."""
        return Resized(*self._core.resize(workers).wait())

    def subset(self, workers: Iterable[int], groups: int = 1, backend: str | None = None) -> "Session":
        """A session of some workers of this one, in the same processes, with its own order of calls and its own failures."""
        subset = Session(self._core.subset(list(workers), groups).wait())
        if backend is not None:
            subset.init_ccl(backend)
        return subset

    def save(
        self,
        folder: str | os.PathLike[str],
        step: int,
        tensors: Mapping[str, Ref[Any] | tuple[Ref[Any], str | int]],
        *,
        notes: Mapping[str, Any] | None = None,
        keep: int | None = None,
    ) -> "os.PathLike[str]":
        """Saves arrays as checkpoint ``step`` in a folder that all machines share, and returns the path of the checkpoint.

        ``tensors`` has handles by name, alone for arrays that are equal on all workers, or as ``(handle, axis)`` for parts of
        one array along an axis, which counts from 0, or ``(handle, "per_worker")``. ``notes`` is what JSON can write. Only the
        newest ``keep`` checkpoints stay.
        """
        return self._core.save(folder, step, entries_of(tensors), json.dumps(dict(notes or {})), keep).wait()[0]

    def load(self, folder: str | os.PathLike[str]) -> Loaded | None:
        """Loads the newest checkpoint of a folder that has no damage; ``None`` if there is none. The session may have another
        number of workers than the one that saved: parts are split evenly again."""
        return loaded_of(self._core.load(folder).wait())

    def shutdown(self) -> None:
        """Ends the session and its workers, after the calls so far. Later calls of this method do nothing."""
        self._core.shutdown().wait()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        end(self._core, error)


def end(core: _disco.Session, error: BaseException | None) -> None:
    """Shuts down after the calls so far, and raises their failure unless the program knows it. An exception of the program, or
    Ctrl-C meanwhile, does not wait for a long function."""
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


def entries_of(tensors: Mapping[str, Any]) -> list[tuple[str, Ref[Any], str | int]]:
    """Names, handles and layouts."""
    pairs = [(name, given if isinstance(given, tuple) else (given, "replicated")) for name, given in tensors.items()]
    return [(name, handle, layout) for name, (handle, layout) in pairs]


def loaded_of(found: Any) -> Loaded | None:
    """A checkpoint from what the native part says."""
    if found is None:
        return None
    path, step, tensors, notes = found
    return Loaded(path, step, tensors, json.loads(notes))


def blocks(array: Any, count: int) -> list[Any]:
    """Equal blocks along axis 0."""
    rows = len(array)
    if rows % count:
        raise ValueError(f"scatter: {rows} rows are not divisible into blocks for {count} workers")
    rows //= count
    return [array[rows * index : rows * (index + 1)] for index in range(count)]


def chosen(backend: str, workers: int) -> str:
    """The backend that ``auto`` stands for: ``DISCO_BACKEND``, or that of GPUs if there is one for each worker, or ``local``."""
    if backend != "auto":
        return backend
    if os.environ.get("DISCO_BACKEND"):
        return os.environ["DISCO_BACKEND"]
    for name, devices in (("nccl", "/dev/nvidia[0-9]*"), ("rccl", "/dev/dri/renderD*")):
        has_driver = name == "nccl" or os.path.exists("/dev/kfd")
        if has_driver and len(glob.glob(devices)) >= workers:
            if any(row["name"] == name and row["available"] for row in _disco.backends()):
                return name
    return "local"


def options_of(
    processes: int | None, threads: int | None, nodes: int | None, per_node: int | None, options: dict[str, Any]
) -> dict[str, Any]:
    """The options of the native part, after a check of the kind."""
    kinds = {"processes": processes, "threads": threads, "nodes": nodes}
    given = [(kind, count) for kind, count in kinds.items() if count is not None]
    if len(given) > 1:
        raise TypeError("a session has processes, threads or nodes; only one of them can be given")
    kind, count = given[0] if given else ("processes", _disco.processors())
    if count < 0:
        raise ValueError(f"{kind}={count}: a session needs at least 1 worker")
    if (per_node is not None) != (kind == "nodes"):
        raise TypeError("nodes and per_node belong together: a session of nodes has per_node workers on each")
    workers = count * (per_node or 1)
    options = {"kind": kind, "workers": workers, "apart": kind != "threads", **options}
    if kind == "nodes":
        options["nodes"] = count
    _set_worker_program()
    return options


def session(
    *,
    processes: int | None = None,
    threads: int | None = None,
    nodes: int | None = None,
    per_node: int | None = None,
    backend: str | None = "auto",
    devices: Sequence[int] = (),
    **options: Any,
) -> Session:
    """Starts a session of ``processes`` on this machine, of ``threads`` of this process, or of ``nodes`` with ``per_node`` workers
    each. Without any of them, there is a process for each processor that this program may use.

    All workers of processes and nodes are processes of their own, so that this program outlives any of them. Threads share its interpreter, so
    their Python functions run one at a time; they are for functions of Rust and C.

    ``backend`` is ``"local"``, ``"mpi"``, ``"nccl"``, ``"rccl"`` or ``"auto"``; ``None`` makes no communicators. Further options, times in
    seconds: ``groups``, ``check``, ``value_limit`` (bytes), ``collective_deadline``, ``connect_deadline``, ``start_deadline``, ``reply_deadline``,
    ``call_deadline``, ``close_deadline``, ``silence``, ``heartbeat``, ``trace`` (a file), ``replacement`` (``"never"``, ``"when_asked"``,
    ``"when_recovered"``, ``"at_once"``), ``log_dir``, ``spares``; for nodes ``listen`` (``"HOST:PORT"``), ``token``, ``fan_out``.
    """
    core = _disco.Session.start(options_of(processes, threads, nodes, per_node, options)).wait()
    started = Session(core)
    if backend is not None:
        try:
            started.init_ccl(backend, devices)
        except BaseException as error:
            end(core, error)
            raise
    return started


#: The seed of ``hash`` of all workers, in processes of all machines, so that sets have one order: a collective in a loop over a set
#: must be that of the same item on all ranks. A program that sets the variable chooses another one.
_HASH_SEED = {} if os.environ.get("PYTHONHASHSEED") else {"PYTHONHASHSEED": "0"}


def init() -> None:
    """Returns in the program, and serves in a process that a session or a launcher has started as a worker or a node.

    Call it first: the process of a worker or a node may have to start its interpreter again, with the hash seed of all workers.
    """
    if _HASH_SEED and sys.executable and _disco.is_server():
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **_HASH_SEED})
    _disco.init()


def _set_worker_program() -> None:
    import subprocess

    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    before = os.environ.get("PYTHONPATH")
    path = package if not before else os.pathsep.join((package, before))
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    # The worker finds `disco` by the first variable, and then imports from where this program does.
    # As Python itself, which takes texts only.
    paths = [entry for entry in sys.path if isinstance(entry, str)]
    sent = json.dumps({"path": paths, "PYTHONPATH": before, "log_levels": _log_levels()})
    environment = [("PYTHONPATH", path), ("DISCO_PYTHON", sent), *_HASH_SEED.items()]
    _disco.set_worker_program(sys.executable, [*flags, "-m", "disco._worker"], environment)


def _log_levels() -> dict[str, int]:
    """The levels of the program's loggers, if it has configured logging."""
    logging = sys.modules.get("logging")
    if logging is None:
        return {}
    # Names without a logger of their own have no level.
    loggers = {"": logging.root, **logging.root.manager.loggerDict}
    if not any(getattr(logger, "handlers", None) for logger in loggers.values()):
        return {}
    return {name: logger.level for name, logger in loggers.items() if getattr(logger, "level", 0)}


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
            print("disco: the program ends before the calls of a session that it has left open", file=sys.stderr)
        except Exception as error:
            print(f"disco: a session that the program has left open has failed: {error}", file=sys.stderr)
        try:
            core.shutdown().wait(limit)
        except Exception:
            if core.has_threads:
                # They would run Python in an interpreter that is being taken down.
                print("disco: workers that are threads are still in a function: the program ends at once", file=sys.stderr)
                sys.stdout.flush()
                os._exit(130 if is_interrupted else 1)


os.register_at_fork(after_in_child=_disco.note_fork)
