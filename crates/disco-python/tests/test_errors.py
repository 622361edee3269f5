"""Failures: what a program sees, and how it goes on."""

import copy
import os
import pickle

import disco
import pytest
from conftest import KINDS, sleep, started, until


class Custom(Exception):
    def __init__(self, code, text):
        super().__init__(text)
        self.code = code

    def __reduce__(self):
        return (Custom, (self.code, self.args[0]))


class Unpicklable(Exception):
    def __reduce__(self):
        raise TypeError("no")


class NotBuilt(Exception):
    def __init__(self, a, b):
        super().__init__(a)


@disco.function
def fail(ctx, error, worker=1):
    if ctx.worker == worker:
        raise error
    return ctx.worker


@disco.function
def fail_with(ctx, name):
    raise {"unpicklable": Unpicklable("why"), "not built": NotBuilt("why", 2)}[name]


def test_an_exception_of_a_worker_is_the_cause_of_an_error_with_its_place(s):
    ref = fail(s, Custom(7, "bad"))
    with pytest.raises(disco.WorkerError) as raised:
        ref.get_all()
    error = raised.value
    assert (error.worker, error.function, error.kind) == (1, "fail", "User")
    assert "worker 1: fail (command" in str(error) and "Custom: bad" in str(error)
    assert type(error.__cause__) is Custom and error.__cause__.code == 7
    notes = "\n".join(error.__cause__.__notes__)
    assert "raise error" in notes and "test_errors.py" in notes
    # Nothing is submitted until the program recovers, and the first failure is named again.
    with pytest.raises(
        disco.Earlier, match="not submitted, because an earlier command failed: worker 1: fail"
    ):
        fail(s, None, worker=9)
        s.sync()
        fail(s, None, worker=9)
    s.recover()
    assert fail(s, None, worker=9).get_all() == [0, 1, 2]


def test_the_failure_of_a_handle_is_raised_by_each_get_and_fails_the_session_once(s):
    bad = fail(s, Custom(7, "bad"))
    for _ in range(20):
        with pytest.raises(disco.WorkerError) as raised:
            bad.get_all()
        assert type(raised.value) is disco.WorkerError and raised.value.function == "fail"
    s.recover()
    good = fail(s, None, worker=9)
    assert good.get_all() == [0, 1, 2]
    # A notebook's cell that is executed again.
    with pytest.raises(disco.WorkerError) as raised:
        bad.get(1)
    assert raised.value.function == "fail" and type(raised.value.__cause__) is Custom
    assert fail(s, None, worker=9).get_all() == [0, 1, 2]


def test_a_wrong_split_is_an_error_of_its_handles_only(processes):
    first, second = fail(processes, None, worker=9).split(2)
    with pytest.raises(TypeError, match="split: the result is no tuple or list, but a int"):
        first.get()
    with pytest.raises(disco.WorkerError, match="argument 0: split: the result is no tuple"):
        processes.call(lambda ctx, x: x, second).get()
    processes.recover()
    assert processes.put((1, 2)).split(2)[1].get() == 2


def test_a_handle_is_not_unpacked_into_the_results_of_workers(processes):
    ref = processes.put((1, 2, 3))
    for wrong in (lambda: [*ref], lambda: iter(ref)):
        with pytest.raises(
            TypeError, match=r"a handle has no items to iterate over: `split\(n\)` makes handles"
        ):
            wrong()
    with pytest.raises(TypeError, match="split"):
        a, b, c = ref
    assert [item.get() for item in ref.split(3)] == [1, 2, 3] and ref[2].get() == (1, 2, 3)


def test_a_failure_that_nobody_has_waited_for_is_raised_at_the_end(kind):
    with pytest.raises(disco.WorkerError, match="Custom: bad"):
        with started(kind) as s:
            fail(s, Custom(7, "bad"))
    # The program knows this one.
    with started(kind) as s:
        with pytest.raises(disco.WorkerError):
            fail(s, Custom(7, "bad")).get_all()


def test_failures_of_several_workers_are_a_group(s):
    @disco.function
    def fail_some(ctx):
        if ctx.worker != 1:
            raise ValueError(f"worker {ctx.worker}")

    ref = fail_some(s)
    try:
        ref.get_all()
    except* disco.WorkerError as group:
        assert [(e.worker, str(e.__cause__)) for e in group.exceptions] == [
            (0, "worker 0"),
            (2, "worker 2"),
        ]
        assert group.worker in (0, 2) and group.function.endswith("fail_some")
        assert str(group).startswith("2 workers have failed, the first of them so: worker ")
    with pytest.raises(disco.WorkerError) as raised:
        s.sync()
    assert isinstance(raised.value, disco.WorkerErrors)
    with pytest.raises(disco.WorkerError) as raised:
        ref.get(2)
    assert not isinstance(raised.value, ExceptionGroup)
    s.recover()
    s.sync()


