"""A back end of ``torch.distributed`` for tensors in host memory.

>>> import disco.torch, torch.distributed as dist  # doctest: +SKIP
>>> dist.init_process_group("disco")  # doctest: +SKIP

The ranks are processes of one machine that ``torchrun``, or any rendezvous of torch, has started.
Rank 0 is also the controller of a session of Disco, whose worker ``r`` is a thread of rank ``r``'s
process; each process group is a subset of its workers. Collectives run in shared memory. Where a
rank is missing, the other ranks' exceptions name it, the operation and its number after the group's
timeout; where a rank is lost, they name it at once, and the session has ended.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from . import _disco
from ._errors import DiscoError
from ._ranks import Members, World, join

__all__ = ["ProcessGroup", "Work"]

_REDUCTIONS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.PRODUCT: "prod",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
}
if hasattr(dist.ReduceOp, "AVG"):
    _REDUCTIONS[dist.ReduceOp.AVG] = "avg"
#: Of booleans, which are bytes here: or, and.
_OF_BOOLEANS = {"sum": "max", "max": "max", "prod": "min", "min": "min"}


class Work(dist._Work):  # type: ignore[misc]
    """Operations of a group that were started."""

    def __init__(
        self,
        works: Sequence[_disco.Work[Any]],
        tensors: list[torch.Tensor],
        finish: Callable[[], None] | None,
        group: ProcessGroup,
    ) -> None:
        super().__init__()
        self._works, self._tensors, self._finish, self._group = works, tensors, finish, group
        #: Seconds of a wait that does not name any.
        self.limit: float | None = None
        self._lock = threading.Lock()
        self._future: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        limit = timeout.total_seconds() or self.limit
        for work in self._works:
            work.wait(limit)
        with self._lock:
            finish, self._finish = self._finish, None
            if finish is not None:
                finish()
        return True

    def is_completed(self) -> bool:
        return all(work.has_ended for work in self._works)

    def is_success(self) -> bool:
        try:
            return self.is_completed() and self.wait()
        except DiscoError:
            return False

    def exception(self) -> BaseException | None:
        if self.is_completed():
            try:
                self.wait()
            except DiscoError as error:
                return error
        return None

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._tensors

    def source_rank(self) -> int:
        raise RuntimeError("disco: a receive names its source")

    def get_future(self) -> torch.futures.Future[Any]:
        with self._lock:
            if self._future is not None:
                return self._future
            future = self._future = torch.futures.Future()
        self._group._complete(self, future)
        return future


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as the back end takes them: booleans as bytes."""
    if tensor.layout != torch.strided:
        raise RuntimeError("disco: a sparse tensor is made dense before: `to_dense()`")
    tensor = tensor.detach().resolve_conj()
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


class ProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A process group over a communicator of Disco."""

    def __init__(self, store: Any, rank: int, world: World, name: str, members: Members) -> None:
        try:
            super().__init__(store, rank, len(members.ranks))
        except TypeError:
            # Torch before 2.6 gives a group no store.
            super().__init__(rank, len(members.ranks))
        self._world, self._name, self._rank, self._members = world, name, rank, members
        self._size = len(members.ranks)
        self._torch_name: str | None = None
        #: Number of collectives that were started.
        self._collectives = 0
        self._start = world.group(name, members).start
        #: Communicators of two ranks, for messages with a tag from the first to the second one.
        self._pairs: dict[tuple[int, int, int], Any] = {}
        #: Operations whose futures are to be completed, and the thread that does so.
        self._futures: queue.SimpleQueue[tuple[Work, Any] | None] | None = None

    def getBackendName(self) -> str:
        return "disco"

    def name(self) -> str:
        return "disco"

    @property
    def group_name(self) -> str:
        # Torch registers the group under this name, by which its functional collectives find it.
        if self._torch_name is None:
            self._torch_name = str(dist.distributed_c10d._world.pg_names[self])
        return self._torch_name

    @property
    def pg_name(self) -> str:
        return self.group_name

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    getRank, getSize = rank, size

    def shutdown(self) -> None:
        # Torch forgets the group's name next, and asks for it once more.
        names = dist.distributed_c10d._world.pg_names
        self._torch_name = names.get(self, self._torch_name)
        for name in (self._name, *map(self._name_of_pair, self._pairs)):
            self._world.leave_group(name)
        if self._futures is not None:
            self._futures.put(None)

    def _complete(self, work: Work, future: Any) -> None:
        if self._futures is None:
            self._futures = queue.SimpleQueue()
            threading.Thread(
                target=_complete_futures, args=(self._futures,), daemon=True, name="disco-futures"
            ).start()
        self._futures.put((work, future))

    def _work(
        self,
        works: Iterable[Any],
        tensors: list[torch.Tensor],
        finish: Callable[[], None] | None = None,
    ) -> Work:
        """The work of a collective."""
        self._collectives += 1
        return Work(list(works), tensors, finish, self)

    def _get_sequence_number_for_group(self) -> int:
        return self._collectives

    def _op(self, opts: Any, dtype: torch.dtype) -> str:
        op = opts.reduceOp if hasattr(opts, "reduceOp") else opts
        op = getattr(op, "op", op)
        name = next((name for known, name in _REDUCTIONS.items() if known == op), None)
        if name is None:
            raise RuntimeError(f"disco: no such reduction: {op}")
        if dtype != torch.bool:
            return name
        if name not in _OF_BOOLEANS:
            raise RuntimeError(f"disco: booleans have no reduction {name}")
        return _OF_BOOLEANS[name]

    # Reductions.

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        return self.allreduce_coalesced(tensors, opts)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        works, copies = [], []
        opts = opts or dist.AllreduceOptions()
        for tensor in tensors:
            flat = _flat(tensor).contiguous()
            works.append(self._start.all_reduce(flat, self._op(opts, tensor.dtype), out=flat))
            if flat.data_ptr() != tensor.data_ptr():
                copies.append((tensor, flat))
        return self._work(works, tensors, _copying(copies))

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        (tensor,) = tensors
        flat = _flat(tensor).contiguous()
        root, op = opts.rootRank, self._op(opts, tensor.dtype)
        out = flat if root == self._rank else None
        work = self._start.reduce(flat, op, root=root, out=out)
        is_copy = root == self._rank and flat.data_ptr() != tensor.data_ptr()
        return self._work([work], tensors, _copying([(tensor, flat)] if is_copy else []))

    def reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any
    ) -> Work:
        works, copies = [], []
        for out, parts in zip(outputs, inputs, strict=True):
            same = {part.shape for part in parts} == {out.shape}
            if not same:
                raise RuntimeError("disco: reduce_scatter needs parts of the output's shape")
            whole = torch.stack([_flat(part) for part in parts])
            into = _flat(out).contiguous()
            op = self._op(opts, out.dtype)
            works.append(self._start.reduce_scatter(whole, op, out=into.unsqueeze(0)))
            if into.data_ptr() != out.data_ptr():
                copies.append((out, into))
        return self._work(works, outputs, _copying(copies))

    def _reduce_scatter_base(self, out: torch.Tensor, source: torch.Tensor, opts: Any) -> Work:
        return self.reduce_scatter_tensor_coalesced([out], [source], opts)

    def reduce_scatter_tensor_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
    ) -> Work:
        works, copies = [], []
        for out, source in zip(outputs, inputs, strict=True):
            into = _flat(out).contiguous().view(-1)
            flat = _flat(source).contiguous().view(-1)
            if _end(flat) > into.data_ptr() and _end(into) > flat.data_ptr():
                flat = flat.clone()
            works.append(self._start.reduce_scatter(flat, self._op(opts, out.dtype), out=into))
            if into.data_ptr() != out.data_ptr():
                copies.append((out, into.view(out.shape)))
        return self._work(works, outputs, _copying(copies))

    reduce_scatter_single = _reduce_scatter_base

    # Gathers.

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        works, copies = [], []
        for parts, source in zip(outputs, inputs, strict=True):
            flat = _flat(source).contiguous()
            if {part.numel() for part in parts} != {source.numel()}:
                raise RuntimeError("disco: allgather needs outputs of the input's size")
            whole = torch.empty((self._size, *flat.shape), dtype=flat.dtype)
            works.append(self._start.all_gather(flat, out=whole))
            copies += [
                (_flat(part), each.view(part.shape))
                for part, each in zip(parts, whole, strict=True)
            ]
        return self._work(works, [part for parts in outputs for part in parts], _copying(copies))

    def _allgather_base(self, out: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Work:
        return self.allgather_into_tensor_coalesced([out], [source], opts)

    def allgather_into_tensor_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        works, copies = [], []
        for out, source in zip(outputs, inputs, strict=True):
            flat = _flat(source).contiguous().view(-1)
            into = _flat(out).contiguous().view(self._size, -1)
            works.append(self._start.all_gather(flat, out=into))
            if into.data_ptr() != out.data_ptr():
                copies.append((out, into.view(out.shape)))
        return self._work(works, outputs, _copying(copies))

    def allgather_coalesced(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        by_input = [[parts[index] for parts in outputs] for index in range(len(inputs))]
        return self.allgather(by_input, inputs, opts)

    all_gather_single = _allgather_base

    def gather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any
    ) -> Work:
        (source,) = inputs
        flat = _flat(source).contiguous()
        if opts.rootRank != self._rank:
            return self._work([self._start.gather(flat, root=opts.rootRank)], [])
        whole = torch.empty((self._size, *flat.shape), dtype=flat.dtype)
        work = self._start.gather(flat, root=opts.rootRank, out=whole)
        copies = [(_flat(part), each) for part, each in zip(outputs[0], whole, strict=True)]
        return self._work([work], outputs[0], _copying(copies))

    def scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any
    ) -> Work:
        (out,) = outputs
        into = _flat(out).contiguous()
        whole = None
        if opts.rootRank == self._rank:
            whole = torch.stack([_flat(part) for part in inputs[0]])
        work = self._start.scatter(whole, into, root=opts.rootRank)
        is_copy = into.data_ptr() != out.data_ptr()
        return self._work([work], outputs, _copying([(out, into)] if is_copy else []))

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        works, copies = [], []
        for tensor in tensors:
            flat = _flat(tensor).contiguous()
            works.append(self._start.broadcast(flat, root=opts.rootRank))
            if flat.data_ptr() != tensor.data_ptr() and opts.rootRank != self._rank:
                copies.append((tensor, flat))
        return self._work(works, tensors, _copying(copies))

    # Exchanges.

    def alltoall(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        into = [_flat(out).contiguous() for out in outputs]
        flat = [_flat(source).contiguous() for source in inputs]
        copies = [
            (out, each)
            for out, each in zip(outputs, into, strict=True)
            if out.data_ptr() != each.data_ptr()
        ]
        work = self._exchange(
            [(each, rank) for rank, each in enumerate(flat) if rank != self._rank],
            [(each, rank) for rank, each in enumerate(into) if rank != self._rank],
        )
        into[self._rank].copy_(flat[self._rank])
        return self._work([work], outputs, _copying(copies))

    def alltoall_base(
        self,
        out: torch.Tensor,
        source: torch.Tensor,
        receive: list[int],
        send: list[int],
        opts: Any = None,
    ) -> Work:
        into, flat = _flat(out).contiguous(), _flat(source).contiguous()
        copies = _copying([(out, into)] if into.data_ptr() != out.data_ptr() else [])
        if not receive and not send:
            shape = (self._size, -1)
            work = self._start.all_to_all(flat.view(shape), out=into.view(shape))
        else:
            even = [len(flat) // self._size] * self._size
            work = self._start.all_to_all_v(flat, send or even, receive or even, out=into)
        return self._work([work], [out], copies)

    all_to_all_single = alltoall_base

    def _exchange(
        self, sends: list[tuple[torch.Tensor, int]], receives: list[tuple[torch.Tensor, int]]
    ) -> Any:
        filled = [
            [(each, rank) for each, rank in pairs if each.numel() > 0]
            for pairs in (sends, receives)
        ]
        return self._start.exchange(*filled)

    def _pair(self, source: int, to: int, tag: int) -> Any:
        """Two ranks have a communicator for each direction and tag, so that no message waits for
        another one: a program may start all of its sends before its first receive."""
        if source == to:
            raise RuntimeError("disco: a rank does not send to itself")
        pair = source, to, tag
        found = self._pairs.get(pair)
        if found is None:
            ranks = self._members.ranks
            members = self._members._replace(ranks=(ranks[source], ranks[to]))
            found = self._world.group(self._name_of_pair(pair), members).start
            self._pairs[pair] = found
        return found

    def _name_of_pair(self, pair: tuple[int, int, int]) -> str:
        return "/".join(map(str, (self._name, *pair)))

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int = 0) -> Work:
        (tensor,) = tensors
        flat = _flat(tensor).contiguous()
        return Work([self._pair(self._rank, rank, tag).send(flat, 1)], tensors, None, self)

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int = 0) -> Work:
        (tensor,) = tensors
        into = _flat(tensor).contiguous()
        work = self._pair(rank, self._rank, tag).receive(into, 0)
        is_copy = into.data_ptr() != tensor.data_ptr()
        return Work([work], tensors, _copying([(tensor, into)] if is_copy else []), self)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Work:
        raise RuntimeError("disco: a receive names its source")

    def _get_backend(self, device: Any) -> ProcessGroup:
        # The group is its own back end.
        return self

    def barrier(self, opts: Any = None) -> Work:
        work = self._work([self._start.barrier()], [])
        # Torch writes a negative time for that of the group.
        if opts is not None and opts.timeout > timedelta(0):
            work.limit = opts.timeout.total_seconds()
        return work


def _end(tensor: torch.Tensor) -> int:
    """The address behind the elements of a contiguous tensor."""
    return int(tensor.data_ptr() + tensor.numel() * tensor.element_size())


def _copying(copies: list[tuple[torch.Tensor, torch.Tensor]]) -> Callable[[], None] | None:
    """Copies results into tensors that are not contiguous."""
    if not copies:
        return None

    def copy() -> None:
        with torch.no_grad():
            for to, source in copies:
                to.copy_(source.view(to.dtype) if to.dtype == torch.bool else source)

    return copy


def _complete_futures(waiting: queue.SimpleQueue[tuple[Work, Any] | None]) -> None:
    while (item := waiting.get()) is not None:
        work, future = item
        try:
            work.wait()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(work._tensors)


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> ProcessGroup:
    """The process group of this rank: torch calls this on all ranks of a group."""
    return ProcessGroup(store, rank, *join(store, rank, size, timeout.total_seconds()))


def _register() -> None:
    try:
        dist.Backend.register_backend("disco", _create, devices=["cpu"])
    except TypeError:
        # Torch before 2.0 has no devices.
        dist.Backend.register_backend("disco", _create)


_register()
