"""The process of a worker: ``python -m disco._worker``, which sessions start."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any, NoReturn

#: Seconds that a worker whose session is over waits for its threads.
THREADS_LIMIT = 5.0


def main() -> None:
    # Ctrl-C reaches all processes of a terminal. The controller ends the session. Programs that a
    # function starts are not shielded: they inherit neither a handler nor, here, a blocked signal.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    sent = os.environ.get("DISCO_PYTHON")
    given: dict[str, Any] = {}
    if sent is not None:
        given = json.loads(sent)
        sys.path[:] = given["path"]
        # A node starts its workers with the same variables; programs that a worker starts get those
        # of the controller.
        if "DISCO_WORKER" in os.environ:
            del os.environ["DISCO_PYTHON"]
            before = given["PYTHONPATH"]
            if before is None:
                os.environ.pop("PYTHONPATH", None)
            else:
                os.environ["PYTHONPATH"] = before
    sys.argv = [""]
    sys.breakpointhook = _breakpoint
    for stream in (sys.stdout, sys.stderr):
        # The controller prints whole lines, with the worker's name before them.
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True)
    _log(given.get("log_levels"))
    from disco import _disco
    from disco._errors import DiscoError

    status = 0
    try:
        _disco.serve()
    except DiscoError as error:
        print(f"disco: {error}", file=sys.stderr)
        status = 1
    threading.Thread(target=_end_despite_threads, args=(status,), daemon=True).start()
    sys.exit(status)


def _log(levels: dict[str, int] | None) -> None:
    """Writes what functions log to the standard error, which the controller prints, from the
    program's levels on.
    """
    if levels:
        import logging

        logging.basicConfig()
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _breakpoint(*args: Any, **kwargs: Any) -> Any:
    if os.environ.get("PYTHONBREAKPOINT"):
        return sys.__breakpointhook__(*args, **kwargs)
    raise RuntimeError(
        "breakpoint(): a worker that is a process has no terminal for pdb. Call the function in a "
        "session with threads=1, or set PYTHONBREAKPOINT to the function of a debugger that "
        "listens for a connection, such as `debugpy.breakpoint`"
    )


def _end_despite_threads(status: int) -> None:
    """Ends the process after a while if its threads do not: the interpreter would wait for those
    that are no daemons.
    """
    time.sleep(THREADS_LIMIT)
    others = [
        thread.name
        for thread in threading.enumerate()
        if not thread.daemon and thread is not threading.main_thread()
    ]
    if not others:
        print(
            "disco: the worker waits for its exit handlers, or for processes of `multiprocessing`",
            file=sys.stderr,
            flush=True,
        )
        return
    print(
        f"disco: the worker ends while threads of its functions still run: {', '.join(others)}; "
        "join them, or make them daemons",
        file=sys.stderr,
        flush=True,
    )
    sys.stdout.flush()
    os._exit(status)


def end_child(error: BaseException | None) -> NoReturn:
    """Ends this process, the child of a fork in a worker function, as Python ends a program."""
    status = 0
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        status = error.code or 0
    elif error is not None:
        status = 1
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
