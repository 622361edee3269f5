"""What sessions are started with."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Literal, TypedDict, Unpack

from . import _disco


class Options(TypedDict, total=False):
    """Options of a session. Times are in seconds."""

    #: Processes of this machine.
    processes: int | None
    #: Threads of this process.
    threads: int | None
    #: Nodes, of ``per_node`` workers each.
    nodes: int | None
    per_node: int | None
    #: Number of equal groups of workers; 1 without it.
    groups: int | None
    #: Compare the arguments of each collective on all ranks.
    check: bool | None
    #: Most bytes of an argument or a result; 1 GiB without it.
    value_limit: int | None
    #: Worker 0 is not in this process, so that the program outlives it. Without it, that is so for
    #: processes and nodes.
    apart: bool | None
    #: For one collective.
    collective_deadline: float | None
    #: For the connections of communicators.
    connect_deadline: float | None
    #: For the start of all workers.
    start_deadline: float | None
    #: For a reply, once a worker makes no progress.
    reply_deadline: float | None
    #: For one call of a function.
    call_deadline: float | None
    #: For the next command of a worker that takes none.
    stall_deadline: float | None
    #: A wait that is longer is logged, with what the workers do.
    warn_after: float | None
    #: For the end of the workers.
    close_deadline: float | None
    #: A peer that is silent for so long is lost.
    silence: float | None
    #: Between two signs of life.
    heartbeat: float | None
    #: The file of a trace.
    trace: str | os.PathLike[str] | None
    #: When lost workers are replaced.
    replacement: Literal["never", "when_asked", "when_recovered", "at_once"] | None
    #: The folder of the workers' output.
    log_dir: str | os.PathLike[str] | None
    #: Processes that wait to replace lost ones.
    spares: int | None
    #: Of nodes: where they connect, ``"HOST:PORT"``.
    listen: str | None
    #: Of nodes: the secret that they know.
    token: str | None
    #: Of nodes: encrypt their connections; without it, as ``DISCO_ENCRYPT`` says, or yes.
    encrypts: bool | None
    #: Of nodes: the most connections of nodes that have not joined yet.
    max_pending: int | None
    #: Of nodes: the most bytes that wait for one node to read them.
    max_unsent: int | None
    #: Of nodes: the most connections of one to further ones.
    fan_out: int | None


def native_options(**options: Unpack[Options]) -> dict[str, Any]:
    """The options of the native part, after a check of the kind."""
    given: dict[str, Any] = {**options}
    kinds = {kind: given.pop(kind, None) for kind in ("processes", "threads", "nodes")}
    per_node = given.pop("per_node", None)
    chosen = [(kind, count) for kind, count in kinds.items() if count is not None]
    if len(chosen) > 1:
        raise TypeError("a session has processes, threads or nodes; only one of them can be given")
    kind, count = chosen[0] if chosen else ("processes", _disco.processors())
    if count < 0:
        raise ValueError(f"{kind}={count}: a session needs at least 1 worker")
    if (per_node is not None) != (kind == "nodes"):
        raise TypeError(
            "nodes and per_node belong together: a session of nodes has per_node workers on each"
        )
    if unknown := given.keys() - Options.__annotations__.keys():
        raise TypeError(f"{min(unknown)} is no option of a session")
    if given.get("apart") is None:
        given["apart"] = kind != "threads"
    _set_worker_program()
    nodes = {"nodes": count} if kind == "nodes" else {}
    return {
        **given,
        **nodes,
        "kind": kind,
        "workers": count * (1 if per_node is None else per_node),
    }


def chosen(backend: str) -> str:
    """The name of a backend, which ``DISCO_BACKEND`` gives in place of ``auto``."""
    return (os.environ.get("DISCO_BACKEND") or backend) if backend == "auto" else backend


#: The seed of ``hash`` of all workers, in processes of all machines, so that sets have one order: a
#: collective in a loop over a set must be that of the same item on all ranks. A program that sets
#: the variable chooses another one.
HASH_SEED = {} if os.environ.get("PYTHONHASHSEED") else {"PYTHONHASHSEED": "0"}


def _set_worker_program() -> None:
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    before = os.environ.get("PYTHONPATH")
    path = package if not before else os.pathsep.join((package, before))
    # The worker finds `disco` by the first variable, and then imports from where this program does.
    # As Python itself, which takes texts only.
    paths = [entry for entry in sys.path if isinstance(entry, str)]
    sent = json.dumps({"path": paths, "PYTHONPATH": before, "log_levels": _log_levels()})
    environment = [("PYTHONPATH", path), ("DISCO_PYTHON", sent), *HASH_SEED.items()]
    _disco.set_worker_program(
        sys.executable, [*_interpreter_flags(), "-m", "disco._worker"], environment
    )


#: Letters of the interpreter's options, by the names of ``sys.flags``.
_LETTERS = {
    "optimize": "O",
    "dont_write_bytecode": "B",
    "no_user_site": "s",
    "no_site": "S",
    "ignore_environment": "E",
    "isolated": "I",
    "safe_path": "P",
    "bytes_warning": "b",
    "verbose": "v",
}


def _interpreter_flags() -> list[str]:
    """The options with which this interpreter runs."""
    flags = [
        "-" + letter * int(count)
        for name, letter in _LETTERS.items()
        if (count := getattr(sys.flags, name))
    ]
    flags += ["-X", "dev"] if sys.flags.dev_mode else []
    flags += ["-X", f"utf8={sys.flags.utf8_mode}"]
    return flags + [f"-W{option}" for option in sys.warnoptions]


def _log_levels() -> dict[str, int]:
    """The levels of the program's loggers, if it has configured logging."""
    logging = sys.modules.get("logging")
    if logging is None:
        return {}
    # Names without a logger of their own have no level.
    loggers = {"": logging.root, **logging.root.manager.loggerDict}
    if not any(getattr(logger, "handlers", None) for logger in loggers.values()):
        return {}
    return {name: logger.level for name, logger in loggers.items() if getattr(logger, "level", 0)}
