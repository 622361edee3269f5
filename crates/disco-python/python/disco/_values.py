"""Objects on their way between processes."""

from __future__ import annotations

import pickle
from typing import Any


def dump(value: Any) -> tuple[bytes, list[memoryview]]:
    """The pickle of an object, and its buffers in place."""
    from ._by_value import dumps

    buffers: list[pickle.PickleBuffer] = []
    pickled = dumps(value, buffers.append)
    return pickled, [buffer.raw() for buffer in buffers]


def load(pickled: bytes, buffers: list[Any]) -> Any:
    """The object of a pickle."""
    return pickle.loads(pickled, buffers=buffers)


def item(value: Any, index: int, count: int) -> Any:
    """Item ``index`` of a result with ``count`` items."""
    if not isinstance(value, (tuple, list)):
        raise TypeError(f"split: the result is no tuple or list, but a {type(value).__qualname__}")
    if len(value) != count:
        raise ValueError(f"split: the result has {len(value)} items, not {count}")
    return value[index]
