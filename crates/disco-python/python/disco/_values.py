"""Objects on their way between processes."""

from __future__ import annotations

import pickle
import threading
from typing import Any


def dump(value: Any, handles: list[Any] | None = None) -> tuple[bytes, list[memoryview]]:
    """The pickle of an object, and its buffers in place. Handles in it go into the list."""
    from ._by_value import dumps

    buffers: list[pickle.PickleBuffer] = []
    pickled = dumps(value, buffers.append, handles)
    return pickled, [buffer.raw() for buffer in buffers]


#: The objects behind the handles of the pickle that this thread loads.
_loading = threading.local()


def load(pickled: bytes, buffers: list[Any], handles: list[Any]) -> Any:
    """The object of a pickle, with the objects behind its handles."""
    before = getattr(_loading, "handles", None)
    _loading.handles = iter(handles)
    try:
        return pickle.loads(pickled, buffers=buffers)
    finally:
        _loading.handles = before


def behind_handle() -> Any:
    """The object behind the next handle of the pickle."""
    return next(_loading.handles)


def item(value: Any, index: int, count: int) -> Any:
    """Item ``index`` of a result with ``count`` items."""
    if not isinstance(value, (tuple, list)):
        raise TypeError(f"split: the result is no tuple or list, but a {type(value).__qualname__}")
    if len(value) != count:
        raise ValueError(f"split: the result has {len(value)} items, not {count}")
    return value[index]
