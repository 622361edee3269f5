"""Groups of a program, some of which are destroyed before their first operation."""

import threading

import disco.torch  # noqa: F401
import torch
import torch.distributed as dist

dist.init_process_group("disco")
rank, x = dist.get_rank(), torch.ones(3)
dist.all_reduce(x)
threads = []
for number in range(40):
    members = [0, 1, 2] if number % 2 else [0, 2]
    group = dist.new_group(members)
    if rank in members:
        if number % 3:
            y = torch.ones(2)
            dist.all_reduce(y, group=group)
            assert y.tolist() == [len(members)] * 2
        dist.destroy_process_group(group)
    if number in (10, 39):
        dist.barrier()
        threads.append(threading.active_count())
# The threads of groups end with them.
assert threads[1] <= threads[0] + 2, threads
dist.all_reduce(x)
assert x.tolist() == [9.0] * 3
dist.destroy_process_group()
print("ended", flush=True)
