"""A real Jupyter kernel: `cargo xtask python --long`."""

import os
import re
import time
from pathlib import Path

import jupyter_client
import nbclient
import nbformat
import pytest
from conftest import alive, ended, until


class Kernel:
    """A kernel, and what its cells say."""

    def __init__(self):
        self.manager, self.client = jupyter_client.manager.start_new_kernel(kernel_name="python3")

    def run(self, code, timeout=60, while_running=None):
        """What a cell prints, its result, and its error."""
        sent = self.client.execute(code)
        if while_running is not None:
            while_running()
        said, error = [], None
        end = time.monotonic() + timeout
        while True:
            message = self.client.get_iopub_msg(timeout=max(end - time.monotonic(), 0.1))
            if message["parent_header"].get("msg_id") != sent:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                said.append(content["text"])
            elif kind == "execute_result":
                said.append(content["data"]["text/plain"])
            elif kind == "error":
                error = content
            elif kind == "status" and content["execution_state"] == "idle":
                return "".join(said), error

    def end(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel():
    kernel = Kernel()
    yield kernel
    kernel.end()


START = """
import disco, os, time
import numpy as np
s = disco.session(processes=2)

@disco.function
def work(ctx, seconds=0, marker=None):
    if marker:
        open(marker, "w").close()
    time.sleep(seconds)
    return helper(ctx.worker)

def helper(x):
    return x + 1
"""


def pids(kernel):
    said, error = kernel.run("print(*s.call(lambda ctx: os.getpid()).get_all())")
    assert error is None, error
    return [int(pid) for pid in said.split()]


def test_functions_of_cells_are_sent_and_sent_again_after_a_new_definition(kernel):
    assert kernel.run(START) == ("", None)
    assert kernel.run("work(s).get_all()") == ("[1, 2]", None)
    kernel.run("def helper(x): return -x")
    assert kernel.run("work(s).get_all()") == ("[0, -1]", None)
    kernel.run("@disco.function\ndef work(ctx): return 'new'")
    assert kernel.run("work(s).get_all()") == ("['new', 'new']", None)


def test_an_interrupt_ends_the_wait_and_the_session_goes_on(kernel, tmp_path):
    kernel.run(START)
    marker = tmp_path / "inside"

    def interrupt():
        assert until(marker.exists)
        kernel.manager.interrupt_kernel()

    begin = time.monotonic()
    _, error = kernel.run(f"work(s, 5, {str(marker)!r}).get()", while_running=interrupt)
    assert error["ename"] == "KeyboardInterrupt" and time.monotonic() - begin < 4
    assert kernel.run("work(s).get_all()") == ("[1, 2]", None)


def test_the_exception_of_a_worker_is_shown_with_its_traceback(kernel):
    kernel.run(START)
    _, error = kernel.run("def helper(x): raise ValueError(f'bad {x}')\nwork(s).get(0)")
    text = "\n".join(error["traceback"])
    assert error["ename"] == "WorkerError" and "ValueError: bad 0" in text
    # With the lines of the cells.
    on_the_worker = text.split("On the worker:")[1]
    assert (
        "return helper(ctx.worker)" in on_the_worker
        and "raise ValueError(f'bad {x}')" in on_the_worker
    )
    assert kernel.run("s.recover()\ndef helper(x): return x\nwork(s).get_all()") == ("[0, 1]", None)


@pytest.mark.parametrize("how", ["shutdown", "restart", "kill"])
def test_workers_end_with_their_kernel(kernel, tmp_path, how):
    kernel.run(START)
    workers = pids(kernel)
    assert len(workers) == 2 and all(alive(pid) for pid in workers)
    marker = tmp_path / "inside"
    kernel.client.execute(f"work(s, 1000, {str(marker)!r}).get()")
    assert until(marker.exists)
    if how == "restart":
        kernel.manager.restart_kernel(now=True)
    elif how == "kill":
        os.kill(kernel.manager.provisioner.pid, 9)
    else:
        kernel.manager.shutdown_kernel(now=False)
    assert ended(workers)


def test_cells_may_await(kernel):
    kernel.run(START)
    cell = (
        "a = await disco.aio.session(processes=2)\nfound = await work(a)\nawait a.shutdown()\nfound"
    )
    assert kernel.run(cell) == ("[1, 2]", None)


def test_the_programs_of_the_guide_run_as_a_notebook():
    guide = (Path(__file__).parents[4] / "docs/python.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", guide, re.S)
    # A notebook has an event loop already.
    cells = [
        nbformat.v4.new_code_cell(block.replace("asyncio.run(main())", "await main()"))
        for block in blocks
    ]
    notebook = nbclient.NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=60).execute()
    said = [output.get("text", "") for cell in notebook.cells for output in cell.outputs]
    assert "[12.0, 12.0, 12.0, 12.0]" in "".join(said)
