"""Compiles sharded models with TVM, and computes their results with numpy.

    python3 models.py FOLDER

Writes for 1, 2 and 4 workers `<model>-<workers>.so`, and `models.json`: a list of calls, each with the library, the
number of workers and of groups, the functions (of each group, or one for all), and for each worker its arguments and
its result, as pairs of shape and elements.

    python3 models.py --weights FOLDER

Writes weights for 2 workers as `tensor-cache.json` with shard info and the library with its functions, the same weights
pre-sharded, and `weights.json`: the parameters of each worker as TVM's own loader loads them.
"""

import ctypes
import json
import os
import sys
import threading

import numpy as np
import tvm_ffi

if "--weights" in sys.argv:
    # TVM's Disco is in a library that must be there before the package `tvm` is.
    for entry in sys.path:
        for name in ("libtvm_runtime.so", "libtvm_runtime_extra.so"):
            library = os.path.join(entry, "tvm/lib", name)
            if os.path.isfile(library):
                ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
import tvm
from tvm import relax
from tvm.script import relax as R

BATCH, WIDTH, HIDDEN, HEADS = 4, 16, 32, 4
WORKERS = [1, 2, 4]
random = np.random.default_rng(24)


def tensor(*shape):
    return relax.TensorType(list(shape), "float32")


def numbers(*shape):
    return random.uniform(-1, 1, shape).astype("float32")


def written(array):
    array = np.asarray(array)
    return [list(array.shape), [float(x) for x in array.ravel()]]


class Model:
    """A library with functions, and the calls that check them."""

    def __init__(self, folder, name, workers):
        self.path, self.workers = f"{name}-{workers}.so", workers
        self.folder, self.builder, self.calls = folder, relax.BlockBuilder(), []

    def function(self, name, params, body, is_pure=True):
        """Adds a function; `body` gets `emit` and the parameters, and returns the result."""
        variables = [relax.Var(key, tensor(*shape)) for key, shape in params]
        with self.builder.function(name, variables, pure=is_pure):
            if is_pure:
                with self.builder.dataflow():
                    out = self.builder.emit_output(body(self.builder.emit, *variables))
            else:
                out = body(self.builder.emit, *variables)
            self.builder.emit_func_output(out)

    def expect(self, functions, args, results, groups=1):
        """`args` and `results` have a list of arrays and an array for each worker."""
        args = [[written(arg) for arg in of_worker] for of_worker in args]
        call = {"library": self.path, "workers": self.workers, "groups": groups, "functions": functions}
        self.calls.append(call | {"args": args, "results": [written(result) for result in results]})

    def compile(self):
        executable = tvm.compile(self.builder.get(), target="llvm")
        executable.export_library(os.path.join(self.folder, self.path))
        return self.calls


def columns(array, workers):
    return np.split(array, workers, axis=1)


def rows(array, workers):
    return np.split(array, workers, axis=0)


def mlp(model, workers):
    """relu(x W1) W2, with columns of W1 and rows of W2 on each worker."""

    def main(emit, x, w1, w2):
        hidden = emit(R.nn.relu(emit(R.matmul(x, w1))))
        return R.ccl.allreduce(emit(R.matmul(hidden, w2)), "sum", in_group=True)

    part = HIDDEN // workers
    model.function("main", [("x", (BATCH, WIDTH)), ("w1", (WIDTH, part)), ("w2", (part, WIDTH))], main)
    x, w1, w2 = numbers(BATCH, WIDTH), numbers(WIDTH, HIDDEN), numbers(HIDDEN, WIDTH)
    expected = np.maximum(x @ w1, 0) @ w2
    parts = zip(columns(w1, workers), rows(w2, workers))
    model.expect(["main"], [[x, *part] for part in parts], [expected] * workers)


def attention(model, workers):
    """Attention with a part of the heads on each worker; the output projections are summed."""
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
    params = [(name, (WIDTH, part)) for name in ("wq", "wk", "wv")]
    model.function("main", [("x", (BATCH, WIDTH)), *params, ("wo", (part, WIDTH))], main)
    x, (wq, wk, wv, wo) = numbers(BATCH, WIDTH), (numbers(WIDTH, WIDTH) for _ in range(4))
    q, k, v = ((x @ w).reshape(BATCH, HEADS, size).transpose(1, 0, 2) for w in (wq, wk, wv))
    scores = q @ k.transpose(0, 2, 1) * size**-0.5
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = scores / scores.sum(axis=-1, keepdims=True) @ v
    expected = mixed.transpose(1, 0, 2).reshape(BATCH, WIDTH) @ wo
    parts = zip(*(columns(w, workers) for w in (wq, wk, wv)), rows(wo, workers))
    model.expect(["main"], [[x, *part] for part in parts], [expected] * workers)


def exchange(model, workers):
    """Each collective as a function of its own."""
    x = [("x", (BATCH, WIDTH))]
    xs = [numbers(BATCH, WIDTH) for _ in range(workers)]
    reductions = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max, "avg": np.mean}
    for kind, reduce in reductions.items():
        body = lambda emit, x, kind=kind: R.ccl.allreduce(x, kind, in_group=False)
        model.function(kind, x, body)
        model.expect([kind], [[x] for x in xs], [reduce(xs, axis=0)] * workers)
    model.function("broadcast", x, lambda emit, x: R.ccl.broadcast_from_worker0(x))
    model.expect(["broadcast"], [[x] for x in xs], [xs[0]] * workers)
    model.function("scatter", x, lambda emit, x: R.ccl.scatter_from_worker0(x, workers, axis=1))
    model.expect(["scatter"], [[x] for x in xs], columns(xs[0], workers))
    model.function("gather", x, lambda emit, x: R.ccl.allgather(x, workers, in_group=False))
    model.expect(["gather"], [[x] for x in xs], [np.concatenate(xs)] * workers)


