"""Worker functions in Python, and how they get to the workers."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from typing import TYPE_CHECKING, Any, Callable, Generic, TypeVar, overload

from . import _disco

if TYPE_CHECKING:
    from ._disco import Ref
    from ._session import Base

R = TypeVar("R")


class Function(Generic[R]):
    """A worker function; made by :func:`function`.

    ``f(session, *args, **kwargs)`` calls it on all workers of the session, and returns a handle to the results at once. On a
    worker, ``f(ctx, *args, **kwargs)`` calls it as any function.
    """

    def __init__(self, function: Callable[..., R]) -> None:
        self.function = function
        functools.update_wrapper(self, function)

    @overload
    def __call__(self, where: _disco.Context, /, *args: Any, **kwargs: Any) -> R: ...
    @overload
    def __call__(self, where: Base, /, *args: Any, **kwargs: Any) -> Ref[R]: ...
    def __call__(self, where: Any, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(where, _disco.Context):
            return self.function(where, *args, **kwargs)
        return where.call(self, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<disco.function {self.function.__qualname__}>"


def function(function: Callable[..., R]) -> Function[R]:
    """Makes a worker function of ``function(ctx, *args, **kwargs)``, whose first argument is the worker's :class:`Context`.

    A function of a module that the workers can import is found by its name there; another one, such as a notebook's, is sent
    with the values of its global names when it is called first, and again once it or one of these names was defined anew.
    """
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"{function.__qualname__}: a worker function is an ordinary function, neither async nor a generator")
    if not callable(function):
        raise TypeError("a worker function is a function")
    return Function(function)


def describe(function: Callable[..., Any]) -> tuple[Any, list[tuple[dict[str, Any], str, Any]]]:
    """What a worker makes the function of, and the global names whose values were sent with it."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module is not None and module != "__main__" and "<" not in name:
        found: Any = sys.modules.get(module)
        has_source = getattr(found, "__spec__", None) is not None
        for part in name.split("."):
            found = getattr(found, part, None)
        if has_source and (found is function or getattr(found, "function", None) is function):
            return ("import", module, name), []
    import cloudpickle

    return ("value", cloudpickle.dumps(function, protocol=5)), list(_globals_of(function, set()))


def _globals_of(function: Any, seen: set[int]) -> Any:
    """The global names of a function that is sent by value, and those of the functions behind them."""
    function = function.function if isinstance(function, Function) else function
    if not isinstance(function, types.FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    for name in function.__code__.co_names:
        if name in function.__globals__:
            value = function.__globals__[name]
            yield function.__globals__, name, value
            if getattr(value, "__module__", None) == "__main__":
                yield from _globals_of(value, seen)


def load(described: tuple[Any, ...]) -> Callable[..., Any]:
    """The function of a description, on a worker."""
    if described[0] == "import":
        import importlib

        found: Any = importlib.import_module(described[1])
        for part in described[2].split("."):
            found = getattr(found, part)
    else:
        import pickle

        found = pickle.loads(described[1])
    return found.function if isinstance(found, Function) else found
