"""The process of a worker: ``python -m disco._worker``, which sessions start."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any


def main() -> None:
    # Ctrl-C reaches all processes of a terminal. The controller ends the session. Programs that a function starts are not
    # shielded: they inherit neither a handler nor, here, a blocked signal.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    sent = os.environ.get("DISCO_PYTHON")
    if sent is not None:
        given = json.loads(sent)
        sys.path[:] = given["path"]
        # A node starts its workers with the same variables; programs that a worker starts get those of the controller.
        if "DISCO_WORKER" in os.environ:
            del os.environ["DISCO_PYTHON"]
            before = given["PYTHONPATH"]
            if before is None:
                os.environ.pop("PYTHONPATH", None)
            else:
                os.environ["PYTHONPATH"] = before
    sys.argv = [""]
    for stream in (sys.stdout, sys.stderr):
        # The controller prints whole lines, with the worker's name before them.
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True)
    from disco import _disco
    from disco._errors import DiscoError

    try:
        _disco.serve()
    except DiscoError as error:
        print(f"disco: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
