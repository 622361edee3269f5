"""Workers of Disco in sessions of TVM's Disco.

As the entry point of a session, it runs PROGRAM as a worker:

    session = ProcessSession(3, entrypoint="disco_tvm")

Worker 0 of such a session is a thread of TVM's own process, so each function that the session calls has to exist there,
too. Import this module in that process, before TVM: it registers the functions of Disco's data plane without an effect,
and `on_worker_0` registers more.
"""

import os
import sys

# The program that serves as the worker, and its arguments. It calls `disco::init()`.
PROGRAM = ["disco"]
# Functions that workers of Disco have and TVM's process does not.
COLLECTIVES = [
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", "broadcast_from", "scatter_from", "gather_to",
    "reduce",
]


def open_libraries():
    """Open TVM's runtime before `import tvm`: TVM 0.27 of PyPI does not find its Disco otherwise."""
    import ctypes

    import tvm_ffi  # noqa: F401, opens the library that the runtime needs

    for folder in sys.path if "tvm" not in sys.modules else []:
        for name in ("libtvm_runtime.so", "libtvm_runtime_extra.so"):
            path = os.path.join(folder, "tvm", "lib", name)
            if os.path.exists(path):
                ctypes.CDLL(path, ctypes.RTLD_GLOBAL)


def on_worker_0(*names, function=lambda *args: None):
    """Register `function` (default: no effect) in this process under each of the names."""
    import tvm_ffi

    for name in names:
        tvm_ffi.register_global_func(name, function, override=True)


def init_ccl(session, backend="local"):
    """Make communicators of the workers of Disco: of all in a session of processes, of each node's own in a session over
    sockets. In a session of processes, rank i is TVM's worker i + 1."""
    from tvm_ffi import Shape

    meeting = session.get_global_func("disco.tvm.meet")(os.urandom(16), backend)
    session.get_global_func("disco.init_ccl")(backend, meeting, Shape([]))


if __name__ == "__main__":
    os.environ["DISCO_WORKER"] = " ".join(["tvm", *sys.argv[1:]])
    os.execvp(PROGRAM[0], PROGRAM)
else:
    open_libraries()
    on_worker_0("disco.tvm.meet", "disco.init_ccl", *["disco." + name for name in COLLECTIVES])
    # Without a library of its own, TVM ends its process in these.
    on_worker_0("runtime.disco.allreduce", "runtime.disco.allgather")
