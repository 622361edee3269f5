from collections.abc import Generator, Iterable, Sequence
from os import PathLike
from typing import Any, Generic, Literal, SupportsIndex, TypeAlias, TypeVar, final

__version__: str

#: An array of numpy, torch, jax or cupy, or another object with ``__dlpack__``.
_Array = TypeVar("_Array")
_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)
_Reduction: TypeAlias = Literal[
    "sum", "prod", "min", "max", "avg", "disco.argmax", "disco.logsumexp", "disco.top_k"
]

@final
class NativeError: ...

@final
class Operation(Generic[_T_co]):
    def wait(self, timeout: float | None = None) -> _T_co: ...
    def poll(self, waits: Waits, number: int) -> tuple[_T_co] | None: ...
    def close(self) -> None: ...

@final
class Waits:
    def __new__(cls) -> Waits: ...
    def fileno(self) -> int: ...
    def ready(self) -> list[int]: ...

@final
class Tensor:
    """Elements on a device, for libraries with DLPack: `numpy.from_dlpack(tensor)` shares them. The functions of numpy take a tensor
    in host memory as an array.
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

@final
class Context:
    """The worker that runs a function, during the call.

    Collectives are called by all workers, or with `group=True` by those of a group, with arrays of the same shape and dtype. They raise
    `Mismatch` if the ranks' arrays do not fit together, `Deadline` if a rank is missing for the session's `collective_deadline`,
    `Aborted` if another worker has failed, `Unsupported` for a dtype that the backend lacks, `NoCommunicator` before
    `init_ccl`, `TypeError` for an object without `__dlpack__`, and `ValueError` or `BufferError` for an output that can't be written in place.
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
    def empty(self, shape: int | Sequence[int], dtype: Any = None, *, library: str = "numpy") -> Any:
        """A zeroed array of this shape and dtype (`"float32"` without one) in the worker's memory. Ranks of one machine read
        each other's such arrays in place. Raises `OutOfMemory`.
        """
    def all_reduce(
        self, x: _Array, op: _Reduction = "sum", *, out: _Array | None = None, group: bool = False
    ) -> _Array:
        """The reduction of all ranks' `x`, on all ranks: an array of the same shape, or a number if `x` is one. With `out=x` in
        place. Reductions: `sum`, `prod`, `min`, `max`, `avg`; of rows along the last axis `disco.argmax`, `disco.logsumexp`,
        `disco.top_k`. Complex numbers have `sum` and `avg`.
        """
    def reduce(
        self, x: _Array, op: _Reduction = "sum", *, root: int = 0, out: _Array | None = None, group: bool = False
    ) -> _Array | None:
        """The reduction of all ranks' `x`, of the same shape, on rank `root`; `None` on others."""
    def reduce_scatter(
        self, x: _Array, op: _Reduction = "sum", *, out: _Array | None = None, group: bool = False
    ) -> _Array:
        """This rank's block along axis 0 of the reduction of all ranks' `x`: shape `[n * k, ..]` to `[k, ..]` for `n` ranks."""
    def all_gather(self, x: _Array, *, out: _Array | None = None, group: bool = False) -> _Array:
        """All ranks' `x`, stacked along a new axis 0: shape `[..]` to `[n, ..]` for `n` ranks. With `x=None` or `x=out[r]`, rank
        `r`'s part is in `out[r]` already.
        """
    def all_gather_v(
        self, x: _Array, counts: Sequence[int], *, out: _Array | None = None, group: bool = False
    ) -> _Array:
        """All ranks' `x`, one after the other along axis 0; rank `r` has `counts[r]` rows."""
    def all_to_all(self, x: _Array, *, out: _Array | None = None, group: bool = False) -> _Array:
        """The blocks along axis 0 that all ranks have for this one, in the order of the ranks: shape `[n * k, ..]`, as that of
        `x`, whose block `r` goes to rank `r`.
        """
    def all_to_all_v(
        self,
        x: _Array,
        send: Sequence[int],
        receive: Sequence[int],
        *,
        out: _Array | None = None,
        group: bool = False,
    ) -> _Array:
        """As `all_to_all`, with `send[r]` rows for rank `r` and `receive[r]` rows from it."""
    def broadcast(self, x: _Array, *, root: int = 0, group: bool = False) -> _Array:
        """Overwrites `x` with that of rank `root`, and returns it. An array of jax does not change, and the result is a new one."""
    def gather(
        self, x: _Array, *, root: int = 0, out: _Array | None = None, group: bool = False
    ) -> _Array | None:
        """All ranks' `x`, stacked along a new axis 0, on rank `root`; `None` on others."""
    def scatter(self, x: _Array | None, out: _Array, *, root: int = 0, group: bool = False) -> _Array:
        """Block `r` along axis 0 of rank `root`'s `x` goes to rank `r`'s `out`, which is returned."""
    def send(self, x: Any, to: int, *, group: bool = False) -> None:
        """Sends `x` to a rank, which receives it."""
    def receive(self, out: _Array, source: int, *, group: bool = False) -> _Array:
        """Receives into `out` from a rank, and returns it."""
    def exchange(
        self, sends: Sequence[tuple[Any, int]], receives: Sequence[tuple[Any, int]], *, group: bool = False
    ) -> None:
        """Sends and receives at the same time: `sends` are pairs of an array and a rank, and so are `receives`."""
    def barrier(self, *, group: bool = False) -> None:
        """Returns when all ranks have called it."""
    def synchronize(self) -> None:
        """Waits for the operations that are enqueued on the worker's stream."""

@final
class Ref(Generic[_T_co]):
    """A handle to one object on each worker. Dropping it frees the objects. It is no sequence: `split` makes handles to the items
    of a result.
    """
    @property
    def register(self) -> int:
        """The number of the register, for messages."""
    def get(self, worker: int = 0, timeout: float | None = None) -> _T_co:
        """The object of one worker, after all calls so far. Waits at most `timeout` seconds."""
    def get_all(self, timeout: float | None = None) -> list[_T_co]:
        """The objects of all workers, in order, after all calls so far. Waits at most `timeout` seconds."""
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
    def start(options: dict[str, Any]) -> Operation[Session]: ...
    def subset(self, workers: Sequence[int], groups: int = 1) -> Operation[Session]: ...
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
    def call(self, function: Ref[Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Ref[Any]: ...
    def call_plain(self, function: Ref[Any], args: tuple[Any, ...]) -> Ref[Any]: ...
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
def set_worker_program(
    path: str | PathLike[str], args: Sequence[str], env: Sequence[tuple[str, str]]
) -> None: ...
