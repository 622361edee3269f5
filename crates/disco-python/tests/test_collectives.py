"""Collectives of a worker's context, compared with numpy on the controller."""

import disco
import numpy as np
import pytest


def each(s, function, *args):
    return s.call(function, *args).get_all(timeout=60)


def inputs(dtype="f8", shape=(6, 2)):
    return [
        np.arange(np.prod(shape), dtype=dtype).reshape(shape) * (worker + 1) for worker in range(3)
    ]


def test_argmax_is_that_of_numpy(processes):
    scores = np.random.default_rng(1).integers(0, 50, (5, 30)).astype("f8")
    parts = np.split(scores, 3, axis=1)
    # A row of each worker: the largest score of its columns, and the column.
    rows = [
        np.stack([part.max(axis=1), part.argmax(axis=1) + 10.0 * worker], axis=1)
        for worker, part in enumerate(parts)
    ]
    for found in each(
        processes, lambda ctx, x: ctx.all_reduce(x, "disco.argmax"), processes.put_each(rows)
    ):
        assert np.array_equal(found, np.stack([scores.max(axis=1), scores.argmax(axis=1)], axis=1))


def test_collectives_of_each_kind_of_session(s):
    xs = inputs()
    x = s.put_each(xs)
    stacked, total = np.stack(xs), np.sum(xs, axis=0)

    def run(ctx, x):
        before = x.copy()
        found = {
            "all_gather": ctx.all_gather(x),
            "reduce_scatter": ctx.reduce_scatter(x),
            "all_to_all": ctx.all_to_all(x),
            "reduce": ctx.reduce(x, root=1),
            "gather": ctx.gather(x, root=2),
            "all_gather_v": ctx.all_gather_v(x[: ctx.worker + 1], [1, 2, 3]),
            "all_to_all_v": ctx.all_to_all_v(x, [1, 2, 3], [ctx.worker + 1] * 3),
            "scatter": ctx.scatter(x if ctx.worker == 1 else None, np.zeros((2, 2)), root=1),
        }
        assert (x == before).all(), "no operation writes to its input"
        ctx.barrier()
        return found

    for worker, found in enumerate(each(s, run, x)):
        assert np.array_equal(found["all_gather"], stacked)
        assert np.array_equal(found["reduce_scatter"], total[2 * worker : 2 * worker + 2])
        blocks = [other[2 * worker : 2 * worker + 2] for other in xs]
        assert np.array_equal(found["all_to_all"], np.concatenate(blocks))
        assert np.array_equal(found["reduce"], total) if worker == 1 else found["reduce"] is None
        assert np.array_equal(found["gather"], stacked) if worker == 2 else found["gather"] is None
        assert np.array_equal(
            found["all_gather_v"], np.concatenate([xs[0][:1], xs[1][:2], xs[2][:3]])
        )
        first = [0, 1, 3][worker]
        assert np.array_equal(
            found["all_to_all_v"], np.concatenate([o[first : first + worker + 1] for o in xs])
        )
        assert np.array_equal(found["scatter"], xs[1][2 * worker : 2 * worker + 2])


def test_collectives_in_place_and_into_given_memory(processes):
    def run(ctx, x):
        total = x.copy()
        same = ctx.all_reduce(total, out=total)
        out = ctx.empty(x.shape, x.dtype)
        also = ctx.all_reduce(x, out=out)
        gathered = np.zeros((3, *x.shape))
        gathered[ctx.worker] = x
        ctx.all_gather(None, out=gathered)
        sent = ctx.broadcast(x.copy(), root=2)
        return same is total, also is out, total, out, gathered, sent

    xs = inputs()
    for same, also, total, out, gathered, sent in each(processes, run, processes.put_each(xs)):
        assert same and also
        assert np.array_equal(total, np.sum(xs, axis=0)) and np.array_equal(out, total)
        assert np.array_equal(gathered, np.stack(xs)) and np.array_equal(sent, xs[2])


