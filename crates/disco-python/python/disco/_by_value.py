"""Pickles with the functions and classes that their reader can't import. cloudpickle, which makes
them, takes long to import.
"""

from __future__ import annotations

import collections
import enum
import io
import types
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import cloudpickle

from ._disco import Ref
from ._functions import Name, names_of
from ._values import behind_handle

#: The classes that this process has made, among those that it has sent.
_own: weakref.WeakSet[type] = weakref.WeakSet()
#: The classes that have come in pickles of other processes.
_others: weakref.WeakSet[type] = weakref.WeakSet()

_reducers = cloudpickle.Pickler.dispatch_table


def _code(code: types.CodeType) -> tuple[Any, ...]:
    make, args = _reducers[types.CodeType](code)
    # Versions from 3.1.3 on forget the file, which tracebacks name.
    return make, tuple(code.co_filename if arg == "<dynamic-code>" else arg for arg in args)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table: ClassVar = collections.ChainMap({types.CodeType: _code}, _reducers)

    #: Takes the handles of the object; without it they can't be pickled.
    handles: list[Ref[Any]] | None = None
    #: Takes the functions that go by value, with the values of their names before.
    functions: dict[types.FunctionType, list[Name]] | None = None

    def reducer_override(self, value: Any) -> Any:
        if self.handles is not None and isinstance(value, Ref):
            self.handles.append(value)
            return behind_handle, ()
        if self.functions is not None and isinstance(value, types.FunctionType):
            names = names_of(value)
            reduced = super().reducer_override(value)
            if reduced is not NotImplemented:
                self.functions[value] = names
            return reduced
        reduced = super().reducer_override(value)
        if not isinstance(value, type) or not isinstance(reduced, tuple) or len(reduced) != 6:
            return reduced
        if value not in _others:
            _own.add(value)
        make, args, state, items, pairs, fill = reduced
        if "__slots__" in vars(value) and not issubclass(value, enum.Enum):
            # A class that gets them later has objects with a `__dict__`, whose pickles the own
            # class can't read.
            args[3]["__slots__"] = value.__slots__  # type: ignore[attr-defined]
        return make, args, (fill, state), items, pairs, _fill


def _fill(kind: type, state: tuple[Callable[[type, Any], Any], Any]) -> None:
    """Gives a class its attributes, unless this process has made the class: then another one has
    sent it back.
    """
    fill, attributes = state
    if kind not in _own:
        _others.add(kind)
        fill(kind, attributes)


def dumps(
    value: Any,
    buffer_callback: Callable[[Any], Any] | None = None,
    handles: list[Ref[Any]] | None = None,
    functions: dict[types.FunctionType, list[Name]] | None = None,
) -> bytes:
    """The pickle of an object, for ``pickle.loads``. Handles in it go into the list, if there is
    one, in the order in which they are loaded; and so do functions that go by value.
    """
    file = io.BytesIO()
    pickler = _Pickler(file, protocol=5, buffer_callback=buffer_callback)
    pickler.handles, pickler.functions = handles, functions
    pickler.dump(value)
    return file.getvalue()
