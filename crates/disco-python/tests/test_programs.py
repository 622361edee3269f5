"""Programs of their own: Ctrl-C, the end of a program, forks, killed controllers."""

import os
import signal
import subprocess
import sys
import textwrap

import disco
from conftest import ended

HEAD = """
import disco, os, signal, sys, threading, time, warnings

# Programs that a shell starts in the background ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Python 3.12 warns of forks of programs with threads.
warnings.simplefilter("ignore", DeprecationWarning)

@disco.function
def sleep(ctx, seconds):
    time.sleep(seconds)
    return os.getpid()

def interrupt_after(seconds):
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
"""


def program(tmp_path, text, **options):
    path = tmp_path / "program.py"
    path.write_text(HEAD + textwrap.dedent(text))
    return subprocess.Popen(
        [sys.executable, path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def output(tmp_path, text):
    process = program(tmp_path, text)
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return out, err


def test_ctrl_c_ends_each_wait_at_once_and_the_session_goes_on(tmp_path):
    out, err = output(
        tmp_path,
        """
        with disco.session(processes=2, backend="local") as s:
            pids = sleep(s, 0).get_all()
            of_ref = lambda ref: ref.get(), lambda ref: ref.get_all()
            for wait in (*of_ref, lambda ref: s.sync(), lambda ref: s.sync(1)):
                ref = sleep(s, 1.5)
                interrupt_after(0.3)
                begin = time.monotonic()
                try:
                    wait(ref)
                    print("no interrupt")
                except KeyboardInterrupt:
                    print("interrupted", time.monotonic() - begin < 1.2)
                assert ref.get_all() == pids
            print("goes on")
        """,
    )
    assert out == "interrupted True\n" * 4 + "goes on\n"
    assert err == ""


def test_ctrl_c_of_a_terminal_reaches_the_workers_and_leaves_no_traceback_of_theirs(tmp_path):
    process = program(
        tmp_path,
        """
        s = disco.session(processes=2, backend=None)
        print(*sleep(s, 0).get_all(), flush=True)
        s.call(lambda ctx: print("inside", flush=True))
        sleep(s, 100).get()
        """,
    )
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert all("inside" in process.stdout.readline() for _ in pids)
    # A terminal sends it to all processes of the group.
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert err.count("Traceback") == 1 and err.rstrip().endswith("KeyboardInterrupt"), err
    assert process.returncode == -signal.SIGINT
    assert ended(pids)


def test_a_program_that_ends_without_a_shutdown_ends_its_workers(tmp_path):
    out, err = output(
        tmp_path,
        """
        s = disco.session(processes=2, backend="local")
        ref = sleep(s, 0)
        print(*ref.get_all())
        """,
    )
    assert err == "" and ended([int(pid) for pid in out.split()])


def test_threads_in_a_function_do_not_crash_the_end_of_a_program(tmp_path):
    process = program(
        tmp_path,
        """
        s = disco.session(threads=2, backend=None)
        interrupt_after(0.5)
        sleep(s, 30).get()
        """,
    )
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "the program ends at once" in err, (
        process.returncode,
        err,
    )


def test_a_failure_that_nobody_has_waited_for_is_printed_at_the_end_of_the_program(tmp_path):
    out, err = output(
        tmp_path,
        """
        @disco.function
        def fail(ctx):
            raise ValueError("bad")

        s = disco.session(processes=2, backend=None)
        fail(s)
        """,
    )
    assert (
        err.startswith(
            "disco: a session that the program has left open has failed: 2 workers have failed"
        )
        and "bad" in err
    )


def test_workers_end_when_their_program_is_killed(tmp_path):
    process = program(
        tmp_path,
        """
        s = disco.session(processes=2, backend="local")
        print(*sleep(s, 0).get_all(), flush=True)
        sleep(s, 1000).get()
        """,
    )
    pids = [int(pid) for pid in process.stdout.readline().split()]
    process.kill()
    process.wait()
    assert len(pids) == 2 and ended(pids)


def test_the_child_of_a_fork_is_told_to_spawn_and_the_parent_goes_on(tmp_path):
    out, err = output(
        tmp_path,
        """
        with disco.session(processes=2, backend="local") as s:
            pids = sleep(s, 0)
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    sleep(s, 0)
                except RuntimeError as error:
                    os.write(write, str(error).encode())
                del s, pids
                sys.exit(0)
            os.waitpid(child, 0)
            print(os.read(read, 1000).decode())
            print(len(set(sleep(s, 0).get_all())))
        """,
    )
    first, second = out.splitlines()
    assert "forked after the session had started" in first and 'get_context("spawn")' in first
    assert second == "2" and err == ""


def test_a_script_without_a_main_guard_runs_once(tmp_path):
    out, err = output(
        tmp_path,
        """
        print("once")
        s = disco.session(processes=2, backend=None)
        print(len(sleep(s, 0).get_all()))
        s.shutdown()
        """,
    )
    assert (out, err) == ("once\n2\n", "")


def test_a_failing_import_of_a_worker_is_reported(tmp_path):
    (tmp_path / "cloudpickle.py").write_text("")
    out, err = output(
        tmp_path,
        """
        os.environ["PYTHONHOME"] = "/nowhere"
        try:
            disco.session(processes=1, backend=None)
        except disco.DiscoError as error:
            print(error)
        """,
    )
    assert "worker 0" in out, (out, err)


def test_python_m_disco_checks_a_session():
    done = subprocess.run(
        [sys.executable, "-m", "disco"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"disco-runtime {disco.__version__}, Python 3.")
    assert any(line.startswith("local      available") for line in lines)
    assert lines[-1] == "a session of 2 processes: works"


def test_the_import_is_light():
    heavy = "asyncio numpy cloudpickle torch subprocess"
    code = f"import disco, sys; print([name for name in '{heavy}'.split() if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_a_session_of_threads_can_be_collected_by_its_own_worker(tmp_path):
    out, err = output(
        tmp_path,
        """
        import gc

        sys.free, sys.collected = threading.Event(), threading.Event()

        def collect(ctx):
            sys.free.wait()
            gc.collect()
            sys.collected.set()

        gc.disable()
        cycle = [disco.session(threads=2, backend=None)]
        cycle += [cycle, cycle[0].call(collect)]
        del cycle
        sys.free.set()
        print(sys.collected.wait(20))
        """,
    )
    assert (out, err) == ("True\n", "")


def test_a_session_that_only_handles_keep_ends_with_the_program(tmp_path):
    for kind in ("processes", "threads"):
        out, err = output(
            tmp_path,
            f"""
            @disco.function
            def fail(ctx):
                print("called", flush=True)
                raise ValueError("lost")

            refs = [fail(disco.session({kind}=1, backend=None))]
            """,
        )
        assert "called" in out
        assert err.startswith(
            "disco: a session that the program has left open has failed: worker 0: fail"
        ), err


def test_waits_that_have_begun_are_errors_after_a_fork(tmp_path):
    out, err = output(
        tmp_path,
        """
        with disco.session(processes=1, backend=None) as s:
            ref = sleep(s, 1)
            try:
                ref.get(timeout=0.1)
            except disco.Timeout:
                pass
            if os.fork() == 0:
                try:
                    ref.get()
                except RuntimeError as error:
                    print(str(error)[:31], flush=True)
                del ref
                os._exit(0)
            os.wait()
            print(ref.get() in s.call(lambda ctx: os.getpid()).get_all())
        """,
    )
    assert (out, err) == ("this process was forked after t\nTrue\n", "")


LONG = """
def long(ctx, path):
    time.sleep(20)
    open(path, "w").close()

done = sys.argv[0] + ".done"
"""


def test_an_exception_in_a_with_statement_does_not_wait_for_a_long_function(tmp_path):
    for kind in ("processes", "threads"):
        process = program(
            tmp_path,
            LONG
            + f"""
try:
    with disco.session({kind}=1, backend=None) as s:
        s.call(long, done)
        raise ValueError("mine")
except ValueError as error:
    print(error, os.path.exists(done))
""",
        )
        out, err = process.communicate(timeout=60)
        # Threads can't outlive the interpreter.
        ends = "workers that are threads are still in a function: the program ends at once"
        assert (out, ends in err) == ("mine False\n", kind == "threads"), err


def test_an_exception_in_an_async_with_statement_does_not_wait_for_a_long_function(tmp_path):
    out, err = output(
        tmp_path,
        LONG
        + """
import asyncio

async def main(end):
    async with disco.aio.session(processes=1, backend=None) as s:
        s.call(long, done)
        await end()

async def fail():
    raise ValueError("mine")

# The first one raises inside of the statement; the second one is cancelled at its end.
for run in (main(fail), asyncio.wait_for(main(lambda: asyncio.sleep(0)), 5)):
    try:
        asyncio.run(run)
    except (ValueError, TimeoutError) as error:
        print(type(error).__name__, os.path.exists(done))
""",
    )
    assert (out, err) == ("ValueError False\nTimeoutError False\n", "")


def test_ctrl_c_at_the_end_of_a_with_statement_does_not_wait_for_a_long_function(tmp_path):
    out, err = output(
        tmp_path,
        LONG
        + """
try:
    with disco.session(processes=1, backend=None) as s:
        s.call(long, done)
        interrupt_after(0.5)
except KeyboardInterrupt:
    print("interrupted", os.path.exists(done))
""",
    )
    assert (out, err) == ("interrupted False\n", "")


def test_a_thread_that_is_no_daemon_is_named_and_does_not_keep_a_worker(tmp_path):
    out, err = output(
        tmp_path,
        """
        def start(ctx):
            threading.Thread(target=threading.Event().wait, name="writer").start()

        with disco.session(processes=2, backend=None) as s:
            s.call(start).get_all()
        print("over")
        """,
    )
    assert out == "over\n" and err.count("threads of its functions still run: writer") == 2, err


def test_what_functions_log_is_printed_from_the_levels_of_the_program_on(tmp_path):
    out, err = output(
        tmp_path,
        """
        import logging

        def log(ctx):
            logging.info("general")
            logging.getLogger("quiet").info("no")
            logging.getLogger("loud.part").debug("detail")

        logging.basicConfig(level=logging.INFO)
        logging.getLogger("quiet").setLevel(logging.ERROR)
        logging.getLogger("loud").setLevel(logging.DEBUG)
        with disco.session(processes=1, backend=None) as s:
            s.call(log).get()
        """,
    )
    assert [line.split("] ")[-1] for line in err.splitlines()] == [
        "INFO:root:general",
        "DEBUG:loud.part:detail",
    ], err


def test_a_session_without_a_number_has_the_processors_that_the_program_may_use(tmp_path):
    out, err = output(
        tmp_path,
        """
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        with disco.session(backend=None) as s:
            print(s.size)
        """,
    )
    assert (out, err) == ("1\n", "")


def test_sessions_and_handles_have_a_repr_after_a_fork(tmp_path):
    out, err = output(
        tmp_path,
        """
        with disco.session(processes=2, backend=None) as s:
            objects = [s, s.put(1)[1]]
            print(objects, flush=True)
            if os.fork() == 0:
                print(objects, flush=True)
                os._exit(0)
            os.wait()
        """,
    )
    before, after = out.splitlines()
    assert before.startswith("[<disco._session.Session of 2 workers>, <disco.Part of register"), (
        before
    )
    assert after == before.replace("2 workers", "another process") and after.endswith(
        "in worker 1>]"
    ), after


def test_the_child_of_a_fork_in_a_worker_function_ends_and_the_parent_is_the_worker(tmp_path):
    out, err = output(
        tmp_path,
        """
        def fork(ctx, how):
            child = os.fork()
            if child == 0:
                if how == "raises":
                    raise ValueError("of the child")
                if how == "exits":
                    sys.exit(5)
                if how == "reduces":
                    ctx.all_reduce(1)
                print("child", how)
                return 0
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        class Forks:
            def __reduce__(self):
                return fork, (None, "pickles")

        with disco.session(processes=2, backend="local") as s:
            pids = sleep(s, 0).get_all()
            hows = ("returns", "raises", "exits", "reduces")
            print([s.call(fork, how).get_all() for how in hows])
            print(s.call(lambda ctx, status: status, Forks()).get_all())
            same = [sleep(s, 0).get_all() == pids for _ in range(4)]
            print(same, s.call(lambda ctx: ctx.all_reduce(1)).get_all())
        """,
    )
    lines = out.splitlines()
    assert [line for line in lines if "child" not in line] == [
        "[[0, 0], [1, 1], [5, 5], [1, 1]]",
        "[0, 0]",
        f"{4 * [True]} [2, 2]",
    ]
    assert (
        sum("child returns" in line for line in lines)
        == sum("child pickles" in line for line in lines)
        == 2
    )
    assert (
        err.count("ValueError: of the child") == 2
        and err.count("context stays with the parent") == 2
    )
