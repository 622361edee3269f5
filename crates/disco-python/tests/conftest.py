"""Sessions for the tests."""

import contextlib

import disco
import pytest

KINDS = {
    "processes": {"processes": 3},
    "threads": {"threads": 3},
    "nodes": {"nodes": 3, "per_node": 1},
}


@contextlib.contextmanager
def started(kind, **options):
    with disco.session(**KINDS[kind], backend=options.pop("backend", "local"), **options) as session:
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
