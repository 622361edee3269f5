"""Measures the Python package beside memcpy and mpi4py, in one run.

    python3.11 -m venv v && v/bin/pip install target/python/wheels/*.whl numpy mpi4py mpich
    v/bin/python testing/scripts/python_speed.py
"""
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
    with disco.session(processes=2, backend="local") as s:
        ours = {size: all_reduce(s, size).get() for size in SIZES}
    launcher = os.path.join(sys.prefix, "bin/mpiexec")
    theirs = subprocess.run([launcher, "-n", "2", sys.executable, __file__, "mpi4py"], capture_output=True, text=True)
    theirs = dict(line.split() for line in theirs.stdout.splitlines())
    print("all_reduce of 2 ranks, us: bytes | new result | numpy memory into ctx.empty | both ctx.empty | mpi4py")
    for size, times in ours.items():
        cells = [f"{seconds * 1e6:9.2f}" for seconds in [*times, float(theirs.get(str(size), "nan"))]]
        print(f"{size:9}", " | ".join(cells))


if __name__ == "__main__":
    mpi4py_all_reduce() if "mpi4py" in sys.argv else main()
