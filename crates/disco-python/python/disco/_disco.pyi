from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from os import PathLike
from typing import Any, Generic, Literal, SupportsIndex, TypeAlias, TypeVar, final

from typing_extensions import disjoint_base

__version__: str

#: An array of numpy, torch, jax or cupy, or another object with ``__dlpack__``.
_Array = TypeVar("_Array")
_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)
#: The name of a reduction, or a function that combines two arrays.
_Op: TypeAlias = str | Callable[[Any, Any], Any]

@final
class NativeError: ...

@final
class Operation(Generic[_T_co]):
    def wait(self, timeout: float | None = None) -> _T_co: ...
    def poll(self, waits: Waits, number: int) -> tuple[_T_co] | None: ...
    def then(self, make: Callable[[_T_co], _T]) -> Operation[_T]: ...
    def close(self) -> None: ...

@final
class Waits:
    def __new__(cls) -> Waits: ...
    def fileno(self) -> int: ...
    def ready(self) -> list[int]: ...

@final
class Tensor:
    """Elements on a device, for libraries with DLPack: `numpy.from_dlpack(tensor)` shares them. The
    functions of numpy take a tensor in host memory as an array.
    """
    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
    @property
    def dtype(self) -> str:
        """Element type: `float32`, `bfloat16`."""
    @property
    def device(self) -> str:
        """`cpu`, `cuda:0`."""
    @property
    def nbytes(self) -> int:
        """Size in bytes."""
    def numpy(self) -> Any:
        """The elements as an array of numpy, which shares them."""
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __reduce_ex__(self, protocol: SupportsIndex, /) -> Any: ...
    @staticmethod
    def _restored(elements: Any, dtype: str, shape: tuple[int, ...]) -> Tensor: ...

