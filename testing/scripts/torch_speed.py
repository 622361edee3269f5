"""Medians of all_reduce over Disco beside gloo, for `torchrun --nproc-per-node 2 testing/scripts/torch_speed.py`."""

import statistics
import time

import disco.torch  # noqa: F401
import torch
import torch.distributed as dist

dist.init_process_group("disco")
gloo = dist.new_group(backend="gloo")


def median(operation, count):
    """Seconds of one operation."""
    times = []
    for _ in range(7):
        dist.barrier(group=gloo)
        start = time.perf_counter()
        for _ in range(count):
            operation()
        times.append((time.perf_counter() - start) / count)
    return statistics.median(times)


for elements, count in ((2, 300), (1 << 14, 200), (1 << 18, 60), (1 << 24, 3)):
    x = torch.zeros(elements)
    theirs = median(lambda x=x: dist.all_reduce(x, group=gloo), count)
    ours = median(lambda x=x: dist.all_reduce(x), count)
    if dist.get_rank() == 0:
        print(f"{4 * elements} B: gloo {theirs * 1e6:.1f} us, Disco {ours * 1e6:.1f} us, ratio {theirs / ours:.2f}", flush=True)
dist.destroy_process_group()
