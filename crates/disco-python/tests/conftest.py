"""Sessions for the tests."""

import contextlib
import time

import disco
import pytest

KINDS = {
    "processes": {"processes": 3},
    "threads": {"threads": 3},
    "nodes": {"nodes": 3, "per_node": 1},
}


@contextlib.contextmanager
def started(kind, **options):
    with disco.session(
        **KINDS[kind], backend=options.pop("backend", "local"), **options
    ) as session:
        yield session


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def s(kind):
    """A session of three workers of each kind."""
    with started(kind) as session:
        yield session


@pytest.fixture(scope="module")
def processes():
    """A session of three processes for tests that leave it as it was."""
    with started("processes") as session:
        yield session


def alive(pid):
    """Whether a process runs."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition, seconds=15):
    """Whether a condition becomes true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def ended(pids, seconds=15):
    """Whether all of the processes end in time."""
    return until(lambda: not any(map(alive, pids)), seconds)


@disco.function
def sleep(ctx, seconds):
    time.sleep(seconds)
    return ctx.worker
