"""Workers of Disco in sessions of TVM's Disco.

As the entry point of a session, it runs the program in DISCO_TVM_PROGRAM (default: the command `disco`) as a worker:

    session = ProcessSession(3, entrypoint="disco_tvm")

Worker 0 of such a session is a thread of TVM's own process, so each function that the session calls has to exist there,
too. `init_ccl` and `on_worker_0` register functions without an effect for it.
"""

import os
import sys

# Functions that workers of Disco have and TVM's process does not.
COLLECTIVES = [
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", "broadcast_from", "scatter_from", "gather_to",
    "reduce",
]


def on_worker_0(*names, function=lambda *args: None):
    """Register `function` (default: no effect) in this process under each of the names."""
    import tvm_ffi

    for name in names:
        tvm_ffi.register_global_func(name, function, override=True)


def init_ccl(session, backend="local"):
    """Make communicators of all workers of Disco. Rank i is TVM's worker i + 1."""
    from tvm_ffi import Shape

    # What TVM names alike is done by the other workers only.
    tvm_names = ["runtime.disco.allreduce", "runtime.disco.allgather"]
    on_worker_0("disco.tvm.meet", "disco.init_ccl", *["disco." + name for name in COLLECTIVES], *tvm_names)
    session.get_global_func("disco.tvm.meet")(os.urandom(16))
    session.get_global_func("disco.init_ccl")(backend, os.urandom(16), Shape([]))


if __name__ == "__main__":
    os.environ["DISCO_TVM_WORKER"] = " ".join(sys.argv[1:])
    program = os.environ.get("DISCO_TVM_PROGRAM", "disco")
    os.execvp(program, [program])
