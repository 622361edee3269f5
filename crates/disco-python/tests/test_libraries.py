"""Functions of other languages, and checkpoints."""

import os
from pathlib import Path

import disco
import numpy as np
import pytest
from conftest import started

#: Cargo builds it from `examples/ffi_library`, which is written in Rust.
LIBRARY = Path(__file__).parents[3] / "target/debug/libdisco_ffi_library.so"


@disco.function
def halve(ctx, x):
    return np.from_dlpack(x) / 2


@pytest.mark.parametrize("send", [False, True])
def test_functions_of_a_library_take_and_return_what_python_functions_have(s, send):
    library = s.load_library(LIBRARY, send=send)
    assert library["add"](2, 3).get_all() == [5] * 3
    assert (
        library["describe"]([1, "a", None, 2.5]).get()
        == 'an int 1; a string "a"; none none; a float 2.5'
    )
    blocks = s.scatter(np.arange(6.0))
    scaled = library["scale"](blocks, 10)
    assert [np.from_dlpack(x).tolist() for x in scaled.get_all()] == [
        [0.0, 10.0],
        [20.0, 30.0],
        [40.0, 50.0],
    ]
    assert [x.tolist() for x in halve(s, scaled).get_all()] == [
        [0.0, 5.0],
        [10.0, 15.0],
        [20.0, 25.0],
    ]


def test_errors_and_panics_of_a_library_name_the_worker_and_the_function(processes):
    library = processes.load_library(LIBRARY)
    for name, argument, text in (
        ("root", -1.0, "ValueError: -1 has no square root"),
        ("panic", "oh", "oh"),
    ):
        with pytest.raises(disco.WorkerError) as raised:
            library[name](argument).get()
        assert (
            raised.value.worker == 0 and name in raised.value.function and text in str(raised.value)
        )
        processes.recover()
    with pytest.raises(disco.WorkerError, match="/no/such.so"):
        processes.load_library("/no/such.so")
        processes.sync()
    processes.recover()
    processes.init_ccl("local")


def test_a_checkpoint_is_loaded_by_another_number_of_workers(tmp_path, kind):
    x = np.arange(12.0).reshape(6, 2)
    with started(kind) as s:
        assert s.load(tmp_path) is None
        tensors = {"x": (s.scatter(x), 0), "same": s.put(np.ones(3, "f4"))}
        for step in (10, 20, 30):
            path = s.save(tmp_path, step, tensors, notes={"seed": [1, 2]}, keep=2)
        assert os.path.isdir(path) and sorted(os.listdir(tmp_path))[-1].endswith("30")
        assert len([name for name in os.listdir(tmp_path) if name.startswith("step")]) == 2
    with disco.session(processes=2, backend="local") as s:
        loaded = s.load(tmp_path)
        assert (loaded.step, loaded.notes, sorted(loaded.tensors)) == (
            30,
            {"seed": [1, 2]},
            ["same", "x"],
        )
        assert [part.tolist() for part in halve(s, loaded.tensors["x"]).get_all()] == [
            (x[:3] / 2).tolist(),
            (x[3:] / 2).tolist(),
        ]
        with pytest.raises(disco.DiscoError, match="x"):
            s.save(tmp_path, 40, {"x": loaded.tensors["x"]})
        for layout in ("rows", 1.5):
            with pytest.raises(TypeError, match=f'tensor "x": {layout!r} is no layout'):
                s.save(tmp_path, 40, {"x": (loaded.tensors["x"], layout)})
        with pytest.raises(ValueError, match='tensor "x": axis -1: an axis counts from 0'):
            s.save(tmp_path, 40, {"x": (loaded.tensors["x"], -1)})
