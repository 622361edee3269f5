"""Arrays of jax, and of torch if the test cache has it: `cargo xtask python --long`."""

import disco
import numpy as np
import pytest
from conftest import started


@disco.function
def total(ctx, x):
    return type(x).__module__.split(".")[0], ctx.all_reduce(x)


@disco.function
def same(ctx, x):
    return x


@pytest.fixture(scope="module")
def s():
    with started("processes") as session:
        yield session


def test_jax(s):
    jnp = pytest.importorskip("jax.numpy")
    for dtype in ("float32", "bfloat16", "int32", "float16", "bool"):
        x = jnp.arange(6).reshape(2, 3).astype(dtype)
        back = same(s, x).get()
        assert type(back) is type(x) and back.dtype == x.dtype and (back == x).all()
        if dtype != "bool":
            library, found = total(s, x).get(1)
            assert (
                library in ("jaxlib", "jax") and type(found) is type(x) and found.dtype == x.dtype
            )
            assert (np.asarray(found, "f4") == 3 * np.asarray(x, "f4")).all()

    def share(ctx, x):
        before = x + 0
        y = ctx.broadcast(x * (ctx.worker + 1), root=2)
        try:
            ctx.all_reduce(x, out=x)
        except ValueError as error:
            return y, (x == before).all(), str(error)

    y, is_same, error = s.call(share, jnp.ones(3)).get()
    assert (y == 3).all() and is_same and "arrays of jax do not change" in error
    nested = same(s, {"a": [jnp.ones(3)]}).get()
    assert (nested["a"][0] == 1).all()


def test_torch(s):
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.float16):
        x = torch.arange(6).reshape(2, 3).to(dtype)
        back = same(s, x).get()
        assert type(back) is torch.Tensor and back.dtype == dtype and torch.equal(back, x)
        library, found = total(s, x.t()).get(1)
        assert library == "torch" and found.dtype == dtype and torch.equal(found, 3 * x.t())
    parameter = torch.nn.Parameter(torch.ones(3))
    assert torch.equal(same(s, parameter).get(), parameter)

    @disco.function
    def in_place(ctx):
        x = ctx.empty(4, torch.float32, library="torch")
        x += ctx.worker
        return ctx.all_reduce(x, out=x) is x, x

    is_same, x = in_place(s).get()
    assert is_same and x.tolist() == [3.0] * 4


def test_ml_dtypes_of_numpy(s):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.arange(4).astype(ml_dtypes.bfloat16)
    back = same(s, x).get()
    assert back.dtype == x.dtype and (back == x).all()
