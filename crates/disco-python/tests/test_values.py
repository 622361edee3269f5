"""Arguments and results: objects arrive as they were."""

import dataclasses
import datetime
import enum
import math
import pickle
import time

import disco
import numpy as np
import pytest


@dataclasses.dataclass
class Layer:
    name: str
    weights: np.ndarray


class Color(enum.IntEnum):
    RED = 1


@disco.function
def same(ctx, x):
    return x


@disco.function
def described(ctx, x):
    return type(x).__module__ + "." + type(x).__qualname__, repr(x)


VALUES = [
    None,
    True,
    False,
    0,
    -1,
    2**63 - 1,
    -(2**63),
    2**63,
    -(2**200),
    0.1,
    math.inf,
    "",
    "äé🎨\0",
    "\udc80",
    b"",
    b"\0\xff",
    [],
    [1, [2.5, "x"], None],
    (1, 2),
    {"a": 1, 2: [3]},
    {1, 2},
    Color.RED,
    datetime.date(2026, 11, 27),
    np.float32(1.5),
    np.float64(1.5),
    1 + 2j,
    range(3),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_objects_arrive_as_they_were_and_come_back(processes, value):
    kind = type(value).__module__ + "." + type(value).__qualname__
    assert described(processes, value).get_all() == [(kind, repr(value))] * 3
    back = same(processes, value).get_all()
    assert back == [value] * 3 and all(type(each) is type(value) for each in back)


def test_nan_and_negative_zero_keep_their_bits(processes):
    back = same(processes, math.nan).get()
    assert math.isnan(back)
    assert math.copysign(1, same(processes, -0.0).get()) == -1


ARRAYS = [
    np.arange(6, dtype="f4").reshape(2, 3),
    np.arange(24).reshape(2, 3, 4)[:, ::2],
    np.arange(5)[::-1],
    np.broadcast_to(np.float64(2.5), (2, 2)),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array(7.0),
    np.zeros((0, 3), "i2"),
    np.array([True, False]),
    np.arange(4, dtype="f2"),
    np.arange(4, dtype=">i4"),
    np.array(["a", "bc"]),
    np.array([1 + 2j]),
    np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
    np.array(["2026-11-27"], dtype="M8[D]"),
    np.array([{"a": 1}, None], dtype=object),
    np.arange(100_000, dtype="i8"),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_arrays_keep_type_shape_and_elements(processes, array):
    read_only = array.copy()
    read_only.flags.writeable = False
    for given in (array, read_only):
        back = same(processes, given).get()
        assert type(back) is np.ndarray and back.dtype == array.dtype and back.shape == array.shape
        assert np.array_equal(back, array)


def test_a_worker_may_write_to_its_copy_of_an_array(processes):
    @disco.function
    def grow(ctx, x):
        x += ctx.worker
        return x

    x = np.zeros(4)
    back = grow(processes, x).get_all()
    assert [each.tolist() for each in back] == [[0.0] * 4, [1.0] * 4, [2.0] * 4]
    assert x.tolist() == [0.0] * 4
    assert all(each.flags.writeable for each in back)


def test_memory_that_must_not_change_is_not_shared_with_threads():
    with disco.session(threads=1, backend=None) as s:
        text = b"aaaa"
        assert s.call(lambda ctx, x: x.fill(9), np.frombuffer(text, "u1")).get() is None
        assert text == b"aaaa"


def test_lists_that_contain_themselves_are_refused(processes):
    items = []
    items.append(items)
    with pytest.raises(ValueError, match="nested more than 16 deep"):
        processes["disco.all_reduce"](items)


def test_arrays_in_objects_arrive_without_a_copy_in_the_pickle(processes):
    layer = Layer("dense", np.arange(1 << 16, dtype="f4"))
    back = same(processes, {"layers": [layer, layer]}).get()["layers"]
    assert back[0] is back[1] and back[0].name == "dense"
    assert np.array_equal(back[0].weights, layer.weights)


def test_a_result_stays_on_its_worker_as_the_same_object(s):
    @disco.function
    def make(ctx):
        ctx.state["made"] = [ctx.worker]
        return ctx.state["made"]

    @disco.function
    def add(ctx, items):
        items.append("seen")
        return items is ctx.state["made"]

    items = make(s)
    assert add(s, items).get_all() == [True] * 3
    assert items.get_all() == [[worker, "seen"] for worker in range(3)]


def test_a_result_that_can_not_be_sent_is_an_error_of_the_get_only(processes):
    @disco.function
    def lock(ctx):
        import threading

        return threading.Lock()

    @disco.function
    def locked(ctx, it):
        return it.locked()

    it = lock(processes)
    with pytest.raises(
        TypeError, match="a result of type lock can't be sent to the controller: .*pickle"
    ):
        it.get()
    assert locked(processes, it).get_all() == [False] * 3


def test_an_argument_that_can_not_be_sent_is_an_error_of_the_call(processes):
    import threading

    with pytest.raises(TypeError, match="pickle"):
        same(processes, threading.Lock())
    with pytest.raises(TypeError, match="a handle stays with its program"):
        processes.put([same(processes, 1)])
    with pytest.raises(TypeError, match="a session stays with its program"):
        same(processes, processes)
    assert same(processes, 1).get() == 1


def test_put_scatter_and_split(s):
    @disco.function
    def total(ctx, x, by):
        return float(x.sum()) * by["times"], ctx.worker

    blocks = s.scatter(np.arange(12.0).reshape(6, 2))
    by = s.put({"times": 10})
    sums, workers = total(s, blocks, by=by).split(2)
    assert sums.get_all() == [60.0, 220.0, 380.0] and workers.get_all() == [0, 1, 2]
    assert sums[1].get() == 220.0
    assert same(s, s.put_each("abc")).get_all() == ["a", "b", "c"]
    with pytest.raises(ValueError, match="5 rows are not divisible into blocks for 3 workers"):
        s.scatter(np.zeros(5))
    with pytest.raises(ValueError, match="2 objects for 3 workers"):
        s.put_each([1, 2])
    with pytest.raises(IndexError, match="there is no worker 3: the session has 3"):
        sums[3]


def test_functions_of_rust_take_what_both_languages_have(processes):
    blocks = processes.scatter(np.arange(6, dtype="f4"))
    total = processes["disco.all_reduce"]
    assert total.name == "disco.all_reduce"
    with pytest.raises(disco.UnknownFunction, match="did you mean `disco.all_reduce`"):
        processes["disco.al_reduce"]
        processes.sync()
    processes.recover()
    processes.init_ccl("local")
    with pytest.raises(TypeError, match="object has no form in other languages"):
        total(object())
    assert blocks.get_all()[1].tolist() == [2.0, 3.0]


def test_tensors_within_other_objects(s):
    found = s.call(
        lambda ctx: {"a": [ctx.empty((2, 3), "bfloat16", library="disco")], "b": 1}
    ).get()
    (tensor,) = found["a"]
    assert (type(tensor), tensor.dtype, tensor.shape) == (disco.Tensor, "bfloat16", (2, 3))
    tensor = s.call(lambda ctx: ctx.empty(4, library="disco")).get()
    tensor.numpy()[:] = range(4)
    for protocol in (2, 4, 5):
        again = pickle.loads(pickle.dumps([tensor], protocol))[0]
        again.numpy()[0] = 7
        assert again.numpy().tolist() == [7, 1, 2, 3] and tensor.numpy()[0] == 0
    assert s.call(lambda ctx, x: x["t"].numpy().tolist(), {"t": tensor}).get() == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_arrays_of_ml_dtypes(s, name):
    dtype = np.dtype(getattr(pytest.importorskip("ml_dtypes"), name))
    x = (np.arange(12).reshape(3, 4) % 4).astype(dtype)
    for given in (x, x.T, x[:, ::-1], x[:0]):
        back = s.call(lambda ctx, x: x, given).get()
        assert back.dtype == dtype and back.tobytes() == given.tobytes()
    if name == "bfloat16":

        def total(ctx, x):
            own = x.copy()
            assert ctx.all_reduce(own, out=own) is own
            return own, ctx.all_reduce(x.T)

        for own, transposed in s.call(total, x).get_all():
            assert own.dtype == dtype and (own == 3 * x).all() and (transposed == 3 * x.T).all()


def test_a_wait_that_has_passed_its_limit_goes_on(processes):
    @disco.function
    def slow(ctx, seconds):
        class Counted:
            def __reduce__(self):
                ctx_state["sent"] = ctx_state.get("sent", 0) + 1
                return int, (5,)

        ctx_state = ctx.state
        ctx_state["sent"] = 0
        time.sleep(seconds)
        return Counted()

    ref, limits = slow(processes, 0.5), 0
    for get in (
        ref.get,
        lambda timeout: ref[1].get(timeout),
        lambda timeout: ref.get_all(timeout)[0],
    ):
        while True:
            try:
                assert get(timeout=0.02) == 5
                break
            except disco.Timeout:
                limits += 1
    assert limits > 3
    assert processes.call(lambda ctx: ctx.state["sent"]).get_all() == [3, 3, 3]


@pytest.mark.parametrize("dtype", ["float32", "int16", "bool", "bfloat16"])
def test_numpy_takes_the_elements_of_a_tensor(s, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")

    def read(ctx, x):
        x.numpy()[:] = [1, 0, 1]
        array = np.asarray(x)
        array[1] = 1
        return (
            [array, np.array(x), np.asarray(x, "f8"), np.stack([x, x])[0]],
            float(np.sum(x)),
            float(np.mean(x)),
        )

    x = s.call(lambda ctx: ctx.empty(3, dtype, library="disco"))
    arrays, total, mean = s.call(read, x).get()
    assert [str(array.dtype) for array in arrays] == [dtype, dtype, "float64", dtype]
    assert all(array.tolist() == [1, 1, 1] for array in arrays) and (total, mean) == (3, 1)
    with pytest.raises(ValueError, match="copy"):
        np.array(x.get(), "f8", copy=False)


def test_a_result_does_not_change_the_class_that_the_program_has_made(s):
    class Counted:
        count, factor = 0, 1

        def __init__(self):
            Counted.count += 1

        def scaled(self):
            return Counted.factor

    class Failure(Exception):
        code = 1

    def fail(ctx):
        raise Failure("bad")

    made = s.call(lambda ctx: Counted())
    (first,) = {type(each) for each in made.get_all()}
    with pytest.raises(disco.WorkerError) as raised:
        s.call(fail).get()
    assert first is Counted and type(raised.value.__cause__) is Failure
    s.recover()
    before = Counted.count
    Counted.factor, Counted.scaled, Counted.extra, Failure.code = 2, lambda self: "new", 5, 2
    Counted()
    assert made.get().scaled() == "new"
    with pytest.raises(disco.WorkerError):
        s.call(fail).get()
    assert (Counted.count, Counted.factor, Counted.extra, Failure.code) == (before + 1, 2, 5, 2)
    s.recover()
    # The program's changes still reach the workers, with its objects.
    assert s.call(lambda ctx, x: (type(x).factor, x.scaled()), Counted()).get() == (2, "new")


def test_objects_of_local_classes_with_slots_come_back(s):
    class Base:
        __slots__ = ("a", "__hidden")

        def __init__(self, a):
            self.a, self.__hidden = a, -a

        def hidden(self):
            return self.__hidden

    class Derived(Base):
        __slots__ = "b"

    @dataclasses.dataclass(slots=True)
    class Data:
        a: int
        b: list

    def change(ctx, x, y):
        x.a, x.b = x.a + 1, hasattr(x, "__dict__")
        return x, y, Data(4, [5])

    x, y, z = s.call(change, Derived(3), Data(1, [2])).get()
    assert (type(x), x.a, x.b, x.hidden()) == (Derived, 4, False, -3)
    assert (y, z) == (Data(1, [2]), Data(4, [5])) and not hasattr(y, "__dict__")
    assert Base(7).hidden() == -7


@disco.function
def of_tree(ctx, tree, *, more=None):
    a, b = tree["weights"]
    assert tree["again"] is a and more[0] == ctx.worker
    return a + b + tree["step"], more[1]["w"] if more[1] else None


def test_handles_in_other_objects_are_each_workers_own(s):
    xs = [np.arange(3.0) * worker for worker in range(3)]
    a, b, number = s.put_each(xs), s.put(np.ones(3)), s.put_each(range(3))
    tree = {"weights": (a, b), "again": a, "step": 5, "large": np.zeros(1000)}
    total, nested = of_tree(s, tree, more=[number, {"w": a}]).split(2)
    for worker, (found, same) in enumerate(zip(total.get_all(), nested.get_all())):
        assert np.array_equal(found, xs[worker] + 6) and np.array_equal(same, xs[worker])
    each = s.call_each(lambda ctx, tree: tree[0] * tree[1], [([a, n],) for n in range(3)])
    assert [x.tolist() for x in each.get_all()] == [(x * n).tolist() for n, x in enumerate(xs)]
    with pytest.raises(TypeError, match="an argument of a call, or inside of one"):
        s.put([a])
    with disco.session(threads=1, backend=None) as other, pytest.raises(disco.ForeignRef):
        other.call(lambda ctx, tree: tree, [a])