@disjoint_base
class Communicator:
    """Collectives of the worker that runs a function, during the call, with the other ranks of one
    scope. `ctx` itself has those of all workers.

    All ranks call them, with arrays of the same shape and dtype. They raise `Mismatch` if the
    ranks' arrays do not fit together, `Deadline` if a rank is missing for the session's
    `collective_deadline`, `Aborted` if another worker has failed, `Unsupported` for a dtype that
    the backend lacks, `NoCommunicator` before `init_ccl`, `TypeError` for an object without
    `__dlpack__`, and `ValueError` or `BufferError` for an output that can't be written in place.
    """
    @property
    def rank(self) -> int:
        """Number of this worker among the ranks, from 0."""
    @property
    def size(self) -> int:
        """Number of ranks."""
    @property
    def start(self) -> _Starting:
        """The same operations, each of which is started: it runs while the function computes, and
        the method returns a `Work` at once. On a GPU, the host waits as for the operation itself.
        """
    def cancel(self, work: Work[Any], cause: str) -> None:
        """Ends a started operation, unless it has ended: `work.wait()` raises `Aborted` then, on
        all ranks. Communicators are broken afterwards, and the session needs `init_ccl`.
        """
    def all_reduce(self, x: _Array, op: _Op = "sum", *, out: _Array | None = None) -> _Array:
        """The reduction of all ranks' `x`, on all ranks: an array of the same shape, or a number if
        `x` is one. With `out=x` in place. Reductions: `sum`, `prod`, `min`, `max`, `avg`; of rows
        along the last axis `disco.argmax`, `disco.logsumexp`, `disco.top_k`; those that a library
        of Rust or C registers; or a function of Python that combines two arrays, which is slow:
        each rank gets all arrays, and combines them in the order of the ranks. Complex numbers have
        `sum` and `avg`.
        """
    def reduce(
        self, x: _Array, op: _Op = "sum", *, root: int = 0, out: _Array | None = None
    ) -> _Array | None:
        """The reduction of all ranks' `x`, of the same shape, on rank `root`; `None` on others."""
    def reduce_scatter(self, x: _Array, op: _Op = "sum", *, out: _Array | None = None) -> _Array:
        """This rank's block along axis 0 of the reduction of all ranks' `x`: shape `[n * k, ..]` to
        `[k, ..]` for `n` ranks.
        """
    def all_gather(self, x: _Array, *, out: _Array | None = None) -> _Array:
        """All ranks' `x`, stacked along a new axis 0: shape `[..]` to `[n, ..]` for `n` ranks. With
        `x=None` or `x=out[r]`, rank `r`'s part is in `out[r]` already.
        """
    def all_gather_v(
        self, x: _Array, counts: Sequence[int], *, out: _Array | None = None
    ) -> _Array:
        """All ranks' `x`, one after the other along axis 0; rank `r` has `counts[r]` rows."""
    def all_to_all(self, x: _Array, *, out: _Array | None = None) -> _Array:
        """The blocks along axis 0 that all ranks have for this one, in the order of the ranks:
        shape `[n * k, ..]`, as that of `x`, whose block `r` goes to rank `r`.
        """
    def all_to_all_v(
        self,
        x: _Array,
        send: Sequence[int],
        receive: Sequence[int],
        *,
        out: _Array | None = None,
    ) -> _Array:
        """As `all_to_all`, with `send[r]` rows for rank `r` and `receive[r]` rows from it."""
    def broadcast(self, x: _Array, *, root: int = 0) -> _Array:
        """Overwrites `x` with that of rank `root`, and returns it. An array of jax does not change,
        and the result is a new one.
        """
    def gather(self, x: _Array, *, root: int = 0, out: _Array | None = None) -> _Array | None:
        """All ranks' `x`, stacked along a new axis 0, on rank `root`; `None` on others."""
    def scatter(self, x: _Array | None, out: _Array, *, root: int = 0) -> _Array:
        """Block `r` along axis 0 of rank `root`'s `x` goes to rank `r`'s `out`, which is
        returned.
        """
    def send(self, x: Any, to: int) -> None:
        """Sends `x` to a rank, which receives it."""
    def receive(self, out: _Array, source: int) -> _Array:
        """Receives into `out` from a rank, and returns it."""
    def exchange(
        self, sends: Sequence[tuple[Any, int]], receives: Sequence[tuple[Any, int]]
    ) -> None:
        """Sends and receives at the same time: `sends` are pairs of an array and a rank, and so are
        `receives`.
        """
    def barrier(self) -> None:
        """Returns when all ranks have called it. `start.barrier().wait(timeout)` waits for a
        limited time.
        """
    def all_gather_object(self, x: _T) -> list[_T]:
        """All ranks' objects, in the order of the ranks. They are pickled."""
    def gather_object(self, x: _T, *, root: int = 0) -> list[_T] | None:
        """All ranks' objects, in the order of the ranks, on rank `root`; `None` on others."""
    def broadcast_object(self, x: Any = None, *, root: int = 0) -> Any:
        """The object of rank `root`, on all ranks; the other ranks need not have one."""
    def scatter_object(self, objects: Sequence[Any] | None = None, *, root: int = 0) -> Any:
        """Item `r` of rank `root`'s list on rank `r`; the other ranks need not have a list."""

#: The methods of a communicator that start their operation.
class _Starting:
    def all_reduce(
        self, x: _Array, op: _Op = "sum", *, out: _Array | None = None
    ) -> Work[_Array]: ...
    def reduce(
        self, x: _Array, op: _Op = "sum", *, root: int = 0, out: _Array | None = None
    ) -> Work[_Array | None]: ...
    def reduce_scatter(
        self, x: _Array, op: _Op = "sum", *, out: _Array | None = None
    ) -> Work[_Array]: ...
    def all_gather(self, x: _Array, *, out: _Array | None = None) -> Work[_Array]: ...
    def all_gather_v(
        self, x: _Array, counts: Sequence[int], *, out: _Array | None = None
    ) -> Work[_Array]: ...
    def all_to_all(self, x: _Array, *, out: _Array | None = None) -> Work[_Array]: ...
    def all_to_all_v(
        self,
        x: _Array,
        send: Sequence[int],
        receive: Sequence[int],
        *,
        out: _Array | None = None,
    ) -> Work[_Array]: ...
    def broadcast(self, x: _Array, *, root: int = 0) -> Work[_Array]: ...
    def gather(
        self, x: _Array, *, root: int = 0, out: _Array | None = None
    ) -> Work[_Array | None]: ...
    def scatter(self, x: _Array | None, out: _Array, *, root: int = 0) -> Work[_Array]: ...
    def send(self, x: Any, to: int) -> Work[None]: ...
    def receive(self, out: _Array, source: int) -> Work[_Array]: ...
    def exchange(
        self, sends: Sequence[tuple[Any, int]], receives: Sequence[tuple[Any, int]]
    ) -> Work[None]: ...
    def barrier(self) -> Work[None]: ...

