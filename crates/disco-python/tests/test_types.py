"""What type checkers say of programs."""

import textwrap

import pytest

PROGRAM = """
    import asyncio
    import disco
    import numpy as np

    @disco.function
    def scale(ctx: disco.Context, x: float, times: int = 1) -> str:
        return str(ctx.all_reduce(x) * times)

    def program(s: disco.Session, a: disco.aio.Session) -> None:
        text: str = scale(s, 2.0, times=3).get()
        texts: list[str] = s.call(scale, s.put(2.0), 3).get_all()
        some: str = s.call_on([0], scale, 1.0).get()
        s.sync(timeout=3)
        one: disco.Resized = s.resize(3)
        for worker, result in s.call_streaming(scale, 1.0):
            print(worker + 1, result)

    async def other(a: disco.aio.Session) -> None:
        one: disco.Resized = await a.resize(3)
        text: list[str] = await scale(a, 2.0)
"""
WRONG = """\
scale(s, "wrong")
scale(s, 1.0, time=3)
x: int = s.call(scale, 1.0).get()
s.call(scale, "wrong")
s.call_on([0], scale, "wrong")
disco.session(threads="2")
disco.session(colour=1)
s.sync(workr=1)
s.resize("2")
"""


def checked(tmp_path, text):
    """The errors of mypy."""
    api = pytest.importorskip("mypy.api")
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(PROGRAM) + text)
    said, crashed, _ = api.run(["--strict", str(file)])
    assert not crashed, crashed
    return [line for line in said.splitlines() if ": error: " in line]


def test_types_of_arguments_and_options_reach_the_caller(tmp_path):
    assert checked(tmp_path, "") == []
    wrong = textwrap.indent(WRONG, "    ")
    errors = checked(tmp_path, f"def wrong(s: disco.Session) -> None:\n{wrong}")
    lines = (tmp_path / "program.py").read_text().splitlines()
    found = {lines[int(error.split(":")[1]) - 1].strip() for error in errors}
    assert found == set(WRONG.splitlines()), errors
