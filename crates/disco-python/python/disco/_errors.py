"""The exceptions of Disco."""

from __future__ import annotations

import traceback as _traceback
from collections.abc import Callable
from typing import Any, cast

__all__ = [
    "DiscoError",
    "WorkerError",
    "WorkerErrors",
    "Earlier",
    "RemoteError",
    "Lost",
    "Timeout",
    "Deadline",
    "Stalled",
    "Aborted",
    "Cancelled",
    "Broken",
    "Mismatch",
    "Unsupported",
    "Unavailable",
    "LibraryError",
    "Stuck",
    "Panicked",
    "Closed",
    "Invalid",
    "ArgumentError",
    "UnknownFunction",
    "OutOfMemory",
    "SystemFailure",
    "Busy",
    "ProtocolError",
    "Refused",
    "StateError",
    "ForeignRef",
    "NoCommunicator",
    "NotRestored",
]


class DiscoError(Exception):
    """A failure of Disco. ``kind`` is the kind of the failure that caused it, such as
    ``"Deadline"``.
    """

    kind: str = "DiscoError"

    def __reduce__(self) -> tuple[Any, ...]:
        # The native error stays in its process, and a pickle of an exception has no cause.
        fields = {name: value for name, value in vars(self).items() if name != "_native"}
        return _restored, (
            type(self),
            self.args,
            fields,
            None if self.__cause__ is None else _described(self.__cause__),
        )


class WorkerError(DiscoError):
    """A function has failed on a worker. ``__cause__`` is the exception of a Python function, with
    its traceback as a note.

    The session takes no more calls until ``recover`` or ``init_ccl``.
    """

    #: Number of the worker.
    worker: int
    #: Name of the function, or of the command.
    function: str
    #: Number of the command in the session, from 1.
    command: int


class WorkerErrors(ExceptionGroup[WorkerError], WorkerError):
    """Several workers have failed: ``exceptions`` has a :class:`WorkerError` for each, and the
    other fields, and ``__cause__``, are those of the first.

    ``except WorkerError`` and ``except* WorkerError`` catch it, too. The conditions of ``split``
    and ``subgroup`` are asked for each worker's failure, and not for the group.
    """

    def derive(self, excs: Any, /) -> WorkerErrors:  # type: ignore[override]
        # The first failure of all of them, if it is among these.
        first = next(
            (
                error
                for error in excs
                if getattr(error, "worker", None) == getattr(self, "worker", None)
            ),
            excs[0],
        )
        return _as_first(WorkerErrors(self.message, excs), first)

    def split(self, condition: Any, /) -> Any:
        return tuple(map(_with_own_cause, super().split(_of_workers(condition))))

    def subgroup(self, condition: Any, /) -> Any:
        return _with_own_cause(super().subgroup(_of_workers(condition)))

    def __reduce__(self) -> tuple[Any, ...]:
        restored, (kind, _, *rest) = DiscoError.__reduce__(self)
        return restored, (kind, (self.message, list(self.exceptions)), *rest)


class Earlier(WorkerError):
    """A call was not submitted, because an earlier one had failed: the fields are those of the
    failure.
    """


class Cancelled(WorkerError):
    """The program has cancelled the call. The session goes on. In a worker function, where its
    collectives and ``emit`` raise it, it has no fields.
    """


class RemoteError(Exception):
    """An exception of a worker that can't be built here: its type is unknown, or it can't be
    pickled.
    """

    #: Module and name of its type.
    type_name: str


class Lost(DiscoError):
    """Workers are lost: ``replace_lost`` starts new ones."""

    #: Numbers of the workers.
    workers: list[int]


class Timeout(DiscoError, TimeoutError):
    """The time limit of a wait has passed. What is submitted goes on, and a handle can be waited
    for again; an operation of several steps, such as ``save``, ends after the step that runs.
    """


class Deadline(DiscoError, TimeoutError):
    """A deadline of the session has passed."""

    #: The deadline in seconds.
    after: float


class Stalled(DiscoError, TimeoutError):
    """A worker takes no commands any more."""

    #: Seconds since its last progress.
    after: float


class Aborted(DiscoError):
    """The operation has ended because something else has failed."""


class Broken(DiscoError):
    """The communicator has failed in an earlier operation."""


class Mismatch(DiscoError):
    """Ranks have called a collective with arguments that do not fit together."""


class Unsupported(DiscoError):
    """The backend or the device can't do this."""


class Unavailable(DiscoError):
    """A library, a backend or a device is not on this machine."""


class LibraryError(DiscoError):
    """A function of a vendor's library has failed."""

    #: The function of the library.
    function: str
    #: Its return code.
    code: int


class Stuck(DiscoError):
    """Workers have not left at the shutdown."""


class Panicked(DiscoError):
    """A Rust function has panicked."""


class Closed(DiscoError):
    """The session is shut down."""


class Invalid(DiscoError, ValueError):
    """An argument is invalid."""


class ArgumentError(DiscoError, TypeError):
    """A function does not take the argument, or the number of arguments."""


class UnknownFunction(DiscoError, LookupError):
    """There is no function of this name."""


class OutOfMemory(DiscoError, MemoryError):
    """There is not enough memory."""


class SystemFailure(DiscoError, OSError):
    """A call of the operating system has failed."""


class Busy(DiscoError):
    """The memory is in use."""


class ProtocolError(DiscoError):
    """A peer has sent what it must not."""