def test_exceptions_that_can_not_be_pickled_or_built_are_reported(processes):
    for name, text in (
        ("unpicklable", "test_errors.Unpicklable: why"),
        ("not built", "test_errors.NotBuilt: why"),
    ):
        with pytest.raises(disco.WorkerError) as raised:
            fail_with(processes, name).get()
        cause = raised.value.__cause__
        assert isinstance(cause, disco.RemoteError) and str(cause) == text
        assert cause.type_name == text.split(":")[0]
        assert "Traceback" in cause.__notes__[0]
        processes.recover()


def test_long_texts_with_characters_that_need_escapes_keep_the_exception(processes):
    @disco.function
    def fail_with_text(ctx, text):
        raise ValueError(text)

    for text in ("\n" * 24000, "\x1b[1m" * 6000, "\udc80"):
        with pytest.raises(disco.WorkerError) as raised:
            fail_with_text(processes, text).get()
        cause = raised.value.__cause__
        assert type(cause) is ValueError and "fail_with_text" in "".join(cause.__notes__)
        assert str(cause)[:1000] == text[:1000] and str(cause)[-1000:] == text[-1000:]
        processes.recover()


def test_long_exceptions_keep_their_type_and_what_is_short(processes):
    @disco.function
    def fail_long(ctx, size):
        raise Custom(7, "ö" * size + "end")

    for size in (1000, 20_000, 1_000_000):
        with pytest.raises(disco.WorkerError) as raised:
            fail_long(processes, size).get()
        cause = raised.value.__cause__
        assert (
            type(cause) is Custom
            and cause.code == 7
            and str(cause).startswith("ööö")
            and str(cause).endswith("öend")
        )
        assert (" … " in str(cause)) == (size > 1000)
        processes.recover()


def test_a_function_that_can_not_be_loaded_fails_its_own_call(processes):
    class Bad:
        def __reduce__(self):
            return (os.listdir, ("/no/such/folder",))

    bad = Bad()

    @disco.function
    def use(ctx):
        return bad

    with pytest.raises(disco.WorkerError, match="can't load the function: FileNotFoundError"):
        use(processes).get()
    processes.recover()


def test_sys_exit_in_a_function_is_an_error_and_not_the_end_of_the_worker(processes):
    @disco.function
    def leave(ctx):
        raise SystemExit(3)

    with pytest.raises(disco.WorkerError, match="SystemExit: 3"):
        leave(processes).get()
    processes.recover()


def test_an_error_of_disco_that_a_function_passes_on_keeps_its_kind():
    @disco.function
    def late(ctx):
        if ctx.worker != 1:
            ctx.barrier()

    with started("processes", collective_deadline=0.5) as s:
        with pytest.raises(disco.WorkerError) as raised:
            late(s).get_all(timeout=30)
        assert raised.value.kind == "Deadline" and isinstance(
            raised.value.__cause__, disco.Deadline
        )
        assert "rank 1" in str(raised.value)


def test_a_wait_ends_at_its_limit_and_the_result_can_be_waited_for_again(s):
    ref = sleep(s, 1.0)
    with pytest.raises(disco.Timeout, match="no result after 0.05 s"):
        ref.get_all(timeout=0.05)
    with pytest.raises(TimeoutError):
        s.sync(timeout=0.05)
    assert ref.get_all() == [0, 1, 2]


def test_a_call_past_its_deadline_is_an_error():
    with started("processes", call_deadline=0.5) as s:
        with pytest.raises(disco.Deadline) as raised:
            sleep(s, 1).get_all()
        assert raised.value.after == 0.5 and "sleep" in str(raised.value)


def test_a_session_that_is_shut_down_says_so(kind):
    with started(kind) as s:
        pass
    s.shutdown()
    with pytest.raises(disco.Closed):
        sleep(s, 0)


def test_handles_of_another_session_are_refused(processes):
    with disco.session(threads=1, backend=None) as other:
        with pytest.raises(disco.ForeignRef):
            processes.call(lambda ctx, x: x, other.put(1))


def test_options_that_do_not_fit_are_refused():
    with pytest.raises(TypeError, match="colour is no option of a session"):
        disco.session(processes=1, colour=3)
    with pytest.raises(TypeError, match="only one of them"):
        disco.session(processes=1, threads=1)
    with pytest.raises(TypeError, match="belong together"):
        disco.session(nodes=2)
    with pytest.raises(disco.Invalid, match="at least 1 worker"):
        disco.session(processes=0)
    with pytest.raises(ValueError, match="it is never, when_asked"):
        disco.session(processes=1, replacement="often")
    with pytest.raises(disco.DiscoError, match="gloo"):
        disco.session(processes=1, backend="gloo")


