"""MPI as the data plane, and programs whose workers a launcher has started."""

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

#: `cargo xtask test` fetches the libraries.
CACHE = Path(__file__).parents[3] / "target/test-cache"
MPICH = ("mpich-5.0.2", "lib/libmpi.so.12", ["bin/mpiexec"])
OPEN_MPI = (
    "openmpi-5.0.11",
    "lib/libmpi.so.40",
    ["bin/mpirun", "--allow-run-as-root", "--oversubscribe"],
)

PROGRAM = """
import disco, os, sys
import numpy as np

@disco.function
def total(ctx):
    return ctx.all_reduce(np.arange(4.0) * (ctx.worker + 1)).tolist(), os.getpid(), hash("disco")

disco.init()
with disco.session(**{options}) as s:
    found = total(s).get_all()
    sums, pids, hashes = zip(*found)
    print(list(sums), len(set(pids)), os.getpid() in pids, len(set(hashes)))
"""


def library(of):
    folder, file, launcher = of
    path = CACHE / folder
    if not path.is_dir():
        if "mpi" in os.environ.get("DISCO_REQUIRE", "").split(","):
            pytest.fail(f"{path} is missing")
        pytest.skip(f"{path} is missing")
    return path / file, [str(path / launcher[0]), *launcher[1:]]


def run(tmp_path, options, launcher=(), **environment):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM.format(options=options)))
    done = subprocess.run(
        [*launcher, sys.executable, program],
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


SUMS = [[0.0, 6.0, 12.0, 18.0]] * 3


def test_mpich_serves_a_session_without_a_launcher(tmp_path):
    path, _ = library(MPICH)
    assert (
        run(tmp_path, {"processes": 3, "backend": "mpi"}, DISCO_MPI_LIBRARY=str(path))
        == f"{SUMS} 3 False 1\n"
    )


@pytest.mark.parametrize("of", [MPICH, OPEN_MPI], ids=["mpich", "openmpi"])
def test_ranks_of_a_launcher_are_the_workers(tmp_path, of):
    path, launcher = library(of)
    # Rank 0 is the program.
    options = {"processes": 3, "backend": "mpi"}
    assert (
        run(tmp_path, options, [*launcher, "-n", "4"], DISCO_MPI_LIBRARY=str(path))
        == f"{SUMS} 3 False 1\n"
    )
    options["apart"] = False
    # Worker 0 is the program, which has its own hash seed unless it is set.
    said = run(
        tmp_path, options, [*launcher, "-n", "3"], DISCO_MPI_LIBRARY=str(path), PYTHONHASHSEED="1"
    )
    assert said == f"{SUMS} 3 True 1\n"


def test_tasks_that_torchrun_describes_are_the_workers(tmp_path):
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port.getsockname()[1])}
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(PROGRAM.format(options={"processes": 3, "backend": "local"}))
    )
    tasks = []
    for rank in range(3):
        variables = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": 3,
            "LOCAL_WORLD_SIZE": 3,
            "GROUP_RANK": 0,
        }
        variables = (
            {name: str(value) for name, value in variables.items()}
            | address
            | {"TORCHELASTIC_RUN_ID": "x"}
        )
        tasks.append(
            subprocess.Popen(
                [sys.executable, program],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **variables},
            )
        )
    said = [task.communicate(timeout=60) for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0, 0], said
    assert said[0][0] == f"{SUMS} 3 False 1\n" and said[1][0] == said[2][0] == "", said
