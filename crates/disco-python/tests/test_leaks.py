"""Handles and arrays are freed."""

import gc
import os
import weakref

import disco
import numpy as np


@disco.function
def same(ctx, x):
    return x


@disco.function
def memory(ctx):
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_dropped_handles_free_the_objects_of_the_workers(processes):
    @disco.function
    def make(ctx, count):
        return np.ones(count)

    before = max(memory(processes).get_all())
    for _ in range(100):
        make(processes, 1 << 20)
    processes.sync()
    assert max(memory(processes).get_all()) - before < 60 << 20


def test_calls_do_not_grow(processes):
    x = np.zeros(16)
    array = weakref.ref(x)
    ref = processes.put(x)
    # As many as the rings of 4 MiB hold, whose pages are then there.
    for _ in range(50_000):
        ref = same(processes, ref)
        same(processes, x)
    processes.sync()
    before = max(memory(processes).get_all()), len(gc.get_objects())
    for _ in range(50_000):
        ref = same(processes, ref)
        same(processes, x)
    processes.sync()
    gc.collect()
    assert max(memory(processes).get_all()) - before[0] < 4 << 20
    assert len(gc.get_objects()) - before[1] < 500
    del x
    gc.collect()
    processes.sync()
    assert array() is None


def test_functions_that_were_defined_anew_are_freed(processes):
    def defined():
        @disco.function
        def f(ctx, depth=1):
            return f(ctx, depth - 1) if depth else 0

        return f

    functions = []
    for _ in range(20):
        f = defined()
        assert f(processes).get() == 0
        functions.append(weakref.ref(f))
        del f
    gc.collect()
    assert [function() for function in functions] == [None] * 20


def test_a_lent_array_lives_as_long_as_its_users_and_no_longer(processes):
    @disco.function
    def lend(ctx):
        x = ctx.empty(1 << 20, "f8")
        part = x[5:10]
        del x
        part[:] = ctx.worker
        return part

    found = [part.tolist() for part in lend(processes).get_all()]
    assert found == [[float(worker)] * 5 for worker in range(3)]
