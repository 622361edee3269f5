"""The Python package with arrays of torch and cupy on one GPU: DLPack both ways, the worker's stream, collectives.

    PYTHONPATH=FOLDER_OF_THE_PACKAGE:FOLDER_OF_THIS_FILE python3 -c "import gpu_python; gpu_python.main('nccl', 2, 'torch')"

Workers find the functions by name, so that nothing needs cloudpickle.
"""
import disco


def arrays(library, device):
    """A function that makes an array with n equal numbers, and what waits for the library's own stream."""
    if library == "numpy":
        import numpy

        return lambda n, value: numpy.full(n, value, "float32"), lambda: None
    if library == "cupy":
        import cupy

        return lambda n, value: cupy.full(n, value, "float32"), cupy.cuda.Stream.null.synchronize
    import torch

    where = torch.device("cuda", int(device.split(":")[1]))
    torch.cuda.set_device(where)
    return lambda n, value: torch.full((n,), float(value), device=where), torch.cuda.synchronize


@disco.function
def rounds(ctx, library, count, n):
    """Reduces arrays that kernels are still writing, and reads the results at once; returns the number of wrong rounds."""
    full, _ = arrays(library, ctx.device)
    wrong = 0
    for round in range(count):
        x = full(n, 0)
        for _ in range(20):
            x += ctx.worker + round / 20
        expected = sum(20 * worker + round for worker in range(ctx.world))
        out = ctx.empty(n, "float32", library=library)
        for found in (ctx.all_reduce(x), ctx.all_reduce(x, out=out), ctx.all_reduce(x, out=x)):
            wrong += abs(float(found.mean()) - expected) > 1e-3 * (expected + 1)
    return wrong


@disco.function
def on_own_stream(ctx, n):
    """The same for kernels on the worker's stream."""
    import torch

    with torch.cuda.stream(torch.cuda.ExternalStream(ctx.stream)):
        x = torch.full((n,), float(ctx.worker + 1), device="cuda")
        for _ in range(20):
            x += 1
        ctx.all_reduce(x, out=x)
        ctx.synchronize()
        return float(x.mean()) - sum(worker + 21 for worker in range(ctx.world))


@disco.function
def doubled(ctx, x):
    return x + x


def main(backend, workers, library):
    devices = () if backend == "local" else [0] * workers
    with disco.session(processes=workers, backend=backend, devices=devices, collective_deadline=30) as s:
        for n in (1, 1000, 1 << 22):
            assert rounds(s, library, 20, n).get_all(timeout=60) == [0] * workers, (library, n)
            if library == "torch":
                assert on_own_stream(s, n).get_all(timeout=60) == [0.0] * workers, n
        full, synchronize = arrays(library, "cuda:0")
        x = full(1000, 3)
        synchronize()
        if library == "numpy":
            # Arrays of a device do not leave their process.
            assert float(doubled(s, x).get(timeout=60).mean()) == 6
    print(f"{library} with {backend} on {workers} workers: right")
