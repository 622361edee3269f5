"""Worker functions: how they get to the workers, and what they see."""

import copy
import functools
import os
import signal
import subprocess
import sys
import textwrap

import disco
import numpy as np
import pytest
from conftest import started

BIAS = 10


@disco.function
def by_name(ctx, x):
    return os.getpid(), x + BIAS


def test_a_function_of_a_module_is_found_by_its_name(processes):
    from disco._functions import describe

    assert describe(by_name.function)[0] == ("import", __name__, "by_name")
    assert [x for _, x in by_name(processes, 1).get_all()] == [11] * 3


def test_each_worker_is_a_process_of_its_own(processes):
    @disco.function
    def process(ctx):
        return os.getpid(), sys.argv, os.environ.get("DISCO_PYTHON")

    found = process(processes).get_all()
    assert len({pid for pid, _, _ in found} | {os.getpid()}) == 4
    assert all(argv == [""] and variable is None for _, argv, variable in found)


def test_a_function_by_value_has_its_closure_and_is_sent_once(processes):
    calls = []

    class Heavy:
        def __reduce__(self):
            calls.append(1)
            return (int, (5,))

    heavy = Heavy()

    @disco.function
    def add(ctx, x):
        return x + heavy

    assert [add(processes, x).get() for x in range(3)] == [5, 6, 7]
    assert len(calls) == 1


def test_a_function_is_sent_again_after_a_new_definition_of_it_or_of_what_it_calls(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import disco

            factor = 2

            def helper(x):
                return x * factor

            @disco.function
            def f(ctx, x):
                return helper(x)

            if __name__ == "__main__":
                with disco.session(processes=1, backend=None) as s:
                    found = [f(s, 1).get()]
                    factor = 3
                    found.append(f(s, 1).get())
                    def helper(x):
                        return -x
                    found.append(f(s, 1).get())
                    print(found)
            """
        )
    )
    output = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    assert output.stdout == "[2, 3, -1]\n", output.stderr


def test_new_definitions_reach_the_workers_through_comprehensions_classes_and_wrappers(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import disco, functools

            def h(x): return x

            class Model:
                scale = staticmethod(lambda x: h(x))
                def run(self): return h(1)
                @property
                def value(self): return h(1)

            def doubled(f):
                @functools.wraps(f)
                def wrapper(x): return 2 * f(x)
                return wrapper

            @doubled
            def wrapped(x): return h(x)

            @disco.function
            def nested(ctx):
                def inner(): return h(1)
                lists = [h(1) for _ in range(1)], list(h(1) for _ in range(1))
                return *lists, (lambda: h(1))(), inner()

            @disco.function
            def of_class(ctx): return Model().run(), Model.scale(1), Model().value

            @disco.function
            def of_wrapper(ctx): return wrapped(1)

            @disco.function
            def late(ctx):
                try: return later
                except NameError: return 0

            def g(x, y): return h(x) + y
            table = {"g": g}
            partial = functools.partial(g, y=0)

            @disco.function
            def indirect(ctx, default=g): return table["g"](1, 0), partial(1), default(1, 0)

            holder = Model()
            holder.call = g

            @disco.function
            def of_object(ctx): return holder.call(1, 0)

            with disco.session(processes=1, backend=None) as s:
                functions = nested, of_class, of_wrapper, late, indirect, of_object
                for round in range(2):
                    print(*(f(s).get() for f in functions))
                    def h(x): return x + 6
                    later = 7
            """
        )
    )
    output = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    first = "([1], [1], 1, 1) (1, 1, 1) 2 0 (1, 1, 1) 1\n"
    assert output.stdout == first + "([7], [7], 7, 7) (7, 7, 7) 14 7 (7, 7, 7) 7\n", output.stderr


