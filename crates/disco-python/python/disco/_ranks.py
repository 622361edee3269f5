"""The ranks of a program of torch as workers of a session, and its process groups as subsets."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import sys
import threading
import uuid
from typing import Any, NamedTuple

from . import _disco
from ._errors import DiscoError, Timeout
from ._options import native_options
from ._session import Session

#: Seconds that the end of a rank waits for the others' end.
_LEAVE_LIMIT = 10.0
#: The same after an exception.
_FAILURE_LIMIT = 1.0
#: Seconds between two looks whether a session has ended.
_LOOK_EVERY = 0.2


class Members(NamedTuple):
    """A group, as its ranks ask for it."""

    #: Their numbers in the default group.
    ranks: tuple[int, ...]
    #: Seconds that an operation waits for a rank.
    timeout: float


class World:
    """This process among the ranks of the default group: a worker of a session that rank 0
    controls.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: float) -> None:
        self.rank, self.size = rank, size
        #: Desks of the groups of this rank, by the group's name.
        self.desks: dict[str, _disco.Desk] = {}
        #: Names of the groups that this rank has left.
        self._left: set[str] = set()
        self._lock = threading.Lock()
        #: The reason for which no group goes on.
        self._over: str | None = None
        #: What this rank tells the controller: a group and what it is to be, or ``None`` once the
        #: rank has left it; and ``None`` at the end.
        self.told: queue.SimpleQueue[tuple[str, Members | None] | None] = queue.SimpleQueue()
        if rank == 0:
            session = self._start(store, timeout)
            self._thread = threading.Thread(target=self._control, args=(session,), daemon=True)
        else:
            text = store.get(f"disco/{rank}").decode()
            self._thread = threading.Thread(target=self._serve, args=(text,), daemon=True)
        self._thread.start()
        atexit.register(self._leave)

    def _start(self, store: Any, timeout: float) -> Session:
        invitations = _disco.Invitations()
        native = native_options(
            processes=self.size, apart=False, collective_deadline=timeout, start_deadline=timeout
        )
        operation = _disco.Session.start({**native, "invitations": invitations}, None, [])
        invited = 1
        while invited < self.size:
            one = invitations.next(_LOOK_EVERY)
            if one is not None:
                store.set(f"disco/{one[0]}", one[1])
                invited += 1
                continue
            # The start fails before it invites anybody.
            with contextlib.suppress(Timeout):
                return Session(operation.wait(0))
        return Session(operation.wait(timeout))

    def _serve(self, text: str) -> None:
        try:
            _disco.serve_invitation(text)
        except DiscoError as error:
            self._end(str(error))
        else:
            self._end("the session is over")

    def _control(self, session: Session) -> None:
        """Makes and ends the groups that the ranks ask for, until all ranks leave."""
        groups: dict[str, Session] = {}
        try:
            self._answer(session, groups)
            session.shutdown(timeout=_LEAVE_LIMIT)
        except Exception as error:
            # A group that can't be made ends all of them.
            self._end(str(error))
            # Dropping the sessions would hide the reason from operations that run.
            self._kept = session, groups
        else:
            self._end("the session is over")

    def _answer(self, session: Session, groups: dict[str, Session]) -> None:
        gone: dict[str, int] = {}
        everybody = session.subset(range(self.size))
        left = 0
        for _, told in everybody.call_streaming(_tell):
            if told is None:
                left += 1
                if left == self.size:
                    return
                continue
            name, members = told
            if members is not None:
                if name not in groups:
                    groups[name] = session.subset(
                        members.ranks, backend="local", collective_deadline=members.timeout
                    )
                    groups[name].call(_serve_group, name)
            elif name in groups:
                gone[name] = gone.get(name, 0) + 1
                if gone[name] == groups[name].size:
                    # A worker that is slow to leave ends with the session at the latest.
                    with contextlib.suppress(Timeout):
                        groups.pop(name).shutdown(timeout=_LEAVE_LIMIT)

    def _end(self, why: str) -> None:
        """Ends the operations of all groups: nobody serves them any more."""
        with self._lock:
            self._over = why
            desks = list(self.desks.values())
        for desk in desks:
            desk.close(why)

    def _leave(self) -> None:
        for desk in list(self.desks.values()):
            desk.close("the program ends")
        self.told.put(None)
        # Without the controller, or without this rank's worker, the operations of the others would
        # fail. After an exception they are to fail, unless all ranks have one: the thread is not to
        # return to an interpreter that is being taken down, which would abort the process.
        is_failure = getattr(sys, "last_type", None) is not None
        self._thread.join(_FAILURE_LIMIT if is_failure else _LEAVE_LIMIT)

    def desk(self, name: str) -> _disco.Desk | None:
        """The desk of a group of this rank, which its program or the controller may name first;
        ``None`` once the rank has left the group.
        """
        with self._lock:
            if name in self._left:
                return None
            desk = self.desks.setdefault(name, _disco.Desk())
            if self._over is not None:
                desk.close(self._over)
            return desk

    def leave_group(self, name: str) -> None:
        """Ends a group of this rank."""
        with self._lock:
            self._left.add(name)
            desk = self.desks.pop(name, None)
        if desk is not None:
            desk.close("it was destroyed")
            self.told.put((name, None))

    def group(self, name: str, members: Members) -> _disco.Communicator:
        """The communicator of a group. The controller makes it once one of its ranks asks."""
        desk = self.desk(name)
        if desk is None:
            raise RuntimeError("disco: the group was destroyed")
        self.told.put((name, members))
        return desk.communicator()


#: That of the default process group.
_world: World | None = None


def _of_process() -> World:
    if _world is None:
        raise RuntimeError("disco: this process has no process group")
    return _world


def _tell(ctx: _disco.Context) -> None:
    """Worker function: what this rank's program tells the controller."""
    told = _of_process().told
    while not ctx.cancelled:
        with contextlib.suppress(queue.Empty):
            asked = told.get(timeout=_LOOK_EVERY)
            ctx.emit(asked)
            if asked is None:
                return


def _serve_group(ctx: _disco.Context, name: str) -> None:
    """Worker function: runs the operations of a group of this rank's program."""
    desk = _of_process().desk(name)
    # The rank may leave the group before this.
    if desk is not None:
        with contextlib.suppress(RuntimeError):
            desk.serve(ctx)


def join(store: Any, rank: int, size: int, timeout: float) -> tuple[World, str, Members]:
    """Meets the other ranks of a new group through its store. The first group of a process has all
    ranks, and starts the session.
    """
    global _world
    if _world is None:
        if size != int(os.environ.get("WORLD_SIZE", size)):
            raise RuntimeError(
                f"disco: the first group with this back end has all ranks, and not {size}: "
                "the default group, or `new_group()` of all ranks"
            )
        _world = World(store, rank, size, timeout)
    # Torch tells the ranks of a group their numbers in it only.
    store.set(f"disco/rank/{rank}", str(_world.rank))
    if rank == 0:
        store.set("disco/name", uuid.uuid4().hex)
    name = store.get("disco/name").decode()
    ranks = [int(store.get(f"disco/rank/{other}")) for other in range(size)]
    if len(set(ranks)) < size:
        raise RuntimeError(
            f"disco: ranks of a group have the same number in the first one: {ranks}"
        )
    if store.add("disco/read", 1) == size:
        # Another default group may use the same names.
        for key in ("read", "name", *(f"rank/{other}" for other in range(size))):
            with contextlib.suppress(RuntimeError, NotImplementedError):
                store.delete_key(f"disco/{key}")
    return _world, name, Members(tuple(ranks), timeout)
