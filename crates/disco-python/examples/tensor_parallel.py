"""A layer whose weights are split over the workers, and that outlives a worker.

python crates/disco-python/examples/tensor_parallel.py
"""

import os
import signal

import disco
import numpy as np


@disco.function
def load(ctx, weights):
    """Keeps this worker's columns."""
    columns = weights.shape[1] // ctx.world
    ctx.state["weights"] = weights[:, ctx.worker * columns : (ctx.worker + 1) * columns].copy()
    return os.getpid()


@disco.function
def forward(ctx, x):
    """Each worker multiplies its columns; the sum over all workers is the output."""
    weights = ctx.state["weights"]
    columns = weights.shape[1]
    return ctx.all_reduce(weights @ x[ctx.worker * columns : (ctx.worker + 1) * columns])


def main():
    weights, x = np.random.default_rng(0).normal(size=(6, 8)), np.arange(8.0)
    with disco.session(processes=4, backend="local") as s:
        processes = load(s, weights).get_all()
        print("differs from numpy by", abs(forward(s, x).get() - weights @ x).max())
        os.kill(processes[2], signal.SIGKILL)
        try:
            while True:
                forward(s, x).get_all()
        except disco.Lost as lost:
            print(lost)
        s.replace_lost()
        s.init_ccl("local")
        load(s, weights)
        print("differs from numpy by", abs(forward(s, x).get() - weights @ x).max())


if __name__ == "__main__":
    main()
