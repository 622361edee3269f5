"""Sessions for asyncio."""

import asyncio

import disco
import numpy as np
import pytest
from conftest import KINDS, sleep


@disco.function
def total(ctx, x):
    return ctx.all_reduce(x)


def run(main):
    return asyncio.run(asyncio.wait_for(main, 60))


def test_calls_waits_and_collectives(kind):
    async def main():
        async with disco.aio.session(**KINDS[kind], backend="local") as s:
            x = await s.scatter(np.arange(6.0))
            sums = total(s, x)
            assert [found.tolist() for found in await sums] == [[6.0, 9.0]] * 3
            assert (await sums[1]).tolist() == (await s.get(sums, 2)).tolist() == [6.0, 9.0]
            await s.sync()
            assert await sleep(s, await s.put(0)) == [0, 1, 2]
            return s

    s = run(main())
    with pytest.raises(disco.Closed):
        sleep(s, 0)


def test_other_tasks_run_while_one_waits_and_waits_of_several_tasks_end():
    async def main():
        async with disco.aio.session(processes=2, backend=None) as s:
            ticks = 0

            async def tick():
                nonlocal ticks
                while True:
                    await asyncio.sleep(0)
                    ticks += 1

            ticking = asyncio.create_task(tick())
            refs = [sleep(s, 0.1) for _ in range(3)]
            assert await asyncio.gather(*map(_all, refs)) == [[0, 1]] * 3
            ticking.cancel()
            assert ticks >= 5

    async def _all(ref):
        return await ref

    run(main())


def test_a_cancelled_wait_leaves_the_command_and_the_session_as_they_were():
    async def main():
        async with disco.aio.session(processes=2, backend=None) as s:
            ref = sleep(s, 0.5)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await ref
            assert await ref == [0, 1]
            sleep(s, 0.3)
            task = asyncio.create_task(s.sync())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await s.sync()

    run(main())


def test_failures_are_raised_by_await():
    @disco.function
    def fail(ctx):
        raise ValueError("bad")

    async def main():
        s = await disco.aio.session(processes=2, backend=None)
        try:
            with pytest.raises(disco.WorkerError) as raised:
                await fail(s)
            assert str(raised.value.__cause__) == "bad"
            await s.recover()
            assert await sleep(s, 0) == [0, 1]
            resized = await s.resize(1)
            assert resized.numbers == [0, None]
        finally:
            await s.shutdown()

    run(main())


def test_a_loop_that_closes_while_a_wait_is_pending_ends_it():
    started = disco.session(processes=2, backend=None)
    ref = sleep(started, 0.5)

    async def main():
        asyncio.ensure_future(_wait(ref))
        # The task runs until it waits.
        await asyncio.sleep(0)

    async def _wait(ref):
        return await ref

    asyncio.run(main())
    assert ref.get_all() == [0, 1]
    started.shutdown()


def test_a_session_is_used_by_several_threads_and_loops():
    from concurrent.futures import ThreadPoolExecutor

    with disco.session(processes=2, backend="local") as s:

        def work(number):
            return [sum(s.call(lambda ctx, x: ctx.worker + x, number).get_all()) for _ in range(20)]

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(work, range(4))) == [[1 + 2 * number] * 20 for number in range(4)]


def test_waits_of_a_loop_share_one_file(processes):
    import resource

    async def main():
        async with disco.aio.session(processes=1, backend=None) as s:
            assert await asyncio.gather(*(s.get(sleep(s, 0)) for _ in range(3000))) == [0] * 3000

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        run(main())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
