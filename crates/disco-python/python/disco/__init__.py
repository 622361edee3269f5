"""Disco: one controller calls functions on N workers, which exchange arrays through NCCL, RCCL, MPI
or shared memory.

>>> import disco, numpy as np
>>> @disco.function
... def mean(ctx, x):
...     return ctx.all_reduce(x.mean(), "avg")
>>> with disco.session(processes=2) as s:
...     print(mean(s, s.scatter(np.arange(8.0))).get())
3.5
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _errors
from ._disco import (
    Communicator,
    Context,
    Mesh,
    Ref,
    Results,
    Store,
    Tensor,
    Work,
    __version__,
    backends,
)
from ._errors import *  # noqa: F403
from ._functions import Function, function
from ._options import Options
from ._session import Library, Loaded, RemoteFunction, Replaced, Resized, Session, init, session

if TYPE_CHECKING:
    from . import aio, models

__all__ = [
    "Communicator",
    "Context",
    "Function",
    "Library",
    "Loaded",
    "Mesh",
    "Options",
    "Ref",
    "RemoteFunction",
    "Replaced",
    "Resized",
    "Results",
    "Session",
    "Store",
    "Tensor",
    "Work",
    "__version__",
    "aio",
    "backends",
    "function",
    "init",
    "models",
    "session",
]
__all__ += _errors.__all__


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        # asyncio takes longer to import than the rest, and most programs have no models.
        if name in ("aio", "models"):
            import importlib

            return importlib.import_module(f".{name}", __name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
