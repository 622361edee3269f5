#!/usr/bin/env python3
"""Measures Disco on the processors of this machine beside the machine's Open MPI and PyTorch's gloo, for part 5 of the GPU evidence kit.

  gpu_cores.py calls             calls and syncs beside torch's RPC
  gpu_cores.py collectives RANKS nine collectives, from 4 bytes to 64 MiB, beside Open MPI and gloo
  gpu_cores.py started           the share of an all_reduce that is hidden beside a step that sleeps or computes
  gpu_cores.py bound             what it costs that ranks are not bound to processors
  gpu_cores.py model             tokens/s of a model of the shape of SmolLM2-135M with random weights

Times are microseconds. The last line of the output is the result. A peer that is missing or fails is left out, with the reason.
B: folder of the programs; W: working folder; LIMIT: seconds of this run; GPU_EVIDENCE_QUICK=1: few ranks and small sizes.
"""
import functools
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import gpu_models

HERE, B, W = Path(__file__).parent, Path(os.environ["B"]), Path(os.environ["W"])
QUICK = os.environ.get("GPU_EVIDENCE_QUICK") == "1"
END = time.monotonic() + float(os.environ.get("LIMIT", "60"))
KINDS = "threads", "processes"
OPERATIONS = ("all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast", "gather", "scatter", "all_to_all")
SIZES = [4 * 16**power for power in range(3 if QUICK else 7)]
STARTED_SIZES = [1 << 20] if QUICK else [4 << 20, 16 << 20, 64 << 20]
# The fastest one for all_reduce is used.
MPI_SETTINGS = ["--bind-to", "core"], ["--bind-to", "none"], ["--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]


class Left(Exception):
    """Why a measurement is left out."""


def output(command, limit=30, **variables):
    """The standard output of a command that must succeed."""
    limit = min(limit * (4 if QUICK else 1), END - time.monotonic())
    if limit < 1:
        raise Left("the time of this step is over")
    process = subprocess.Popen([*map(str, command)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, start_new_session=True, env={**os.environ, **variables})
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        # A launcher ends its ranks, which may be in groups of their own.
        for end in signal.SIGTERM, signal.SIGKILL:
            os.killpg(process.pid, end)
            try:
                process.communicate(timeout=3)
                break
            except subprocess.TimeoutExpired:
                pass
        raise Left(f"no end within {limit:.0f} s") from None
    if process.returncode != 0:
        lines = [line for line in (err + out).splitlines() if any(letter.isalpha() for letter in line)]
        raise Left(f"exit code {process.returncode}: {lines[-1] if lines else 'no output'}")
    return out


def tried(name, measure, *args):
    """A measurement, or `None` and a line with the reason."""
    try:
        return measure(*args)
    except Left as reason:
        print(f"left out: {name}: {reason}", flush=True)
        return None


def disco(*command):
    return json.loads(output([B / "disco", *command, "--json"]))


def cores(job, kind, ranks, number):
    return json.loads(output([B / "cores", job, kind, ranks, number]))


def mpi(ranks, *command, setting=MPI_SETTINGS[0], limit=30):
    launcher = shutil.which("mpirun")
    if launcher is None:
        raise Left("there is no mpirun")
    prefix = Path(os.environ.get("OPAL_PREFIX") or Path(launcher).resolve().parent.parent)
    folders = [str(prefix / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    options = ["--allow-run-as-root", "--oversubscribe", *setting, "-n", ranks]
    return output([launcher, *options, B / "mpi_ranks", *command], limit, LD_LIBRARY_PATH=":".join(filter(None, folders)))


@functools.cache
def has_torch():
    return tried("torch", output, [sys.executable, "-c", "import torch.distributed"]) is not None


def gloo(job, ranks, *sizes):
    if not has_torch():
        raise Left("there is no torch")
    return output([sys.executable, HERE / "gpu_gloo.py", job, ranks, *sizes], LIMIT="15").splitlines()


def worker_counts(*counts):
    """Those of the counts that have a processor for each worker; in a rehearsal 1 and 2."""
    processors = len(os.sched_getaffinity(0))
    return [count for count in counts if count <= (2 if QUICK else max(processors, 2))]


def geometric_mean(values):
    return math.exp(statistics.mean(map(math.log, values))) if values else math.nan


def calls():
    names, ratios = ("calls_4_args", "sync_one", "sync_all"), {kind: [] for kind in KINDS}
    figures = lambda found: [found[name].get("median_us") or found[name]["per_call_us"] for name in names]
    for workers in worker_counts(1, 2, 4, 8, 16):
        theirs = tried(f"torch's RPC, {workers} workers", lambda: json.loads(gloo("rpc", workers)[0]))
        for kind in KINDS:
            ours = figures(disco("ping", "--session", kind, "--workers", workers, "--rounds", 20 if QUICK else 200))
            text = "  ".join(f"{name} {us:.2f}" for name, us in zip(names, ours))
            if theirs:
                text += "; torch's RPC / Disco " + " ".join(f"{theirs[name] / us:.1f}" for name, us in zip(names, ours))
                ratios[kind] += [theirs[name] / us for name, us in zip(names, ours)]
            print(f"{workers} {kind}: {text}", flush=True)
        if theirs:
            print(f"{workers} workers of torch's RPC: " + "  ".join(f"{name} {theirs[name]:.2f}" for name in names))
    hops = disco("bench", "all_reduce", "--max-bytes", 8, "--iters", 1)["hop_ns"]
    print(f"a cache line takes {hops} ns; torch's RPC / Disco, geometric mean: " +
          ", ".join(f"{kind} {geometric_mean(all):.1f}" for kind, all in ratios.items()))


def bench(operation, ranks, kind):
    """Times by size. A block has at least one element, so small sizes may be larger. Processes check the results."""
    report = disco("bench", operation, "--session", kind, "--workers", ranks, "--factor", 16, "--min-bytes", SIZES[0],
                   "--max-bytes", SIZES[-1], "--check", int(kind == "processes"))
    return {size: row["out_of_place"]["time_us"] for size, row in zip(SIZES, report["rows"])}


def mpi_bench(operations, ranks, sizes, setting, limit=30):
    """Times by operation and size."""
    lines = mpi(ranks, ",".join(operations), *sizes, setting=setting, limit=limit).splitlines()
    times = iter(float(line.split()[1]) for line in lines if line[:1].isdigit())
    return {operation: dict(zip(sizes, times)) for operation in operations}


def mpi_setting(ranks):
    """The fastest setting for small and middle sizes."""
    sizes = [8, 65536, 1 << 20]
    speed = lambda setting: geometric_mean(mpi_bench(["all_reduce"], ranks, sizes, setting, 8)["all_reduce"].values())
    speeds = [(tried(f"Open MPI with {' '.join(setting)}", speed, setting) or math.inf, setting) for setting in MPI_SETTINGS]
    best = min(speeds)
    if best[0] == math.inf:
        raise Left("no setting finishes a trial")
    print(f"Open MPI with {' '.join(best[1])}", flush=True)
    return best[1]


def gloo_bench(ranks):
    times = {}
    for line in gloo("collectives", ranks, *SIZES):
        operation, size, rest = line.split(" ", 2)
        if size == "-":
            print(f"left out: gloo, {operation}: {rest}")
        else:
            times.setdefault(operation, {})[int(size)] = float(rest)
    return times


def collectives(ranks):
    ratios, losses = {kind: [] for kind in KINDS}, []
    of_gloo = tried(f"gloo, {ranks} ranks", gloo_bench, ranks) or {}
    setting = tried("Open MPI", mpi_setting, ranks)
    of_mpi = setting and tried("Open MPI", mpi_bench, [*OPERATIONS, "barrier"], ranks, SIZES, setting) or {}
    for operation in [*OPERATIONS, "barrier"]:
        is_barrier = operation == "barrier"
        all = {kind: {SIZES[0]: cores("barriers", kind, ranks, 2000)["us"]} if is_barrier else bench(operation, ranks, kind) for kind in KINDS}
        all.update({"Open MPI": of_mpi.get(operation, {}), "gloo": of_gloo.get(operation, {})})
        for size in all["processes"]:
            row = {name: times[size] for name, times in all.items() if size in times}
            peer = min((us for name, us in row.items() if name not in KINDS), default=None)
            text = "  ".join(f"{name} {us:.2f}" for name, us in row.items())
            for kind in KINDS:
                if peer and kind in row:
                    ratio = peer / row[kind]
                    ratios[kind].append(ratio)
                    text += f"  fastest peer / {kind} {ratio:.2f}"
                    # Ranks of the peers are processes.
                    losses += [(ratio, f"{operation} {size} B {ratio:.2f}")] if ratio < 1 and kind == "processes" else []
            print(f"{operation} {ranks} {size}: {text}", flush=True)
    means = ", ".join(f"{kind} {geometric_mean(all):.2f}" for kind, all in ratios.items())
    count, worst = len(ratios["processes"]), ", ".join(text for _, text in sorted(losses)[:6])
    print(f"{ranks} ranks: fastest peer / Disco, geometric mean: {means}; processes are slower in {len(losses)} of {count} cells: {worst}")


def started():
    shares = {"asleep": [], "computing": []}
    for ranks in worker_counts(2, 4, 8):
        of_gloo = tried(f"gloo, {ranks} ranks", lambda: [json.loads(line) for line in gloo("started", ranks, *STARTED_SIZES)])
        for size, theirs in zip(STARTED_SIZES, of_gloo or [None] * len(STARTED_SIZES)):
            found = {kind: cores("started", kind, ranks, size) for kind in KINDS}
            for name, share in shares.items():
                share += [found[kind][name] for kind in KINDS]
            found["gloo"] = theirs
            print(f"{ranks} ranks, {size} B: " + "  ".join(
                f"{name} {it['us']:.0f} µs, hidden asleep {it['asleep']:.2f} computing {it['computing']:.2f};" for name, it in found.items() if it),
                flush=True)
    print("hidden shares of Disco: " + ", ".join(
        f"{name} {min(all):.2f} to {max(all):.2f}" for name, all in shares.items() if all))


def bound():
    ratios = []
    for ranks in worker_counts(2, 4, 8, 16):
        theirs = [tried(f"Open MPI {' '.join(setting)}", mpi_bench, ["all_reduce"], ranks, [8, 1 << 20], setting)
                  for setting in (MPI_SETTINGS[1], MPI_SETTINGS[0])]
        for kind in KINDS:
            for row in cores("bound", kind, ranks, 50 if QUICK else 300)["rows"]:
                free, fixed, size = row["free_us"], row["bound_us"], row["bytes"]
                ratios.append(free / fixed)
                text = f"{ranks} {kind}, all_reduce {size} B: free {free:.2f}  bound {fixed:.2f}  free / bound {free / fixed:.2f}"
                if all(theirs):
                    free, fixed = (times["all_reduce"][size] for times in theirs)
                    text += f"; Open MPI free {free:.2f}  bound {fixed:.2f}  free / bound {free / fixed:.2f}"
                print(text, flush=True)
    print(f"free / bound: geometric mean {geometric_mean(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


def rate(folder, workers, kind, threads):
    command = [B / "generate", "--raw", "--model", folder, "--prompt-file", folder / "speed.txt", "--max-tokens", 8 if QUICK else 64]
    command += ["--workers", workers, "--session", kind, "--threads", threads]
    process = ["bash", "-c", '"$@" 2>&1 > /dev/null', "-", *command]
    lines = [line.split() for line in output(process).splitlines()]
    found = {line[0]: float(line[-2]) for line in lines if line and line[0] in ("prompt", "generation")}
    return found["generation"], found["prompt"]


def model():
    folder, processors = W / "models" / "smollm2", len(os.sched_getaffinity(0))
    gpu_models.plain("tiny" if QUICK else "smollm2", folder)
    rows = [(1, "threads", threads) for threads in sorted({1, processors})]
    # It has 9 heads, which at most 9 workers can share.
    counts = worker_counts(2, 4, 8, 9)
    rows += [(workers, kind, max(1, processors // workers)) for workers in counts for kind in KINDS]
    rows += [(workers, "threads", 1) for workers in counts]
    found = {}
    for workers, kind, threads in dict.fromkeys(rows):
        figures = rate(folder, workers, kind, threads)
        found[workers, kind, threads] = figures[0]
        ratios = " ".join(f"{figures[0] / found[it]:.2f} of {it[2]} threads;" for it in found if it[0] == 1)
        print(f"{workers} {kind} of {threads} threads: {figures[0]:.1f} tokens/s, prompt {figures[1]:.1f}; ratio to one worker {ratios}",
              flush=True)
    (workers, kind, threads), best = max(found.items(), key=lambda item: item[1])
    alone = [f"{rate:.1f} with {of[2]} threads" for of, rate in found.items() if of[0] == 1]
    print(f"one worker {', '.join(alone)}; the fastest {best:.1f} tokens/s: {workers} {kind} of {threads} threads")


if __name__ == "__main__":
    jobs = dict(calls=calls, collectives=collectives, started=started, bound=bound, model=model)
    if len(sys.argv) < 2 or sys.argv[1] not in jobs:
        sys.exit(__doc__)
    try:
        jobs[sys.argv[1]](*map(int, sys.argv[2:]))
    except Left as reason:
        sys.exit(f"Disco: {reason}")
