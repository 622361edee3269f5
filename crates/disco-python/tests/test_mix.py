"""Random mixes of calls, collectives, failures, losses, changes of size and checkpoints, compared
with numpy in this process.
"""

import os
import random
import signal

import disco
import numpy as np
import pytest
from conftest import started

ROUNDS = 3000 if os.environ.get("DISCO_LONG_TESTS") else 60


@disco.function
def add(ctx, x, y, *, times=1):
    return (x + y) * times


@disco.function
def total(ctx, x, op):
    return ctx.all_reduce(x, op)


@disco.function
def shift(ctx, x):
    out = np.empty_like(x)
    ctx.exchange([(x, (ctx.worker + 1) % ctx.world)], [(out, (ctx.worker - 1) % ctx.world)])
    return out


@disco.function
def pair(ctx, x):
    return x * 2, {"worker": ctx.worker, "x": x}


@disco.function
def fail(ctx, workers):
    if ctx.worker in workers:
        raise ArithmeticError(ctx.worker)
    return ctx.all_reduce(1)


@disco.function
def process(ctx):
    return os.getpid()


@disco.function
def some(ctx, x):
    return x + ctx.worker


@disco.function
def beside(ctx, x, axis):
    """A started sum along an axis, and the worker's own sum."""
    comm = ctx.along(axis)
    work = comm.start.all_reduce(x)
    own = x.sum()
    return work.wait(), own, comm.all_gather_object(ctx.worker)


@disco.function
def count(ctx, x, to):
    for step in range(to):
        ctx.emit(x * step)
    return x


@disco.function
def keep(ctx, amount):
    numbers, is_new = ctx.keep("sum", 1000, "int64")
    numbers[-1] += amount
    return is_new, int(numbers[-1])


