"""Calls of some workers, running calls, cancellation, and collectives along axes."""

import asyncio
import time

import disco
import numpy as np
import pytest
from conftest import started


@disco.function
def number(ctx, x=0, *, times=1):
    return (ctx.worker + x) * times


@disco.function
def count(ctx, to, *, fails_at=None):
    for step in range(to):
        if step == fails_at:
            raise ArithmeticError(step)
        ctx.emit({"step": step, "x": np.full(2, step + ctx.worker)})
    return to


@disco.function
def work(ctx):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(0.01)
        # Raises `Cancelled`.
        ctx.emit("still here")


@disco.function
def wait_for_a_rank(ctx):
    if ctx.worker == 0:
        return "left"
    ctx.emit("here")
    ctx.barrier()


def test_a_call_of_some_workers_leaves_the_others_out(s):
    assert s.call_on([2, 0], number, 5, times=2).get_all() == [10, None, 14]
    assert s.call_on([1], s["disco.python.keep"], 7).get_all() == [None, 7, None]
    with pytest.raises(disco.Invalid, match="worker 3"):
        s.call_on([3], number)


def test_each_worker_gets_its_own_arguments(s):
    arrays = [np.arange(3.0) + worker for worker in range(3)]
    found = s.call_each(
        lambda ctx, name, x: (ctx.worker, name, x.sum()), zip("abc", arrays, strict=True)
    )
    assert found.get_all() == [(0, "a", 3.0), (1, "b", 6.0), (2, "c", 9.0)]
    with pytest.raises(ValueError, match="2 tuples of arguments for 3 workers"):
        s.call_each(number, [(1,), (2,)])


def test_a_failure_of_a_running_call_ends_its_results(s):
    with pytest.raises(disco.WorkerError) as raised:
        for _ in s.call_streaming(count, 5, fails_at=3):
            pass
    assert type(raised.value.__cause__) is ArithmeticError
    s.recover()
    assert number(s).get_all() == [0, 1, 2]


def test_leaving_the_results_cancels_the_call(s):
    with s.call_streaming(count, 1_000_000) as results:
        assert next(results)[1]["step"] == 0
    results = s.call_streaming(count, 1_000_000)
    assert results.next(timeout=30)[1]["step"] == 0
    del results
    assert number(s).get_all() == [0, 1, 2]


def test_a_call_that_waits_for_a_rank_can_be_cancelled(kind):
    with started(kind, backend=None) as s:
        assert not s.is_whole()
        s.init_ccl("local")
        assert s.is_whole()
        results = s.call_streaming(wait_for_a_rank)
        assert {worker for worker, _ in (next(results), next(results))} == {1, 2}
        s.cancel(results.call)
        with pytest.raises(disco.Cancelled):
            results.call.get_all(timeout=30)
        s.init_ccl("local")
        assert s.is_whole() and number(s).get_all() == [0, 1, 2]


def test_results_of_a_running_call_for_asyncio():
    async def main():
        async with disco.aio.session(processes=2, backend="local") as s:
            steps = [value["step"] async for _, value in s.call_streaming(count, 30)]
            assert sorted(steps) == sorted([*range(30)] * 2)
            call = work(s)
            s.cancel(call)
            with pytest.raises(disco.Cancelled):
                await call
            with pytest.raises(disco.Timeout):
                s.call(time_out, 1)
                await s.sync(timeout=0.05)
            return await s.call_on([1], number)

    assert asyncio.run(asyncio.wait_for(main(), 60)) == [None, 1]


