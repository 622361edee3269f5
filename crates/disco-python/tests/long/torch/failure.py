"""A rank is killed, stopped or absent, or all raise: what the others' exceptions say, as JSON."""

import json
import os
import signal
import sys
import time
from datetime import timedelta

import disco.torch
import torch
import torch.distributed as dist

how, who = sys.argv[1], int(sys.argv[2])
of_group = "group" in how
dist.init_process_group("disco", timeout=timedelta(seconds=600 if of_group else 3))
group = dist.new_group(timeout=timedelta(seconds=3)) if of_group else None
rank, x = dist.get_rank(), torch.ones(1000)
for _ in range(5):
    dist.all_reduce(x, group=group)
if how == "raise":
    raise ValueError("as all ranks do")
if rank == who:
    if "absent" in how:
        time.sleep(600)
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[how])
try:
    while True:
        dist.all_reduce(x, group=group)
except disco.DiscoError as error:
    # The test kills a rank that is stopped or sleeps.
    print(json.dumps({"rank": rank, "error": str(error)}), flush=True)
    os._exit(0)
