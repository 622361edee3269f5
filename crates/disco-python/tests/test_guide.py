"""The programs of the guide and of the READMEs."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("file", ["docs/python.md", "README.md", "crates/disco-python/README.md"])
def test_the_programs_of_a_document_run(file, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / file).read_text(), re.S)
    assert blocks
    program = tmp_path / "program.py"
    program.write_text("\n".join(blocks))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, (done.stdout, done.stderr)
    # What a comment behind a `print` says.
    for said in re.findall(r"print\(.*\) *# (?:waits: )?([\[\d].*)", program.read_text()):
        assert said in done.stdout, (said, done.stdout)


@pytest.mark.parametrize("example", ["tensor_parallel.py", "digits.py"])
def test_the_examples_run(example):
    command = [sys.executable, ROOT / "crates/disco-python/examples" / example]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, (done.stdout, done.stderr)
    if example == "digits.py":
        assert done.stdout.splitlines()[-1].endswith("test accuracy 0.9805")


#: Runs cells in `__main__`, each compiled by itself as in a notebook, and prints their values.
NOTEBOOK = """
import ast, json, sys

def run(cells):
    for number, cell in enumerate(cells):
        *body, last = ast.parse(cell).body
        exec(compile(ast.Module(body, []), f"cell {number}", "exec"), globals())
        value = ast.Expression(last.value)
        print(repr(eval(compile(value, f"cell {number}", "eval"), globals())))

run(json.loads(sys.argv[1]))
"""


def test_the_cells_of_the_notebook_give_what_they_say():
    notebook = json.loads((ROOT / "crates/disco-python/examples/tour.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    command = [sys.executable, "-c", NOTEBOOK, json.dumps(cells)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    found = done.stdout.splitlines()
    assert found[1:5] == [
        "[7.5, 7.5, 7.5, 7.5]",
        "([-180.0, -180.0, -180.0, -180.0], array([-36., -42., -48., -54.]))",
        "([{'dp': 0, 'tp': 0}, {'dp': 0, 'tp': 1}, {'dp': 1, 'tp': 0}, {'dp': 1, 'tp': 1}], "
        "[(28.0, 44.0), (28.0, 76.0), (92.0, 44.0), (92.0, 76.0)])",
        "['worker 0', None, None, 'worker 3']",
    ]
    assert found[5:] == [
        "['', 'b', 'cc', 'ddd']",
        "(6, 0.0078125)",
        "(126.0, array([24., 28., 32., 36.]))",
        "(1, 'fail', \"ValueError('no data')\")",
        "([2], [7.5, 7.5, 7.5, 7.5])",
        "[7.5, 7.5]",
    ]


def test_the_guide_has_the_table_of_torchs_tests():
    table = tomllib.loads((Path(__file__).parent / "torch_tests.toml").read_text())
    rows = []
    for of, results in table.items():
        groups = {}
        for result, names in results.items():
            for name in names:
                # The first word of a name is its topic.
                groups.setdefault((name.split("_")[0], result), []).append(f"`{name}`")
        rows += [f"| {of} | {', '.join(names)} | {why} |" for (_, why), names in groups.items()]
    document = (ROOT / "docs/torch-tests.md").read_text()
    found = document.split("| of | `test_…` | result |\n|---|---|---|\n")[1]
    assert found.splitlines() == rows, "\n".join(rows)