def test_resize(processes):
    with started("processes") as s:
        result = s.resize(2)
        assert result.numbers == [0, 1, None] and len(s) == 2
        assert s.resize(4).workers == [2, 3]
        assert sleep(s, 0).get_all() == [0, 1, 2, 3]


def test_status_names_the_function_that_a_worker_is_in(processes):
    ref = sleep(processes, 1.0)
    assert until(lambda: "sleep" in str(processes.status()["workers"][0]))
    assert len(processes.status()["workers"]) == 3
    ref.get_all()


def test_kinds_of_sessions_and_exceptions_are_complete():
    assert set(KINDS) == {"processes", "threads", "nodes"}
    for name in disco._errors.__all__:
        assert issubclass(getattr(disco, name), Exception)
        if name == "WorkerErrors":
            continue
        pickle.loads(pickle.dumps(getattr(disco, name)("text")))


def test_failures_of_several_workers_keep_their_fields_in_a_pickle():
    with started("processes") as s:
        with pytest.raises(disco.WorkerErrors) as raised:
            s.call(lambda ctx: 1 / 0).get_all()
    error, restored = raised.value, pickle.loads(pickle.dumps(raised.value))
    fields = ("worker", "function", "command", "kind", "message")
    assert [getattr(error, name) for name in fields] == [getattr(restored, name) for name in fields]
    assert [str(each) for each in error.exceptions] == [str(each) for each in restored.exceptions]
    assert type(restored) is disco.WorkerErrors and [
        each.worker for each in restored.exceptions
    ] == [0, 1, 2]


def test_copies_pickles_and_parts_of_errors_keep_worker_function_and_cause(processes):
    def fail_two(ctx):
        if ctx.worker < 2:
            raise ValueError(ctx.worker)

    with pytest.raises(disco.WorkerErrors) as raised:
        processes.call(fail_two).get_all()
    processes.recover()
    error = raised.value
    error.add_note("a note")
    one = error.exceptions[1]

    def fields(error):
        return (
            error.worker,
            error.function,
            error.command,
            error.kind,
            repr(error.__cause__),
            error.__cause__.__notes__,
        )

    for same in (
        pickle.loads(pickle.dumps(error)),
        copy.copy(error),
        copy.deepcopy(error),
        error.subgroup(disco.WorkerError),
    ):
        assert fields(same) == fields(error) and type(same) is disco.WorkerErrors
        assert list(map(fields, same.exceptions)) == list(
            map(fields, error.exceptions)
        ) and same.__notes__ == ["a note"]
    for same in (pickle.loads(pickle.dumps(one)), copy.copy(one), copy.deepcopy(one)):
        assert fields(same) == fields(one) and type(same) is disco.WorkerError
    for worker in (0, 1):
        part, rest = error.split(lambda each: each.worker == worker)
        for group, index in (
            (part, worker),
            (rest, 1 - worker),
            (error.subgroup(lambda each: each.worker == worker), worker),
        ):
            assert fields(group) == fields(error.exceptions[index]) and group.exceptions == (
                error.exceptions[index],
            )
    assert error.subgroup(lambda each: False) is None
    # A cause that can't be pickled.
    one.__cause__ = Unpicklable("why")
    same = pickle.loads(pickle.dumps(one))
    assert (same.worker, str(same.__cause__)) == (1, "test_errors.Unpicklable: why")


def test_breakpoint_on_a_worker_says_what_to_do(processes):
    def stop(ctx):
        breakpoint()

    with pytest.raises(
        disco.WorkerError, match="breakpoint.*: a worker that is a process has no terminal for pdb"
    ):
        processes.call(stop).get()
    processes.recover()

    def stop_in(ctx):
        os.environ["PYTHONBREAKPOINT"] = "os.getpid"
        return breakpoint() == os.getpid(), os.environ.pop("PYTHONBREAKPOINT")

    assert processes.call(stop_in).get() == (True, "os.getpid")


def test_a_function_by_value_of_another_python_is_refused():
    from disco import _functions

    kind, pickled, versions, sources = _functions.describe(lambda ctx: 1)[0]
    assert _functions.load((kind, pickled, versions, sources))(None) == 1
    with pytest.raises(
        TypeError,
        match="by a program with Python 3.9, and this worker 3[.0-9]+: they must be the same",
    ):
        _functions.load((kind, pickled, versions | {"Python": "3.9"}, sources))
