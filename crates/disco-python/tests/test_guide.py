"""The programs of the guide and of the READMEs."""

import re
import subprocess
import sys
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