class Mix:
    """A session, and what each worker must have behind each handle."""

    def __init__(self, session, seed, folder):
        self.s, self.random, self.folder, self.step = session, random.Random(seed), folder, 0
        self.held = []
        self.kept = [None] * len(session)
        self.new()

    def array(self):
        dtype = self.random.choice(["f8", "i4", "f4"])
        return np.array([self.random.randrange(-50, 50) for _ in range(6)], dtype).reshape(3, 2)

    def new(self):
        x = self.array()
        self.held.append((self.s.put(x), [x] * len(self.s)))

    def keep(self):
        amount = self.random.randrange(100)
        expected = [(total is None, (total or 0) + amount) for total in self.kept]
        assert keep(self.s, amount).get_all(timeout=60) == expected
        self.kept = [total for _, total in expected]

    def discard(self):
        there = [total is not None for total in self.kept]
        discarded = self.s.call(lambda ctx: ctx.discard_kept("sum"))
        assert discarded.get_all(timeout=60) == there
        self.kept = [None] * len(there)

    def each(self):
        xs = [self.array().astype("f8") for _ in range(len(self.s))]
        self.held.append((self.s.put_each(xs), xs))

    def pick(self):
        return self.random.choice(self.held)

    def add(self):
        (x, xs), (y, ys), times = self.pick(), self.pick(), self.random.randrange(-2, 3)
        self.held.append(
            (add(self.s, x, times=times, y=y), [(a + b) * times for a, b in zip(xs, ys)])
        )

    def total(self):
        x, xs = self.pick()
        op = self.random.choice(["sum", "min", "max"])
        found = {"sum": sum(xs[1:], xs[0]), "min": np.min(xs, axis=0), "max": np.max(xs, axis=0)}[
            op
        ]
        self.held.append((total(self.s, x, op), [found] * len(xs)))

    def shift(self):
        x, xs = self.pick()
        self.held.append((shift(self.s, x), [xs[worker - 1] for worker in range(len(xs))]))

    def pair(self):
        x, xs = self.pick()
        double, rest = pair(self.s, x).split(2)
        worker = self.random.randrange(len(xs))
        found = rest[worker].get(timeout=30)
        assert found["worker"] == worker and np.array_equal(found["x"], xs[worker])
        self.held.append((double, [x * 2 for x in xs]))

    def some(self):
        x, xs = self.pick()
        workers = [worker for worker in range(len(xs)) if self.random.random() < 0.5] or [0]
        found = self.s.call_on(workers, some, x)
        for worker in workers:
            assert np.array_equal(found.get(worker, timeout=30), xs[worker] + worker)
        shifts = [self.random.randrange(9) for _ in xs]
        each = self.s.call_each(add, zip([x] * len(xs), shifts))
        self.held.append((each, [x + shift for x, shift in zip(xs, shifts)]))

    def beside(self):
        x, xs = self.pick()
        size = len(xs)
        rows = self.random.choice([rows for rows in range(1, size + 1) if size % rows == 0])
        mesh = self.s.mesh(rows=rows, columns=size // rows)
        axis = self.random.choice(["rows", "columns"])
        total, own, who = beside(self.s, x, axis).split(3)
        places = [mesh.coordinates(worker) for worker in range(size)]
        other = "rows" if axis == "columns" else "columns"
        lines = [[w for w in range(size) if places[w][other] == place[other]] for place in places]
        assert who.get_all(timeout=60) == lines
        assert [found.item() for found in map(np.asarray, own.get_all())] == [x.sum() for x in xs]
        self.held.append((total, [sum(xs[worker] for worker in line) for line in lines]))

    def stream(self):
        x, xs = self.pick()
        steps = self.random.randrange(1, 30)
        with self.s.call_streaming(count, x, steps) as results:
            found = [[] for _ in xs]
            for worker, value in results:
                found[worker].append(value)
                if self.random.random() < 0.02:
                    return
        assert [len(values) for values in found] == [steps] * len(xs)
        for x, values in zip(xs, found):
            assert all(np.array_equal(value, x * step) for step, value in enumerate(values))
        self.held.append((results.call, xs))

    def cancel(self):
        x, _ = self.pick()
        results = self.s.call_streaming(count, x, 10**9)
        self.s.cancel(results.call, "the mix")
        with pytest.raises(disco.Cancelled, match="the mix"):
            for _ in results:
                pass

    def check(self):
        x, xs = self.pick()
        if self.random.random() < 0.5:
            for found, expected in zip(x.get_all(timeout=60), xs, strict=True):
                assert found.dtype == expected.dtype and np.allclose(found, expected, rtol=1e-4)
        else:
            worker = self.random.randrange(len(xs))
            assert np.allclose(x.get(worker, timeout=60), xs[worker], rtol=1e-4)

    def free(self):
        if len(self.held) > 4:
            self.held.pop(self.random.randrange(len(self.held)))

    def fail(self):
        # A failure also ends collectives of earlier calls that other workers are still inside.
        self.s.sync(timeout=60)
        failing = [worker for worker in range(len(self.s)) if self.random.random() < 0.5] or [0]
        with pytest.raises(disco.WorkerError) as raised:
            fail(self.s, failing).get_all(timeout=60)
        errors = getattr(raised.value, "exceptions", [raised.value])
        assert raised.value.worker in failing and {error.worker for error in errors} <= set(failing)
        assert all(type(error.__cause__) is ArithmeticError for error in errors)
        self.s.recover()
        self.s.init_ccl("local")

    def lose(self):
        worker = self.random.randrange(len(self.s))
        os.kill(process(self.s).get(worker), signal.SIGKILL)
        with pytest.raises(disco.Lost):
            while True:
                total(self.s, 1, "sum").get_all(timeout=60)
        assert self.s.replace_lost().workers == [worker]
        self.s.init_ccl("local")
        # The new worker has no objects.
        self.held.clear()
        self.each()

    def resize(self):
        size = self.random.randrange(1, 5)
        self.s.resize(size)
        self.kept = (self.kept + [None] * size)[:size]
        self.s.init_ccl("local")
        self.held.clear()
        self.new()

    def save(self):
        x, xs = self.pick()
        self.step += 1
        self.s.save(self.folder, self.step, {"x": (x, 0)}, keep=2)
        loaded = self.s.load(self.folder)
        assert loaded.step == self.step
        self.held.append(
            (self.s.call(lambda ctx, x: np.from_dlpack(x).copy(), loaded.tensors["x"]), xs)
        )

    def run(self, steps):
        often = [
            self.add,
            self.total,
            self.shift,
            self.pair,
            self.check,
            self.check,
            self.free,
            self.new,
            self.each,
            self.some,
            self.beside,
            self.stream,
            self.cancel,
            self.keep,
            self.discard,
        ]
        for _ in range(steps):
            rare = self.random.random()
            if rare < 0.03:
                self.random.choice([self.fail, self.lose, self.resize, self.save])()
            else:
                self.random.choice(often)()
        while self.held:
            self.check()
            self.held.pop()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(4))
def test_random_mixes_give_what_numpy_gives(seed, tmp_path):
    with started("processes") as s:
        Mix(s, seed, tmp_path).run(ROUNDS)