@final
class Context(Communicator):
    """The worker that runs a function, during the call. It is also the `Communicator` of all
    workers.
    """
    @property
    def worker(self) -> int:
        """Number of this worker, from 0; its rank in collectives."""
    @property
    def world(self) -> int:
        """Number of workers."""
    @property
    def group(self) -> int:
        """Number of this worker's group, from 0."""
    @property
    def groups(self) -> int:
        """Number of groups."""
    @property
    def group_size(self) -> int:
        """Number of workers of a group."""
    @property
    def device(self) -> str:
        """The device of this worker's arrays: `cpu`, `cuda:0`."""
    @property
    def stream(self) -> int:
        """The worker's stream as a number, for `torch.cuda.ExternalStream`; 0 on the host."""
    @property
    def state(self) -> dict[Any, Any]:
        """A dict that belongs to this worker and outlives calls, failures and recoveries."""
    @property
    def in_group(self) -> Communicator:
        """The collectives of this worker's group."""
    def along(self, *axes: str, mesh: Mesh | None = None) -> Communicator:
        """The collectives of the workers that differ from this one along these axes of the
        session's mesh only, or of another `mesh`.
        """
    def emit(self, value: Any) -> None:
        """Sends a result to the program, if it iterates over the results of this call
        (`call_streaming`); in another call this does nothing. Waits while the program has left 16
        results of this worker, or 1 MiB, untaken. Raises `Cancelled` once the program takes no
        more.
        """
    @property
    def cancelled(self) -> bool:
        """Whether the program has cancelled this call, or another failure has ended it: a long
        function then returns.
        """
    @property
    def deadline(self) -> float:
        """The limit for one collective, in seconds: the session's `collective_deadline`."""
    @property
    def store(self) -> Store:
        """The key-value store that all workers of the session share, until the next recovery."""
    def empty(
        self, shape: int | Sequence[int], dtype: Any = None, *, library: str = "numpy"
    ) -> Any:
        """A zeroed array of this shape and dtype (`"float32"` without one) in the worker's memory.
        Ranks of one machine read each other's such arrays in place. Raises `OutOfMemory`.
        """
    def keep(
        self, name: str, shape: int | Sequence[int], dtype: Any = None, *, library: str = "numpy"
    ) -> tuple[Any, bool]:
        """An array of this shape and dtype in memory that outlives the worker, and whether it is
        new, with zeros. A worker that takes the place of a lost one finds under the same name what
        was written last. Raises `ValueError` if the memory has another size, and `OutOfMemory`.
        """
    def discard_kept(self, name: str) -> bool:
        """Discards the memory of this name, which is freed once its arrays are gone. Returns
        whether there was any.
        """
    def synchronize(self) -> None:
        """Waits for the operations that are enqueued on the worker's stream."""

@final
class Work(Generic[_T_co]):
    """An operation that runs while the function computes: its arrays are not to be used until
    `wait` has returned.
    """
    @property
    def has_ended(self) -> bool:
        """Whether the operation has ended, also with an error."""
    def wait(self, timeout: float | None = None) -> _T_co:
        """Waits for the end of the operation, at most `timeout` seconds, and returns what the
        operation itself returns. Raises its error, and `Timeout` if it has not ended; it goes on
        then.
        """