def pipeline(model, workers):
    """Two groups: the first doubles its input and sends it, the second receives and adds its input."""

    def send(emit, x):
        twice = emit(R.add(x, x))
        emit(R.call_packed("runtime.disco.send_to_next_group", twice, ty_args=relax.ObjectType()))
        return emit(R.add(twice, x))

    def receive(emit, x):
        received = R.call_dps_packed("runtime.disco.recv_from_prev_group", [], out_ty=tensor(BATCH, WIDTH))
        return emit(R.add(emit(received), x))

    if workers == 1:
        return
    x = [("x", (BATCH, WIDTH))]
    model.function("send", x, send, is_pure=False)
    model.function("receive", x, receive)
    xs = [numbers(BATCH, WIDTH) for _ in range(workers)]
    half = workers // 2
    results = [3 * x for x in xs[:half]] + [2 * x + y for x, y in zip(xs[:half], xs[half:])]
    model.expect(["send", "receive"], [[x] for x in xs], results, groups=2)


def models(folder):
    calls = []
    for workers in WORKERS:
        for describe in (mlp, attention, exchange, pipeline):
            model = Model(folder, describe.__name__, workers)
            describe(model, workers)
            if model.calls:
                calls += model.compile()
    with open(os.path.join(folder, "models.json"), "w", encoding="utf-8") as file:
        json.dump(calls, file)


def shard_functions(folder):
    """A library with `cut_columns`, which cuts [8, 16] into [2, 8, 8], and `transpose`."""
    from tvm import te

    weights = te.placeholder((8, 16), "float32", name="weights")
    cut = te.compute((2, 8, 8), lambda part, row, column: weights[row, part * 8 + column], name="parts")
    tall = te.placeholder((16, 8), "float32", name="weights")
    turned = te.compute((8, 16), lambda row, column: tall[column, row], name="turned")
    functions = {"cut_columns": [weights, cut], "transpose": [tall, turned]}
    module = tvm.IRModule(
        {
            name: te.create_prim_func(tensors).with_attr("global_symbol", name)
            for name, tensors in functions.items()
        }
    )
    path = os.path.join(folder, "shards.so")
    tvm.compile(module, target="llvm").export_library(path)
    return path


def register_collectives(workers):
    """The collectives that TVM's loader needs, for a session of threads: the wheel has none for CPUs."""
    barrier, sent = threading.Barrier(workers), {}
    rank = tvm_ffi.get_global_func("runtime.disco.worker_rank")

    def exchange(send, recv, part):
        if rank() == 0:
            sent["tensor"] = send.numpy()
        barrier.wait(60)
        recv.copyfrom(part(sent["tensor"]))
        barrier.wait(60)

    def scatter(send, in_group, recv):
        exchange(send, recv, lambda whole: whole[rank()])

    def broadcast(send, in_group, recv):
        exchange(send, recv, lambda whole: whole)

    # TVM looks for `runtime.disco.<name of the library>.<function>`, and this session has no library.
    tvm_ffi.register_global_func("runtime.disco..scatter_from_worker0", scatter)
    tvm_ffi.register_global_func("runtime.disco..broadcast_from_worker0", broadcast)


def weights(folder):
    from tvm.contrib import tvmjs
    from tvm.runtime import disco

    workers = 2
    params = {
        "param_0": numbers(8, 16),
        "param_1": numbers(5),
        "param_2": numbers(16, 8),
        "param_3": numbers(3, 3),
        "param_4": random.integers(-100, 100, (4,)).astype("int8"),
    }
    formats = {"*": "raw", "param_3": "f32-to-bf16"}
    path = os.path.join(folder, "whole")
    tvmjs.dump_tensor_cache(params, path, encode_format=formats, show_progress=False)
    cut = ["cut_columns", [[2, 8, 8], "float32"]]
    info = json.dumps({"param_0": [cut], "param_2": [["transpose", [[8, 16], "float32"]], cut]})
    library = shard_functions(folder)
    register_collectives(workers)
    session = disco.ThreadedSession(num_workers=workers)
    module = session.load_vm_module(library, tvm.cpu())
    metadata = os.path.join(path, "tensor-cache.json")
    with open(metadata, encoding="utf-8") as file:
        text = file.read()
    create = session.get_global_func("runtime.disco.ShardLoader")
    loaded = session.get_global_func("runtime.disco.ShardLoaderLoadAll")(create(metadata, text, info, module))
    tvm_ffi.register_global_func("test.item", lambda array, index: array[index])
    item = session.get_global_func("test.item")
    items = [item(loaded, index) for index in range(len(params))]
    parts = [[part.debug_get_from_remote(worker).numpy() for part in items] for worker in range(workers)]
    presharded = {
        f"param_{index}_shard-{worker + 1}-of-{workers}": parts[worker][index]
        for worker in range(workers)
        for index in range(len(params))
    }
    tvmjs.dump_tensor_cache(presharded, os.path.join(folder, "presharded"), encode_format="raw", show_progress=False)
    with open(os.path.join(folder, "weights.json"), "w", encoding="utf-8") as file:
        json.dump({"info": info, "parts": [[written(part) for part in of_worker] for of_worker in parts]}, file)
    session.shutdown()
    # Without the end of the interpreter: it aborts the process if one of TVM's threads then waits for its lock.
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "--weights":
        weights(sys.argv[2])
    else:
        models(sys.argv[1])