def test_outputs_that_share_memory_with_the_input(processes):
    def run(ctx):
        x = np.full(4, ctx.worker + 1.0)
        buffer = np.full(6, -1.0)
        buffer[2 * ctx.worker : 2 * ctx.worker + 2] = ctx.worker
        gathered = ctx.all_gather(None, out=buffer).copy()
        errors = []
        for wrong in (
            lambda: ctx.all_reduce(x, out=x[:2]),
            lambda: ctx.all_reduce(x[:2], out=x),
            lambda: ctx.all_reduce(x.astype("f4"), out=np.zeros(4, "i4")),
            lambda: ctx.all_gather(buffer[1:3], out=buffer),
            lambda: ctx.reduce_scatter(buffer, out=buffer[:2]),
        ):
            try:
                wrong()
                errors.append(None)
            except Exception as error:
                errors.append(type(error).__name__)
        return gathered, errors, ctx.all_reduce(x, out=x[:])

    for gathered, errors, total in each(processes, run):
        assert gathered.tolist() == [0, 0, 1, 1, 2, 2] and total.tolist() == [6.0] * 4
        assert None not in errors, errors


def test_empty_arrays(processes):
    def run(ctx):
        total = ctx.all_reduce(np.zeros((0, 3)))
        rows = ctx.all_gather_v(np.full((ctx.worker, 2), 7.0), [0, 1, 2])
        return total.shape, rows.tolist(), ctx.all_to_all(np.zeros((3, 0))).shape

    assert each(processes, run) == [((0, 3), [[7.0, 7.0]] * 3, (3, 0))] * 3


def test_point_to_point(processes):
    def ring(ctx, x):
        after, before = (ctx.worker + 1) % ctx.world, (ctx.worker - 1) % ctx.world
        received = np.zeros_like(x)
        ctx.exchange([(x, after)], [(received, before)])
        if ctx.worker == 0:
            ctx.send(x, 1)
        elif ctx.worker == 1:
            ctx.receive(x, 0)
        return received, x

    xs = inputs()
    found = each(processes, ring, processes.put_each(xs))
    assert all(np.array_equal(found[worker][0], xs[worker - 1]) for worker in range(3))
    assert np.array_equal(found[1][1], xs[0])


def test_numbers_are_reduced_as_numbers(processes):
    assert each(processes, lambda ctx: ctx.all_reduce(ctx.worker + 0.5)) == [4.5] * 3
    found = each(processes, lambda ctx: ctx.all_reduce(ctx.worker, "max"))
    assert found == [2] * 3 and type(found[0]) is int
    assert each(processes, lambda ctx: ctx.all_reduce(ctx.worker == 1)) == [1] * 3
    found = each(processes, lambda ctx: ctx.all_reduce(np.float32(ctx.worker)))
    assert found == [3.0] * 3 and type(found[0]) is np.float32


def test_inputs_that_are_not_contiguous_are_copied_and_outputs_are_refused(processes):
    def run(ctx, x):
        total = ctx.all_reduce(x[:, ::-1])
        errors = []
        for out in (
            np.zeros((4, 6)).T,
            np.broadcast_to(np.zeros(2), (6, 2)),
            np.zeros((6, 2), "f4"),
            5,
        ):
            try:
                ctx.all_reduce(x, out=out)
            except Exception as error:
                errors.append((type(error).__name__, str(error)))
        return total, errors

    xs = inputs()
    total, errors = each(processes, run, processes.put_each(xs))[0]
    assert np.array_equal(total, np.sum(xs, axis=0)[:, ::-1])
    assert [kind for kind, _ in errors][:2] == ["ValueError", "BufferError"], errors
    assert "not contiguous" in errors[0][1]
    assert errors[2][0] == "Invalid" and errors[3] == (
        "TypeError",
        "int is no array: it has no `__dlpack__`",
    )