class Refused(DiscoError):
    """A peer was refused, or refuses this process."""


class StateError(DiscoError):
    """The object can't do this now."""


class ForeignRef(DiscoError, ValueError):
    """A handle belongs to another session."""


class NoCommunicator(DiscoError):
    """There are no communicators: ``init_ccl`` was not called, or has failed."""


class NotRestored(DiscoError):
    """The worker is new, and its part of the object was not put there again."""


_KINDS = {
    kind.__name__: kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, DiscoError)
}


def make(name: str, kind: str, text: str, fields: dict[str, Any]) -> DiscoError:
    """The exception for an error of the native part."""
    error = _KINDS.get(name, DiscoError)(text)
    thrown = fields.pop("thrown", None)
    message = fields.pop("message", None)
    for field, value in fields.items():
        setattr(error, field, value)
    error.kind = kind
    if thrown is not None:
        error.__cause__ = rebuilt(*thrown)
    elif isinstance(error, WorkerError) and kind in _KINDS and kind != name:
        error.__cause__ = _KINDS[kind](message)
    return error


def make_group(first: WorkerError, errors: list[WorkerError]) -> WorkerErrors:
    """The exception for the failures of several workers."""
    return _as_first(
        WorkerErrors(f"{len(errors)} workers have failed, the first of them so: {first}", errors),
        first,
    )


def _as_first(group: WorkerErrors, first: BaseException) -> WorkerErrors:
    """The group, with the fields and the cause of its first failure."""
    for name in ("worker", "function", "command", "kind", "_native"):
        if hasattr(first, name):
            setattr(group, name, getattr(first, name))
    group.__cause__ = first.__cause__
    return group


def _of_workers(condition: Any) -> Any:
    """The condition for the failures in a group alone: the group has the fields of one of them."""
    if isinstance(condition, (type, tuple)):
        return condition
    return lambda error: not isinstance(error, WorkerErrors) and condition(error)


def _with_own_cause(part: Any) -> Any:
    """A part of a group, to which Python has given the cause of the whole."""
    if part is not None:
        part.__cause__ = part.derive(part.exceptions).__cause__
    return part


def _restored(
    kind: type[DiscoError], args: tuple[Any, ...], fields: dict[str, Any], cause: Any = None
) -> DiscoError:
    error = kind(*args)
    vars(error).update(fields)
    if cause is not None:
        error.__cause__ = _built(*cause)
    return error


def _described(
    error: BaseException, dumps: Callable[[Any], bytes] | None = None, limit: int | None = None
) -> tuple[str, str, list[str], str | None]:
    """Type, text, notes and pickle of an exception. Each byte of the pickle is a character; in
    UTF-8 they have at most ``limit`` bytes, which long texts are shortened for.
    """
    import pickle

    kind, dumps = type(error), dumps or pickle.dumps
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    try:
        text = str(error)
    except Exception:
        text = "<its text can't be made>"
    notes = list(getattr(error, "__notes__", ()))
    for share in (None, 3, 12, 48):
        # Code of the program, which may fail in any way.
        try:
            sent = error if share is None or limit is None else _shortened(error, limit // share)
            pickled = dumps(sent).decode("latin-1")
        except Exception:
            break
        if limit is None or len(pickled.encode()) <= limit:
            return name, text, notes, pickled
    return name, text, notes, None


def _shortened(error: BaseException, half: int) -> BaseException:
    """A copy of an exception. Texts of more than two halves lose their middle."""

    def short(value: Any) -> Any:
        if not isinstance(value, (str, bytes)):
            return value
        encoded = value.encode("utf-8", "backslashreplace") if isinstance(value, str) else value
        if len(encoded) <= 2 * half:
            return value
        head, tail = encoded[:half], encoded[-half:]
        return (
            head + tail
            if isinstance(value, bytes)
            else f"{head.decode(errors='ignore')} … {tail.decode(errors='ignore')}"
        )

    args = tuple(map(short, error.args))
    copy = type(error).__new__(type(error), *args)
    copy.args = args
    vars(copy).update({name: short(value) for name, value in vars(error).items()})
    return copy


def _built(name: str, text: str, notes: list[str], pickled: str | None) -> BaseException:
    """The exception of a description, or what is known of it."""
    import pickle

    error: Any = None
    if pickled is not None:
        try:
            error = pickle.loads(pickled.encode("latin-1"))
        except Exception:
            pass
    if not isinstance(error, BaseException):
        error = RemoteError(f"{name}: {text}" if text else name)
        error.type_name = name
        error.__notes__ = notes
    return cast(BaseException, error)


def describe(error: BaseException, limit: int) -> tuple[str, str, str, str | None]:
    """Type, text, traceback and pickle of an exception, on the worker."""

    def dumps(error: BaseException) -> bytes:
        from . import _by_value

        return _by_value.dumps(error)

    name, text, _, pickled = _described(error, dumps, limit)
    trace = "".join(_traceback.format_exception(error))
    # Lone surrogates are no text for others.
    text, trace = (each.encode("utf-8", "backslashreplace").decode() for each in (text, trace))
    return name, text, trace, pickled


def rebuilt(name: str, text: str, trace: str, pickled: str | None) -> BaseException:
    """The exception of a worker, or what is known of it."""
    error = _built(name, text, [], pickled)
    try:
        error.add_note("On the worker:\n" + trace.rstrip())
    except Exception:
        pass
    return error