def time_out(ctx, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end and not ctx.cancelled:
        time.sleep(0.01)


@disco.function
def along_each_axis(ctx, x):
    rows, columns = ctx.along("tp"), ctx.along("dp")
    return (
        (rows.rank, rows.size, rows.all_reduce(x)),
        (columns.rank, columns.size, columns.all_reduce(x)),
        ctx.along("dp", "tp").all_gather(x).tolist(),
        ctx.along("all", mesh=disco.Mesh(all=4)).all_reduce(1),
    )


def test_collectives_along_the_axes_of_a_mesh():
    with disco.session(processes=4, backend="local") as s:
        with pytest.raises(disco.WorkerErrors, match="the session has no mesh"):
            along_each_axis(s, np.ones(1)).get_all()
        s.init_ccl("local")
        mesh = s.mesh(dp=2, tp=2)
        x = s.put_each(np.array([float(10**worker)]) for worker in range(4))
        for worker, (row, column, both, every) in enumerate(along_each_axis(s, x).get_all()):
            place = mesh.coordinates(worker)
            assert mesh.worker(**place) == worker and place == {"dp": worker // 2, "tp": worker % 2}
            assert row == (place["tp"], 2, 11.0 * 100 ** place["dp"])
            assert column == (place["dp"], 2, 101.0 * 10 ** place["tp"])
            assert both == [[1.0], [10.0], [100.0], [1000.0]] and every == 4
        sums = s.all_reduce(x, along="tp")
        assert [found.item() for found in sums.get_all()] == [11.0, 11.0, 1100.0, 1100.0]
        gathered = s.gather(x, root=1, along=("dp",))
        assert [
            None if found is None else found.ravel().tolist() for found in gathered.get_all()
        ] == [
            None,
            None,
            [1.0, 100.0],
            [10.0, 1000.0],
        ]
        with pytest.raises(disco.Invalid, match="`dp=4` would fit"):
            s.mesh(dp=3)
        # A worker that takes the place of a lost one gets the mesh, too.
        s.resize(3)
        s.init_ccl("local")
        with pytest.raises(disco.WorkerErrors, match="4 places, and the session has 3 workers"):
            along_each_axis(s, np.ones(1)).get_all()


def test_a_mesh_is_a_value():
    mesh = disco.Mesh(dp=2, tp=4)
    assert mesh == disco.Mesh(dp=2, tp=4) != disco.Mesh(tp=4, dp=2) and mesh.size == 8
    assert mesh.axes == {"dp": 2, "tp": 4} and repr(mesh) == "disco.Mesh(dp=2, tp=4)"
    import copy

    assert copy.copy(mesh) == mesh and len({mesh, disco.Mesh(dp=2, tp=4)}) == 1
    with pytest.raises(ValueError, match="no `tp`"):
        mesh.worker(dp=1)
    with pytest.raises(ValueError, match="3 numbers"):
        mesh.worker(dp=1, tp=1, pp=1)
    with pytest.raises(disco.Invalid, match="at least one axis"):
        disco.Mesh()


@disco.function
def overlap(ctx, x):
    started = ctx.start.all_reduce(x)
    in_place = ctx.start.all_reduce(np.copy(x), "max")
    gathered = ctx.start.all_gather(x)
    ring = np.empty_like(x)
    sent = ctx.start.send(x, (ctx.worker + 1) % ctx.world)
    received = ctx.start.receive(ring, (ctx.worker - 1) % ctx.world)
    local = float((x * x).sum())
    found = [started.wait(), in_place.wait(timeout=30), gathered.wait(), received.wait()]
    assert sent.wait() is None and started.has_ended and started.wait() is started.wait()
    assert ctx.start.barrier().wait(timeout=30) is None
    return local, [array.tolist() for array in found]


def test_started_operations_run_beside_the_function(s):
    xs = [np.array([worker, 1.0]) for worker in range(3)]
    for worker, (local, found) in enumerate(overlap(s, s.put_each(xs)).get_all()):
        expected = [sum(xs), np.max(xs, axis=0), np.stack(xs), xs[worker - 1]]
        assert local == worker**2 + 1 and found == [array.tolist() for array in expected]


@disco.function
def late(ctx):
    if ctx.worker:
        work = ctx.start.barrier()
        try:
            work.wait(timeout=0.05)
        except disco.Timeout:
            if ctx.worker == 1:
                ctx.cancel(work, "rank 0 does not come")
    else:
        ctx.store.wait("never", 30)
    work.wait()


def test_a_started_operation_can_be_cancelled():
    with started("processes") as s:
        with pytest.raises(disco.WorkerError, match="rank 0 does not come"):
            late(s).get_all(timeout=60)


@disco.function
def objects(ctx):
    mine = {"worker": ctx.worker, "text": "x" * 10**ctx.worker}
    every = ctx.all_gather_object(mine)
    root = ctx.gather_object(mine, root=1)
    from_root = ctx.broadcast_object(mine if ctx.worker == 2 else None, root=2)
    items = [("for", rank) for rank in range(ctx.world)] if ctx.worker == 0 else None
    return every, root, from_root, ctx.scatter_object(items)


def test_collectives_of_objects(s):
    mine = [{"worker": worker, "text": "x" * 10**worker} for worker in range(3)]
    for worker, found in enumerate(objects(s).get_all()):
        assert found == (mine, mine if worker == 1 else None, mine[2], ("for", worker))


@disco.function
def own_reductions(ctx, x):
    def farther(a, b):
        return np.where(np.abs(b) > np.abs(a), b, a)

    into = np.zeros_like(x)
    assert ctx.all_reduce(x, farther, out=into) is into
    return (
        ctx.all_reduce(x, farther).tolist(),
        into.tolist(),
        ctx.reduce_scatter(x, farther).tolist(),
        ctx.all_reduce(f"{ctx.worker}", lambda a, b: a + b),
        ctx.reduce(x, lambda a, b: a - b, root=1),
    )


def test_reductions_by_a_function_of_python_need_not_be_associative(s):
    xs = [np.array([worker, -2.0, 3.0 - worker * 2]) for worker in range(3)]
    most = [2.0, -2.0, 3.0]
    for worker, found in enumerate(own_reductions(s, s.put_each(xs)).get_all()):
        rest = found[-1]
        assert found[:-1] == (most, most, [most[worker]], "012")
        assert (rest is None) == (worker != 1)
        if worker == 1:
            assert rest.tolist() == (xs[0] - xs[1] - xs[2]).tolist()


@disco.function
def count_arrivals(ctx):
    arrived = ctx.store.add("arrived", 1)
    if arrived == ctx.world:
        ctx.store.set("all", b"here")
    assert ctx.store.wait("all", 30) == b"here"
    first = ctx.store.compare_and_set("first", None, b"%d" % ctx.worker)
    return arrived, ctx.store.get("all"), ctx.store.get("nothing"), first


def test_workers_share_a_store(s):
    found = count_arrivals(s).get_all()
    assert sorted(arrived for arrived, *_ in found) == [1, 2, 3]
    assert {rest for _, *rest in map(tuple, found) for rest in [tuple(rest)]} == {
        (b"here", None, found[0][3])
    }
    with pytest.raises(disco.WorkerError) as raised:
        s.call_on([0], lambda ctx: ctx.store.wait("never", 0.01)).get()
    assert type(raised.value.__cause__) is disco.Deadline


def test_collectives_that_the_program_begins(s):
    xs = [np.arange(6.0) * (worker + 1) for worker in range(3)]
    x = s.put_each(xs)
    total = sum(xs)
    same = lambda found, expected: all(map(np.array_equal, found.get_all(), expected))
    assert same(s.all_reduce(x), [total] * 3) and same(s.all_gather(x), [np.stack(xs)] * 3)
    assert same(s.reduce_scatter(x, "max"), np.split(np.max(xs, axis=0), 3))
    assert same(
        s.all_to_all(x), [np.concatenate([np.split(y, 3)[r] for y in xs]) for r in range(3)]
    )
    assert np.array_equal(s.reduce(x, root=2).get(2), total)
    assert same(s.broadcast(x, root=1), [xs[1]] * 3) and same(x, [xs[1]] * 3)