def test_wrong_names_say_what_is_known(processes):
    def run(ctx):
        errors = []
        for wrong in (
            lambda: ctx.all_reduce(np.zeros(2), "mean"),
            lambda: ctx.empty(2, "float31"),
            lambda: ctx.reduce_scatter(np.zeros(4)),
        ):
            try:
                wrong()
            except Exception as error:
                errors.append(str(error))
        return errors

    first, second, third = each(processes, run)[0]
    assert first.startswith(
        "unknown reduction `mean`; known are sum, prod, min, max, avg, disco.argmax"
    )
    assert second.startswith('"float31" is no element type; known are bool, int8')
    assert (
        third
        == "reduce_scatter: axis 0 of an array of shape [4] is not divisible into blocks for 3 "
        "ranks"
    )


def test_arrays_that_differ_are_a_mismatch_that_names_the_ranks(kind):
    from conftest import started

    def run(ctx):
        return ctx.all_reduce(np.zeros(2 + ctx.worker))

    with started(kind) as s:
        with pytest.raises(disco.WorkerError) as raised:
            each(s, run)
        assert raised.value.kind == "Mismatch", raised.value
        assert "ranks disagree" in str(raised.value)
        s.recover()
        s.init_ccl("local")
        assert each(s, lambda ctx: ctx.all_reduce(1)) == [3] * 3


def test_arrays_of_another_byte_order_are_inputs_and_keep_it_as_arguments(processes):
    def run(ctx, x):
        return x, ctx.all_reduce(x), ctx.all_reduce(np.frombuffer(b"\1\2", np.uint8))

    x = np.arange(3, dtype=">f8")
    for same, total, of_bytes in each(processes, run, x):
        assert same.dtype == x.dtype and same.tobytes() == x.tobytes()
        assert total.tolist() == [0, 3, 6] and of_bytes.tolist() == [3, 6]


def test_ones_own_part_of_the_output_is_an_input_in_place(processes):
    def run(ctx):
        row, total = ctx.worker + 1.0, np.zeros(6)
        gathered = np.zeros((3, 2))
        gathered[ctx.worker] = row
        ctx.all_gather(gathered[ctx.worker], out=gathered)
        on_root = np.zeros((3, 2))
        on_root[ctx.worker] = row
        ctx.gather(on_root[ctx.worker], root=1, out=on_root)
        start = [0, 1, 3][ctx.worker]
        total[start : start + ctx.worker + 1] = row
        ctx.all_gather_v(total[start : start + ctx.worker + 1], [1, 2, 3], out=total)
        parts = np.arange(6.0)
        part = ctx.scatter(parts, parts[4:] if ctx.worker == 2 else np.zeros(2), root=2)
        return gathered.tolist(), on_root.tolist(), total.tolist(), part.tolist(), parts.tolist()

    for worker, (gathered, on_root, total, part, parts) in enumerate(each(processes, run)):
        assert gathered == [[1, 1], [2, 2], [3, 3]] and total == [1, 2, 2, 3, 3, 3]
        assert worker != 1 or on_root == gathered
        assert part == [2.0 * worker, 2.0 * worker + 1] and parts == list(range(6))


