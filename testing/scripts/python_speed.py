"""Measures the Python package beside memcpy, mpi4py, TVM's Disco in Python, and Rust, in one run.

    cargo build --release --package disco-runtime-cli
    python3.11 -m venv v && v/bin/pip install target/python/wheels/*.whl numpy mpi4py mpich apache-tvm
    v/bin/python testing/scripts/python_speed.py
"""
import importlib.util
import json
import os
import subprocess
import sys
import time

import numpy as np

SIZES = [8, 1 << 10, 64 << 10, 1 << 20, 16 << 20]


def best(count, run, rounds=5):
    """Seconds of one of `count` runs, the best round."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run(count)
        times.append((time.perf_counter() - start) / count)
    return min(times)


def mpi4py_all_reduce():
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    for size in SIZES:
        x = np.ones(size // 4, "f4")
        y = np.empty_like(x)
        comm.Barrier()
        time_of_one = best(50, lambda count: [comm.Allreduce(x, y) for _ in range(count)])
        if comm.rank == 0:
            print(size, time_of_one)


def tvm():
    """Calls of a Python function on 4 process workers, by TVM."""
    import tvm.exec.disco_worker  # Registers the function for worker 0, a thread of this process.
    from tvm.runtime import disco

    session = disco.ProcessSession(4, 1, entrypoint="tvm.exec.disco_worker")
    add_one = session.get_global_func("tests.disco.add_one")
    calls = best(2000, lambda count: [[add_one(1) for _ in range(count)], session._sync_all()])
    sync = best(300, lambda count: [session._sync_all() for _ in range(count)])
    get = best(300, lambda count: [add_one(1).debug_get_from_remote(0) for _ in range(count)])
    print(f"4 workers of TVM: call {calls * 1e6:.2f} us, sync {sync * 1e6:.2f} us, call and get {get * 1e6:.2f} us", flush=True)
    # Its workers do not end.
    os._exit(0)


def run_tvm():
    """TVM's runtime opens the library with its Disco only if it is loaded before."""
    folder = lambda name: os.path.join(os.path.dirname(importlib.util.find_spec(name).origin), "lib")
    libraries = [f"{folder('tvm_ffi')}/libtvm_ffi.so"]
    libraries += [f"{folder('tvm')}/lib{name}.so" for name in ("tvm_runtime", "tvm_runtime_extra")]
    environment = {**os.environ, "LD_PRELOAD": ":".join(libraries)}
    subprocess.run([sys.executable, __file__, "tvm"], env=environment, start_new_session=True)


def of_rust():
    """The times of `disco bench`, by bytes."""
    disco = os.path.join(os.path.dirname(__file__), "../../target/release/disco")
    sizes = ["-b", str(SIZES[0]), "-e", str(SIZES[-1]), "-f", "2"]
    command = [disco, "bench", "all_reduce", "--session", "processes", "-g", "2", *sizes, "--json"]
    rows = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)["rows"]
    return {row["size"]: row["out_of_place"]["time_us"] for row in rows}


def main():
    import disco

    @disco.function
    def add_one(ctx, x):
        return x + 1

    @disco.function
    def all_reduce(ctx, size):
        own, x, y = np.ones(size // 4, "f4"), ctx.empty(size // 4, "f4"), ctx.empty(size // 4, "f4")
        found = []
        for src, out in ((own, None), (own, y), (x, y)):
            ctx.barrier()
            found.append(best(50, lambda count: [ctx.all_reduce(src, out=out) for _ in range(count)]))
        return found

    def started(name):
        code = f"import time; t = time.perf_counter(); import {name}; print(time.perf_counter() - t)"
        run = lambda: float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
        return min(run() for _ in range(5))

    print(f"import: disco {started('disco') * 1e3:.1f} ms, json {started('json') * 1e3:.1f} ms")
    with disco.session(processes=4, backend="local") as s:
        add_one(s, 1).get_all()
        calls = best(2000, lambda count: [[add_one(s, 1) for _ in range(count)], s.sync()])
        print(f"4 workers: call {calls * 1e6:.2f} us, sync {best(300, lambda count: [s.sync() for _ in range(count)]) * 1e6:.2f} us")
        print(f"4 workers: call and get {best(300, lambda count: [add_one(s, 1).get() for _ in range(count)]) * 1e6:.2f} us")
        x = np.ones(256 << 20, "u1")
        y = x.copy()

        def put(count):
            for _ in range(count):
                s.put(x)
                s.sync()

        copy, sent = best(1, lambda _: np.copyto(y, x)), best(1, put)
        print(f"4 workers: put of 256 MiB {sent * 1e3:.0f} ms, {sent / copy / 5:.2f} of 1 + 4 copies")
    run_tvm()
    with disco.session(processes=2, backend="local") as s:
        ours = {size: all_reduce(s, size).get() for size in SIZES}
    launcher = os.path.join(sys.prefix, "bin/mpiexec")
    theirs = subprocess.run([launcher, "-n", "2", sys.executable, __file__, "mpi4py"], capture_output=True, text=True)
    theirs = dict(line.split() for line in theirs.stdout.splitlines())
    rust = of_rust()
    print("all_reduce of 2 ranks, us: bytes | new result | numpy memory into ctx.empty | both ctx.empty | Rust | mpi4py")
    for size, times in ours.items():
        cells = [seconds * 1e6 for seconds in times] + [rust[size], float(theirs.get(str(size), "nan")) * 1e6]
        print(f"{size:9}", " | ".join(f"{cell:9.2f}" for cell in cells))


if __name__ == "__main__":
    {"mpi4py": mpi4py_all_reduce, "tvm": tvm}.get(sys.argv[-1], main)()
