"""Reductions by a function of Python: each rank gets the arrays, and combines them in the order of
the ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ._disco import Communicator

Combine = Callable[[Any, Any], Any]


def _into(out: Any, result: Any) -> Any:
    if out is None:
        return result
    out[...] = result
    return out


def _all(comm: Communicator, x: Any) -> Any:
    return comm.all_gather(x) if hasattr(x, "__dlpack__") else comm.all_gather_object(x)


def all_reduce(comm: Communicator) -> Callable[[Any, Combine, Any], Any]:
    def run(x: Any, combine: Combine, out: Any) -> Any:
        return _into(out, functools.reduce(combine, _all(comm, x)))

    return run


def reduce(comm: Communicator) -> Callable[[Any, Combine, int, Any], Any]:
    def run(x: Any, combine: Combine, root: int, out: Any) -> Any:
        gathered = comm.gather(x, root=root)
        return None if gathered is None else _into(out, functools.reduce(combine, gathered))

    return run


def reduce_scatter(comm: Communicator) -> Callable[[Any, Combine, Any], Any]:
    def run(x: Any, combine: Combine, out: Any) -> Any:
        blocks = comm.all_to_all(x)
        rows = len(blocks) // comm.size
        parts = (blocks[rows * rank : rows * (rank + 1)] for rank in range(comm.size))
        return _into(out, functools.reduce(combine, parts))

    return run