def test_complex_numbers_have_all_operations_whose_result_is_that_of_their_parts(processes):
    def run(ctx, x):
        out, received = np.zeros_like(x), np.zeros_like(x)
        ctx.exchange([(x, (ctx.worker + 1) % 3)], [(received, (ctx.worker - 1) % 3)])
        errors = []
        for wrong in (
            lambda: ctx.all_reduce(x, "prod"),
            lambda: ctx.reduce(x, "max"),
            lambda: ctx.all_reduce(1j, "min"),
            lambda: ctx.all_reduce(x, out=np.zeros((*x.shape, 2), x.real.dtype)),
        ):
            try:
                wrong()
            except TypeError as error:
                errors.append(str(error))
        found = {
            "all_reduce": ctx.all_reduce(x),
            "all_reduce out": ctx.all_reduce(x, out=out),
            "all_reduce strided": ctx.all_reduce(x[:, ::-1])[:, ::-1],
            "all_reduce avg": ctx.all_reduce(x, "avg") * 3,
            "reduce": ctx.reduce(x, root=1),
            "reduce_scatter": ctx.reduce_scatter(x),
            "all_gather": ctx.all_gather(x),
            "all_gather_v": ctx.all_gather_v(x[: ctx.worker + 1], [1, 2, 3]),
            "broadcast": ctx.broadcast(x.copy(), root=1),
            "number": ctx.all_reduce(1 + 2j),
            "scalar": ctx.all_reduce(x[0, 1]),
            "no axis": ctx.all_reduce(np.array(x[0, 1])),
            "empty": ctx.all_reduce(x[:0]),
            "received": received,
        }
        return x, found, errors

    for dtype in ("c16", "c8"):
        xs = [(x * (1 + 2j)).astype(dtype) for x in inputs()]
        total = np.sum(xs, axis=0)
        for worker, (same, found, errors) in enumerate(
            each(processes, run, processes.put_each(xs))
        ):
            expected = {
                **dict.fromkeys(
                    ("all_reduce", "all_reduce out", "all_reduce strided", "all_reduce avg"), total
                ),
                "reduce": total if worker == 1 else None,
                "reduce_scatter": total[2 * worker : 2 * worker + 2],
                "all_gather": np.stack(xs),
                "all_gather_v": np.concatenate([xs[0][:1], xs[1][:2], xs[2][:3]]),
                "broadcast": xs[1],
                "no axis": np.array(total[0, 1]),
                "empty": total[:0],
                "received": xs[worker - 1],
            }
            assert np.array_equal(same, xs[worker]) and found.pop("number") == 3 + 6j
            for name, value in expected.items():
                assert np.array_equal(found[name], value), name
                assert value is None or (found[name].dtype, found[name].shape) == (
                    np.dtype(dtype),
                    value.shape,
                ), name
            # numpy's numbers of double precision are numbers of Python, too.
            assert (
                found["scalar"] == total[0, 1]
                and type(found["scalar"]) is {"c16": complex, "c8": np.complex64}[dtype]
            )
            assert errors[:3] == [
                f"{name}: complex numbers have the reductions sum and avg only"
                for name in ("all_reduce", "reduce", "all_reduce")
            ]
            assert "complex, and the other is not" in errors[3]


def test_arrays_of_derived_classes_give_arrays_of_the_library(processes, tmp_path):
    path = str(tmp_path / "x.npy")
    np.save(path, np.arange(6.0).reshape(3, 2))

    def run(ctx):
        mapped = np.load(path, mmap_mode="r")
        rows = np.rec.array(mapped[0])
        inputs = [mapped, mapped.T, np.asmatrix(mapped), rows]
        found = [ctx.all_reduce(x) for x in inputs]
        return [(type(x), type(y), (2 * x + y).tolist()) for x, y in zip(inputs, found)], type(
            ctx.all_gather(mapped)
        )

    for found, gathered in each(processes, run):
        x = np.arange(6.0).reshape(3, 2)
        assert [kind for kind, _, _ in found] == [np.memmap, np.memmap, np.matrix, np.recarray]
        assert {kind for _, kind, _ in found} == {gathered} == {np.ndarray}
        assert [y for _, _, y in found] == [(5 * y).tolist() for y in (x, x.T, x, x[0])]


def test_a_masked_array_is_refused_because_its_mask_would_be_ignored(processes):
    def run(ctx):
        masked, plain, errors = np.ma.masked_array([1.0, 777.0], mask=[0, 1]), np.ones(2), []
        for wrong in (
            lambda: ctx.all_reduce(masked),
            lambda: ctx.all_reduce(plain, out=masked),
            lambda: ctx.broadcast(masked),
            lambda: ctx.send(masked, 0),
        ):
            try:
                wrong()
                errors.append(None)
            except TypeError as error:
                errors.append(str(error))
        return errors

    errors = each(processes, run)[0]
    assert len(errors) == 4 and all(
        "its mask would be ignored" in (error or "") for error in errors
    ), errors
    masked = np.ma.masked_array([1.0, 777.0], mask=[0, 1])
    with pytest.raises(TypeError, match="its mask would be ignored"):
        processes["disco.all_reduce"](masked)
    # As an object, it keeps its mask.
    back = processes.put(masked).get()
    assert (
        type(back) is np.ma.MaskedArray and back.mask.tolist() == [False, True] and back.sum() == 1
    )