@final
class Store:
    """A key-value store that all workers of a session share, until the next recovery. Values are
    bytes. Its methods raise `Aborted` once another worker has failed.
    """
    def set(self, key: str, value: bytes) -> None:
        """Sets `key` to `value`."""
    def get(self, key: str) -> bytes | None:
        """The value of `key`, or `None` if it is not set."""
    def wait(self, key: str, timeout: float) -> bytes:
        """Waits until `key` is set, and returns its value. Raises `Deadline` after `timeout`
        seconds.
        """
    def add(self, key: str, amount: int) -> int:
        """Adds to the number under `key`, and returns the sum. A key that is not set counts as
        0.
        """
    def compare_and_set(self, key: str, expected: bytes | None, new: bytes) -> bytes:
        """Sets `key` to `new` if its value is `expected`, where `None` is a key that is not set.
        Returns the value afterwards.
        """
    def delete(self, key: str) -> bool:
        """Removes `key`, and returns whether it was set."""

@final
class Mesh:
    """A grid of workers with named axes, such as `Mesh(dp=2, tp=4)`: worker numbers in row-major
    order, so that the last axis varies fastest. `session.mesh` gives a session its mesh.
    """
    def __new__(cls, **axes: int) -> Mesh: ...
    @property
    def size(self) -> int:
        """Number of places: the product of the sizes."""
    @property
    def axes(self) -> dict[str, int]:
        """The sizes of the axes, by their names."""
    def coordinates(self, worker: int) -> dict[str, int]:
        """The place of a worker along each axis, by the axes' names."""
    def worker(self, **place: int) -> int:
        """The worker at a place, which has a number for each axis: `mesh.worker(dp=1, tp=2)`."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    @staticmethod
    def _restored(text: str) -> Mesh: ...

@final
class Results(Generic[_T_co]):
    """The results that a running call sends by `ctx.emit`, to iterate over, also with `async for`:
    pairs of a worker's number and a value, in the order of their arrival. The iteration ends with
    the call, and raises the call's failure.

    `close`, the end of a `with` statement, and dropping it before the end cancel the call. One
    thread or task iterates.
    """
    @property
    def call(self) -> Ref[Any]:
        """The handle of the call, whose objects are what the function returns."""
    def next(self, timeout: float | None = None) -> tuple[int, _T_co]:
        """The next result. Waits at most `timeout` seconds; then it can be waited for again. Raises
        `StopIteration` at the end.
        """
    def close(self) -> None:
        """Cancels the call, unless it has ended."""
    def __iter__(self) -> Iterator[tuple[int, _T_co]]: ...
    def __next__(self) -> tuple[int, _T_co]: ...
    def __aiter__(self) -> AsyncIterator[tuple[int, _T_co]]: ...
    def __anext__(self) -> Awaitable[tuple[int, _T_co]]: ...
    def __enter__(self) -> Results[_T_co]: ...
    def __exit__(self, _kind: Any, _error: Any, _trace: Any, /) -> None: ...

@final
class Ref(Generic[_T_co], Any):  # type: ignore[misc]
    """A handle to one object on each worker. Dropping it frees the objects. It is no sequence:
    `split` makes handles to the items of a result.
    """
    @property
    def register(self) -> int:
        """The number of the register, for messages."""
    def get(self, worker: int = 0, timeout: float | None = None) -> _T_co:
        """The object of one worker, after all calls so far. Waits at most `timeout` seconds."""
    def get_all(self, timeout: float | None = None) -> list[_T_co]:
        """The objects of all workers, in order, after all calls so far. Waits at most `timeout`
        seconds.
        """
    def split(self, count: int) -> tuple[Ref[Any], ...]:
        """Handles to the items of a result that is a tuple or a list of `count` items."""
    def __getitem__(self, worker: int, /) -> Part[_T_co]: ...
    def __await__(self) -> Generator[Any, None, list[_T_co]]: ...

@final
class Part(Generic[_T_co]):
    """The object of one worker behind a handle."""
    def get(self, timeout: float | None = None) -> _T_co:
        """The object, after all calls so far. Waits at most `timeout` seconds."""
    def __await__(self) -> Generator[Any, None, _T_co]: ...

@final
class Session:
    @staticmethod
    def start(
        options: dict[str, Any], backend: str | None, devices: Sequence[int]
    ) -> Operation[Session]: ...
    def subset(
        self,
        workers: Sequence[int],
        groups: int,
        backend: str | None,
        collective_deadline: float | None,
    ) -> Operation[Session]: ...
    @property
    def size(self) -> int: ...
    @property
    def groups(self) -> int: ...
    @property
    def changes(self) -> int: ...
    @property
    def is_told(self) -> bool: ...
    @property
    def has_threads(self) -> bool: ...
    @staticmethod
    def open() -> list[Session]: ...
    def function(self, name: str) -> Operation[Ref[Any]]: ...
    def define(self, name: str, described: Any) -> Ref[Any]: ...
    def call(
        self, function: Ref[Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> Ref[Any]: ...
    def call_on(
        self,
        workers: Sequence[int],
        function: Ref[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
    ) -> Ref[Any]: ...
    def call_each(self, function: Ref[Any], args: Sequence[tuple[Any, ...]]) -> Ref[Any]: ...
    def call_streaming(
        self, function: Ref[Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> Results[Any]: ...
    def cancel(self, call: Ref[Any], why: str) -> None: ...
    def set_mesh(self, mesh: Mesh) -> None: ...
    def is_whole(self) -> Operation[bool]: ...
    def put(self, object: _T) -> Ref[_T]: ...
    def put_each(self, objects: Iterable[Any]) -> Operation[Ref[Any]]: ...
    def get(self, reference: Ref[Any], worker: int) -> Operation[Any]: ...
    def sync(self, worker: int | None = None) -> Operation[None]: ...
    def init_ccl(self, backend: str, devices: Sequence[int]) -> Operation[None]: ...
    def recover(self) -> Operation[None]: ...
    def replace_lost(self) -> Operation[tuple[list[int], int]]: ...
    def resize(self, workers: int) -> Operation[tuple[list[int | None], list[int], int]]: ...
    def shutdown(self) -> Operation[None]: ...
    def save(
        self,
        folder: str | PathLike[str],
        step: int,
        tensors: Sequence[tuple[str, Ref[Any], str | int]],
        notes: str,
        keep: int | None,
    ) -> Operation[tuple[PathLike[str], int]]: ...
    def load(
        self, folder: str | PathLike[str]
    ) -> Operation[tuple[PathLike[str], int, dict[str, Ref[Any]], str] | None]: ...
    def load_library(self, path: str | PathLike[str], send: bool) -> Operation[Ref[Any]]: ...
    def library_function(self, library: Ref[Any], name: str) -> Operation[Ref[Any]]: ...
    def global_function(self, name: str) -> Operation[Ref[Any]]: ...
    def status(self) -> str: ...

def backends() -> list[dict[str, Any]]:
    """The backends: name, version and library of each, or why it is unavailable on this machine."""

def function_names() -> list[str]: ...
def init() -> None: ...
def is_server() -> bool: ...
def note_fork() -> None: ...
def processors() -> int: ...
def serve() -> None: ...
def serve_invitation(text: str) -> None: ...
def set_worker_program(
    path: str | PathLike[str], args: Sequence[str], env: Sequence[tuple[str, str]]
) -> None: ...

@final
class ModelFiles:
    def __new__(
        cls, model: str, adapter: str | None, dtype: str, threads: int, ignored_keys: Sequence[str]
    ) -> ModelFiles: ...
    @property
    def context(self) -> int: ...
    @property
    def task(self) -> Literal["generate", "embed", "score"]: ...
    def load(self) -> str: ...
    def tokens(self, text: str) -> list[int]: ...
    def pair(self, first: str, second: str) -> list[int]: ...
    def chat(self, messages: str) -> list[int]: ...
    def batch(
        self, prompts: Sequence[Sequence[int]], temperature: float, top_p: float, seed: int
    ) -> str: ...
    def texts(self, texts: Sequence[Sequence[int]]) -> bytes: ...
    def vectors(self, bytes: bytes) -> list[list[float]]: ...
    def decoder(self) -> TextOfTokens: ...

@final
class TextOfTokens:
    def push(self, token: int) -> str: ...
    def finish(self) -> str: ...

@final
class Desk:
    def __new__(cls) -> Desk: ...
    def serve(self, ctx: Context) -> None: ...
    def communicator(self) -> Communicator: ...
    def close(self, why: str) -> None: ...

@final
class Invitations:
    def __new__(cls) -> Invitations: ...
    def next(self, timeout: float) -> tuple[int, str] | None: ...
