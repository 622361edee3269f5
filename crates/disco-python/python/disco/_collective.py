"""Collectives that the program begins, on objects behind handles: a worker function for all of
them.
"""

from __future__ import annotations

from typing import Any

from ._disco import Communicator, Context


def run(
    ctx: Context, name: str, along: tuple[str, ...] | None, x: Any, kwargs: dict[str, Any]
) -> Any:
    """The collective ``name`` of ``x``, among all workers or along axes of the session's mesh."""
    comm: Communicator = ctx if along is None else ctx.along(*along)
    return getattr(comm, name)(x, **kwargs)
