#!/usr/bin/env python3
"""Measures PyTorch on the CPU, for comparison, in the way of `disco bench`: `gpu_gloo.py collectives|started|rpc RANKS SIZE...`.
Ranks are processes; collectives are those of torch.distributed with gloo, and calls those of its RPC.

`collectives` prints a line `OPERATION SIZE MICROSECONDS` for each operation and size, or `OPERATION - REASON` if gloo lacks it, and
begins no size after LIMIT seconds. `started` prints the shares of an all_reduce that are hidden (see benches/examples/cores.rs) for each
size, and `rpc` the times of calls and syncs, as JSON objects.
"""
import json
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist

TARGET_SECONDS, WARM_UP_SECONDS, MIN_ITERS, ROUNDS = 0.02, 0.2, 3, 11
LIMIT = float(os.environ.get("LIMIT", "60"))


def operations(rank, ranks):
    """Name, number of blocks, and a maker of the operation on a source and a destination."""
    blocks = lambda tensor: list(tensor.chunk(ranks))
    root = rank == 0
    # The gloo of torch 1 gathers to a list only.
    is_new = int(torch.__version__.split(".")[0]) >= 2
    gather = dist.all_gather_into_tensor if is_new else lambda all, own: dist.all_gather(blocks(all), own)
    scatter = dist.reduce_scatter_tensor
    yield "all_reduce", 1, lambda src, dst: lambda: dist.all_reduce(dst)
    yield "reduce", 1, lambda src, dst: lambda: dist.reduce(dst, 0)
    yield "broadcast", 1, lambda src, dst: lambda: dist.broadcast(dst, 0)
    yield "all_gather", ranks, lambda src, dst: lambda: gather(dst, src[: len(src) // ranks])
    yield "reduce_scatter", ranks, lambda src, dst: lambda: scatter(dst[: len(dst) // ranks], src)
    yield "all_to_all", ranks, lambda src, dst: lambda: dist.all_to_all_single(dst, src)
    yield "gather", ranks, lambda src, dst: lambda own=blocks(src)[0], all=blocks(dst) if root else None: dist.gather(own, all, 0)
    yield "scatter", ranks, lambda src, dst: lambda own=blocks(dst)[0], all=blocks(src) if root else None: dist.scatter(own, all, 0)
    yield "barrier", 1, lambda src, dst: dist.barrier


def slowest(seconds):
    """The largest of all ranks."""
    seconds = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.item()


def timed(work, iters=1):
    """Seconds of one operation on the slowest rank."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(iters):
        work()
    return slowest(time.perf_counter() - start) / iters


def collectives(rank, ranks, sizes):
    # The largest sizes come last, which take the longest.
    begin, lacking = time.perf_counter(), set()
    warm_up = torch.zeros(1)
    while slowest(time.perf_counter() - begin) < WARM_UP_SECONDS:
        dist.all_reduce(warm_up)
    for size in sizes:
        for name, blocks, make in operations(rank, ranks):
            if name in lacking or (name == "barrier" and size > sizes[0]) or slowest(time.perf_counter() - begin) > LIMIT:
                continue
            count = max(size // 4 // blocks, 1) * blocks
            work = make(torch.zeros(count), torch.zeros(count))
            try:
                timed(work)
                seconds = timed(work, max(MIN_ITERS, min(int(TARGET_SECONDS / timed(work, 2)), 10000)))
                line = f"{size} {seconds * 1e6:.3f}"
            except RuntimeError as error:
                lacking.add(name)
                line = f"- {str(error).splitlines()[0]}"
            if rank == 0:
                print(name, line, flush=True)


def compute(steps):
    for _ in range(steps):
        pass


def started(rank, ranks, sizes):
    million = timed(lambda: compute(1_000_000))
    for size in sizes:
        tensor = torch.zeros(size // 4)
        step = statistics.median(timed(lambda: dist.all_reduce(tensor)) for _ in range(ROUNDS))
        steps = int(step / million * 1_000_000)
        variants = dict(asleep=lambda: time.sleep(step), computing=lambda: compute(steps))

        def beside(work):
            handle = dist.all_reduce(tensor, async_op=True)
            work()
            handle.wait()

        times = {}
        note = lambda name, work: times.setdefault(name, []).append(timed(work))
        for _ in range(ROUNDS if step < 0.02 else 5):
            note("alone", lambda: dist.all_reduce(tensor))
            for name, work in variants.items():
                note(name, work)
                note(f"beside {name}", lambda: beside(work))
        middle = {name: statistics.median(all) for name, all in times.items()}
        share = lambda name: round((middle["alone"] + middle[name] - middle[f"beside {name}"]) / middle["alone"], 3)
        if rank == 0:
            print(json.dumps(dict(us=round(middle["alone"] * 1e6, 1), **{name: share(name) for name in variants})), flush=True)


def nop(*_):
    pass


def rpc(rank, workers):
    """Rank 0 is the controller, and the others are workers."""
    from torch.distributed import rpc

    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=workers + 1)
    if rank == 0:
        names = [f"rank{worker}" for worker in range(1, workers + 1)]

        def median_us(work, count=200):
            times = []
            for _ in range(count):
                start = time.perf_counter()
                work()
                times.append(time.perf_counter() - start)
            return round(statistics.median(times[count // 10:]) * 1e6, 3)

        def calls(count):
            for future in [rpc.rpc_async(name, nop, (1, 2.0, "three")) for _ in range(count) for name in names]:
                future.wait()

        one, all = median_us(lambda: rpc.rpc_sync(names[-1], nop)), median_us(lambda: calls(1))
        calls(100)
        start = time.perf_counter()
        calls(500)
        print(json.dumps(dict(sync_one=one, sync_all=all, calls_4_args=round((time.perf_counter() - start) / 500 * 1e6, 3))), flush=True)
    rpc.shutdown()


def main():
    job, ranks, sizes = sys.argv[1], int(sys.argv[2]), [int(size) for size in sys.argv[3:]]
    size = ranks + (job == "rpc")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        # Forked, so that torch is imported once.
        children = []
        for rank in range(size):
            child = os.fork()
            if child == 0:
                run(job, rank, ranks, size, sizes, f"{folder}/store")
            children.append(child)
        failed = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(max(map(abs, failed)))


def run(job, rank, ranks, size, sizes, store):
    code = 1
    try:
        if job == "rpc":
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29513")
            rpc(rank, ranks)
        else:
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
            dict(collectives=collectives, started=started)[job](rank, ranks, sizes)
            dist.barrier()
        code = 0
    except Exception as error:
        print(f"rank {rank}: {error}", file=sys.stderr, flush=True)
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
