"""Compiles sharded models with TVM and computes their results with numpy.

python3 models.py FOLDER: writes for 1, 2 and 4 workers `<model>-<workers>.so`, and beside them `<name>.bin` files with
elements of f32 (arguments of the models and expected results). `models.json` lists them.
"""

import json
import os
import sys

import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

BATCH, WIDTH, HIDDEN, HEADS = 4, 16, 32, 4
WORKERS = [1, 2, 4]


def tensor(*shape):
    return relax.TensorType(list(shape), "float32")


def function(module, name, params, body):
    """Adds a function; `body` gets the parameters and the builder, and returns the result."""
    variables = [relax.Var(key, ty) for key, ty in params]
    with module.function(name, variables):
        with module.dataflow():
            out = module.emit_output(body(*variables))
        module.emit_func_output(out)


def compile_to(path, functions):
    builder = relax.BlockBuilder()
    for name, params, body in functions:
        function(builder, name, params, lambda *vs, body=body: body(builder.emit, *vs))
    executable = tvm.compile(builder.get(), target="llvm")
    executable.export_library(path)


def mlp(workers):
    """y = sum over workers of relu(x W1) W2, with columns of W1 and rows of W2 on each worker."""

    def main(emit, x, w1, w2):
        hidden = emit(R.nn.relu(emit(R.matmul(x, w1))))
        return R.ccl.allreduce(emit(R.matmul(hidden, w2)), "sum", in_group=True)

    part = HIDDEN // workers
    params = [("x", tensor(BATCH, WIDTH)), ("w1", tensor(WIDTH, part)), ("w2", tensor(part, WIDTH))]
    return [("main", params, main)]


def attention(workers):
    """Attention with heads / workers heads on each worker; the output projections are summed over the workers."""
    heads, size = HEADS // workers, WIDTH // HEADS

    def split(emit, x, weight):
        product = emit(R.matmul(x, weight))
        return emit(R.permute_dims(emit(R.reshape(product, (BATCH, heads, size))), [1, 0, 2]))

    def main(emit, x, wq, wk, wv, wo):
        q, k, v = (split(emit, x, weight) for weight in (wq, wk, wv))
        scores = emit(R.matmul(q, emit(R.permute_dims(k, [0, 2, 1]))))
        scores = emit(R.multiply(scores, R.const(size**-0.5, "float32")))
        mixed = emit(R.matmul(emit(R.nn.softmax(scores, axis=-1)), v))
        mixed = emit(R.reshape(emit(R.permute_dims(mixed, [1, 0, 2])), (BATCH, heads * size)))
        return R.ccl.allreduce(emit(R.matmul(mixed, wo)), "sum", in_group=True)

    part = WIDTH // workers
    params = [("x", tensor(BATCH, WIDTH))]
    params += [(name, tensor(WIDTH, part)) for name in ("wq", "wk", "wv")]
    return [("main", params + [("wo", tensor(part, WIDTH))], main)]


def exchange(workers):
    """Collectives and transfers, each a function of its own."""

    def reduce(kind):
        return lambda emit, x: R.ccl.allreduce(x, kind, in_group=False)

    def scatter_gather(emit, x):
        """Worker 0's columns go to the workers; the transposed parts come together again."""
        return R.ccl.allgather(emit(R.ccl.scatter_from_worker0(x, workers, axis=1)), workers, in_group=False)

    def broadcast(emit, x):
        return R.ccl.broadcast_from_worker0(x)

    def send(emit, x):
        """Worker 0's tensor goes to the last worker."""
        return relax.op.call_dps_packed("runtime.disco.send_to_worker", [x, relax.PrimValue(workers - 1)], out_ty=tensor(BATCH, WIDTH))

    x = [("x", tensor(BATCH, WIDTH))]
    functions = [(kind, x, reduce(kind)) for kind in ("sum", "prod", "min", "max", "avg")]
    return functions + [("scatter_gather", x, scatter_gather), ("broadcast", x, broadcast)]


def main(folder):
    for workers in WORKERS:
        for model in (mlp, attention, exchange):
            compile_to(os.path.join(folder, f"{model.__name__}-{workers}.so"), model(workers))


if __name__ == "__main__":
    main(sys.argv[1])
