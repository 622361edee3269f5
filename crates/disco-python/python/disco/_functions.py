"""Worker functions in Python, and how they get to the workers."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypeVar,
    overload,
)

from . import _disco

if TYPE_CHECKING:
    from ._disco import Ref
    from ._session import Base

P = ParamSpec("P")
R = TypeVar("R")


class Function(Generic[P, R]):
    """A worker function; made by :func:`function`.

    ``f(session, *args, **kwargs)`` calls it on all workers of the session, and returns a handle to
    the results at once. On a worker, ``f(ctx, *args, **kwargs)`` calls it as any function.
    """

    def __init__(self, function: Callable[Concatenate[Any, P], R]) -> None:
        self.function = function
        functools.update_wrapper(self, function)

    @overload
    def __call__(self, where: _disco.Context, /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(self, where: Base, /, *args: P.args, **kwargs: P.kwargs) -> Ref[R]: ...
    def __call__(self, where: Any, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(where, _disco.Context):
            return self.function(where, *args, **kwargs)
        if not hasattr(where, "call"):
            kind = type(where).__qualname__
            raise TypeError(
                "a worker function is called with a session, or on a worker with its context, and "
                f"not with {kind}"
            )
        return where.call(self, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<disco.function {self.function.__qualname__}>"


def function(function: Callable[Concatenate[Any, P], R]) -> Function[P, R]:
    """Makes a worker function of ``function(ctx, *args, **kwargs)``, whose first argument is the
    worker's :class:`Context`.

    A function of a module that the workers can import is found by its name there; another one, such
    as a notebook's, or one of a module that is registered with
    ``cloudpickle.register_pickle_by_value``, is sent with the values of its global names when it is
    called first, and again once it or one of these names was defined anew.
    """
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        name = function.__qualname__
        raise TypeError(
            f"{name}: a worker function is an ordinary function, neither async nor a generator"
        )
    if not callable(function):
        raise TypeError("a worker function is a function")
    return Function(function)


class Sent(weakref.WeakKeyDictionary[Any, Any]):
    """The sessions that a function was sent to, each with its handle there. It stays with its
    program.
    """

    #: The function: `functools.wraps` copies this to others.
    owner: Callable[[], Any] = staticmethod(lambda: None)

    def __reduce__(self) -> tuple[Any, ...]:
        return Sent, ()

    def __deepcopy__(self, _: Any) -> Sent:
        return Sent()


def sent_of(function: types.FunctionType) -> Sent:
    """The sessions that a function was sent to."""
    sent: Sent | None = vars(function).get("__disco_sent__")
    if sent is None or sent.owner() is not function:
        sent = vars(function)["__disco_sent__"] = Sent()
        sent.owner = weakref.ref(function)
    return sent


#: A name that a function uses: its value now, and its value when the function was sent.
Name = tuple[Callable[[], Any], Callable[[], Any]]

#: The value of a name that has none.
_ABSENT = object()


def are_as_sent(names: Iterable[Name]) -> bool:
    """Whether all names have the values that they had when the function was sent."""
    # A loop takes a third of the time of `all`, before each call.
    for now, then in names:
        value = now()
        # `None` is also what is left of a value that is gone.
        if value is not then() or (value is None and then is not _none):
            return False
    return True


def _none() -> None:
    """The value of a name that was ``None`` when the function was sent."""


def describe(function: Callable[..., Any]) -> tuple[Any, list[Name]]:
    """What a worker makes the function of, and the names whose values were sent with it."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module is not None and module != "__main__" and "<" not in name and not _is_by_value(module):
        found: Any = sys.modules.get(module)
        has_source = getattr(found, "__spec__", None) is not None
        for part in name.split("."):
            found = getattr(found, part, None)
        if has_source and (found is function or getattr(found, "function", None) is function):
            return ("import", module, name), []
    from ._by_value import dumps

    met: dict[types.FunctionType, list[Name]] = {}
    pickled = dumps(function, functions=met)
    names = [name for of_one in met.values() for name in of_one]
    return ("value", pickled, _versions(), _sources_of(met)), names


def _is_by_value(module: str) -> bool:
    """Whether the program has registered the module, or a package around it, with
    ``cloudpickle.register_pickle_by_value``.
    """
    cloudpickle = sys.modules.get("cloudpickle")
    registered = cloudpickle.list_registry_pickle_by_value() if cloudpickle is not None else ()
    return any(f"{module}.".startswith(f"{name}.") for name in registered)


def _versions() -> dict[str, str]:
    """The versions that a function by value depends on."""
    import cloudpickle

    return {"Python": "{}.{}".format(*sys.version_info), "cloudpickle": cloudpickle.__version__}


def _sources_of(functions: Iterable[types.FunctionType]) -> dict[str, list[str]]:
    """The lines of a notebook's cells, by their names, for tracebacks: they are no files that a
    worker could read.
    """
    import linecache

    files = {function.__code__.co_filename for function in functions}
    return {
        file: lines
        for file in files
        if not os.path.exists(file) and (lines := linecache.getlines(file))
    }


def names_of(function: types.FunctionType) -> list[Name]:
    """The global names of a function and the variables of functions around it."""
    space = function.__globals__
    used = {name for code in _codes_of(function.__code__) for name in code.co_names}
    names: list[Callable[[], Any]] = [
        functools.partial(space.get, name, _ABSENT) for name in sorted(used & space.keys())
    ]
    # Names without a value may get one, also those of builtins. The names of attributes are among
    # these, too.
    if absent := used - space.keys():
        names.append(functools.partial(space.keys().isdisjoint, absent))
    names += [functools.partial(_content, cell) for cell in function.__closure__ or ()]
    return [(now, _weak(now())) for now in names]


def _codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function, and of the functions and comprehensions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes_of(constant)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _ABSENT


def _weak(value: Any) -> Callable[[], Any]:
    """Returns the value, which this does not keep alive if that is possible: it may be the function
    itself.
    """
    if value is None:
        return _none
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def load(described: tuple[Any, ...]) -> Callable[..., Any]:
    """The function of a description, on a worker."""
    if described[0] == "import":
        import importlib

        found: Any = importlib.import_module(described[1])
        for part in described[2].split("."):
            found = getattr(found, part)
    else:
        import pickle

        _, pickled, sent, sources = described
        if sent != (own := _versions()):
            differ = " and ".join(
                f"{name} {sent[name]}, and this worker {own[name]}"
                for name in own
                if sent[name] != own[name]
            )
            raise TypeError(
                f"the function was sent by value by a program with {differ}: they must be the same"
            )
        import linecache

        for file, lines in sources.items():
            linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
        found = pickle.loads(pickled)
    return found.function if isinstance(found, Function) else found