def test_names_that_become_none_or_are_deleted_do_so_on_the_workers(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import disco

            class Config: pass
            def helper(): return 5
            config, number, len = Config(), 1000, lambda items: 7

            @disco.function
            def of_config(ctx): return config is None
            @disco.function
            def of_helper(ctx):
                try: return helper()
                except NameError: return "deleted"
            @disco.function
            def of_number(ctx): return number
            @disco.function
            def of_len(ctx): return len([1])
            @disco.function
            def of_max(ctx): return max(1, 2)

            with disco.session(processes=1, backend=None) as s:
                functions = (of_config, of_helper, of_number, of_len, of_max)
                print(*(f(s).get() for f in functions))
                config = number = None
                del helper, len
                def max(*items): return 9
                print(*(f(s).get() for f in functions))
                config = Config()
                print(of_config(s).get())
            """
        )
    )
    output = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    assert output.stdout == "False 5 1000 7 2\nTrue deleted None 1 9\nFalse\n", output.stderr


def test_a_variable_of_an_enclosing_function_that_is_deleted_has_no_value_on_the_workers(processes):
    class Config:
        pass

    config = Config()

    @disco.function
    def f(ctx):
        try:
            return config is None
        except NameError:
            return "deleted"

    found = [f(processes).get()]
    config = None
    found.append(f(processes).get())
    del config
    assert [*found, f(processes).get()] == [False, True, "deleted"]


class Adder:
    def __init__(self, by):
        self.by = by

    def add(self, ctx, x):
        return x + self.by

    def __call__(self, ctx, x):
        return x + self.by


def test_methods_objects_and_wrappers_are_sent_as_they_are_now(processes):
    one, two = Adder(1), Adder(2)
    assert [processes.call(each.add, 1).get() for each in (one, two, one)] == [2, 3, 2]
    assert processes.call(one, 1).get() == 2
    one.by = 5
    assert processes.call(one, 1).get() == 6

    def plain(ctx, x):
        return x

    assert processes.call(plain, 1).get() == 1

    @functools.wraps(plain)
    def wrapper(ctx, x):
        return plain(ctx, x) + 10

    assert processes.call(wrapper, 1).get() == 11 and copy.deepcopy(plain) is plain
    copy.deepcopy(one)


def test_names_of_arguments_of_any_text_type(processes):
    class Name(str):
        pass

    def named(ctx, x=0, a=None, b=None):
        return x, a, b

    assert processes.call(named, **{Name("a"): 1}).get() == (0, 1, None)


def test_a_function_that_was_first_called_behind_a_failure_works_after_the_recovery(processes):
    @disco.function
    def fail(ctx):
        raise ValueError("bad")

    @disco.function
    def good(ctx):
        return 1

    with pytest.raises(disco.WorkerError):
        fail(processes)
        good(processes).get()
    processes.recover()
    assert good(processes).get_all() == [1] * 3
    processes.init_ccl("local")


def test_what_can_not_be_called_is_named(processes):
    for wrong in (3, str.upper, int):
        with pytest.raises(TypeError, match="is no function of Python"):
            processes.call(wrong)
    with pytest.raises(
        TypeError,
        match="is called with a session, or on a worker with its context, and not with int",
    ):
        by_name(3, 4)


def test_a_function_calls_another_one_with_its_context(processes):
    @disco.function
    def outer(ctx, x):
        return by_name(ctx, x)[1]

    assert outer(processes, 2).get() == 12


def test_state_belongs_to_a_worker_and_lasts(s):
    @disco.function
    def count(ctx):
        ctx.state["calls"] = ctx.state.get("calls", 0) + 1
        return ctx.worker, ctx.state["calls"], ctx.world, ctx.group, ctx.groups, ctx.device

    count(s)
    assert count(s).get_all() == [(worker, 2, 3, 0, 1, "cpu") for worker in range(3)]


def test_a_context_is_of_its_call_and_of_its_thread(processes):
    @disco.function
    def leak(ctx):
        import threading

        errors = []

        def use():
            try:
                ctx.worker
            except RuntimeError as error:
                errors.append(str(error))

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        ctx.state["leaked"] = ctx
        return errors, repr(ctx)

    @disco.function
    def use(ctx):
        try:
            ctx.state["leaked"].worker
        except RuntimeError as error:
            return str(error), repr(ctx.state.pop("leaked"))

    errors, text = leak(processes).get(1)
    assert errors == ["a worker's context belongs to the thread that runs the function"]
    assert text == "<disco.Context of worker 1 of 3>"
    error, text = use(processes).get(1)
    assert "during the call only" in error and text == "<disco.Context of a call that is over>"


def test_sets_have_one_order_on_all_workers_also_on_new_ones():
    @disco.function
    def order(ctx):
        return list({f"layer {number}" for number in range(30)}), os.getpid()

    for options in ({"processes": 2}, {"nodes": 2, "per_node": 1}):
        with disco.session(**options, backend=None) as s:
            found = order(s).get_all()
            os.kill(found[1][1], signal.SIGKILL)
            with pytest.raises(disco.Lost):
                while True:
                    s.sync()
            s.replace_lost()
            s.resize(3)
            found += order(s).get_all()
            assert len({pid for _, pid in found}) == 4 and all(
                names == found[0][0] for names, _ in found
            )


def test_a_hash_seed_of_the_program_is_that_of_the_workers():
    code = (
        "import disco; s = disco.session(processes=2, backend=None); "
        "print([hash('a')], s.call(lambda ctx: hash('a')).get_all())"
    )
    for seed in ("7", "8"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
        )
        own, workers = eval(done.stdout.replace("] [", "], ["))
        assert workers == 2 * own, done.stderr


def test_what_is_no_worker_function_is_refused():
    with pytest.raises(TypeError, match="neither async nor a generator"):

        @disco.function
        async def f(ctx):
            pass

    with pytest.raises(TypeError, match="is a function"):
        disco.function(5)


def test_the_output_of_workers_is_printed_with_their_name(capfd):
    @disco.function
    def speak(ctx):
        print("hello")

    with disco.session(processes=2, backend=None) as s:
        speak(s).get_all()
    out = capfd.readouterr().out
    assert sorted(line.split("]")[-1].strip() for line in out.splitlines()) == ["hello", "hello"], (
        out
    )
    assert "1" in out


def test_groups_and_subsets():
    @disco.function
    def place(ctx):
        return ctx.worker, ctx.group, ctx.group_size, ctx.in_group.all_reduce(ctx.worker)

    with disco.session(processes=4, groups=2, backend="local") as s:
        assert place(s).get_all() == [(0, 0, 2, 1), (1, 0, 2, 1), (2, 1, 2, 5), (3, 1, 2, 5)]
        with s.subset([1, 3], backend="local") as pair:
            assert place(pair).get_all() == [(0, 0, 2, 1), (1, 0, 2, 1)]
        assert len(s) == 4 and s.groups == 2


def test_a_subset_has_its_own_limit_for_collectives(kind):
    def deadline(ctx):
        return ctx.deadline

    with started(kind, collective_deadline=200) as s:
        for given, expected in ((7, 7.0), (None, 200.0)):
            with s.subset([0, 2], collective_deadline=given) as pair:
                assert pair.call(deadline).get_all() == [expected] * 2
        with pytest.raises(ValueError, match="collective_deadline=-1"):
            s.subset([0], collective_deadline=-1)
        assert s.call(deadline).get_all() == [200.0] * 3


def test_a_numpy_array_of_ctx_empty_is_zeroed_and_writable(processes):
    @disco.function
    def fill(ctx):
        x = ctx.empty((2, 3), np.int16)
        zeroed = not x.any()
        x[1] = ctx.worker
        y = ctx.empty(4, "bfloat16", library="disco")
        return zeroed, type(x).__name__, str(x.dtype), x, (y.shape, y.dtype, y.nbytes, y.device)

    zeroed, name, dtype, x, y = fill(processes).get(2)
    assert (zeroed, name, dtype) == (True, "ndarray", "int16")
    assert x.tolist() == [[0, 0, 0], [2, 2, 2]]
    assert y == ((4,), "bfloat16", 8, "cpu")


def test_functions_of_a_module_that_is_registered_for_pickles_by_value_are_sent(
    processes, tmp_path, monkeypatch
):
    import cloudpickle

    # The workers, which have started before, do not find it.
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("by_value", "package_by_value"):
        folder = tmp_path / name if name.startswith("package") else tmp_path
        folder.mkdir(exist_ok=True)
        (folder / "by_value.py").write_text(
            "import disco\nK = 5\n@disco.function\ndef f(ctx): return K\n"
        )
    import by_value
    import package_by_value
    from package_by_value import by_value as in_package

    for registered, module in ((by_value, by_value), (package_by_value, in_package)):
        cloudpickle.register_pickle_by_value(registered)
        try:
            assert module.f(processes).get() == 5
            module.K = 6
            assert module.f(processes).get() == 6
            assert processes.call(lambda ctx: module.f(ctx)).get() == 6
        finally:
            cloudpickle.unregister_pickle_by_value(registered)
