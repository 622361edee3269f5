"""The back end of torch.distributed, beside gloo: programs of several ranks, each a process."""

import ast
import json
import os
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
PROGRAMS = Path(__file__).parent / "torch"
IS_NEW = int(torch.__version__.split(".")[0]) >= 2


def started(size, program, *arguments):
    """The ranks of a program."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = []
    for rank in range(size):
        environment = {name: str(value) for name, value in {**common, "RANK": rank}.items()}
        command = [sys.executable, PROGRAMS / program, *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        variables = os.environ | environment | {"OMP_NUM_THREADS": "1"}
        ranks.append(subprocess.Popen(command, env=variables, **pipes))
    return ranks


def outputs(size, program, *arguments):
    """What the ranks have printed."""
    found = []
    for rank in started(size, program, *arguments):
        out, err = rank.communicate(timeout=300)
        assert rank.returncode == 0, err
        found.append(out)
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", [2, 3])
def test_random_operations_give_the_bits_of_gloo(size):
    for seed in range(2):
        assert outputs(size, "mix.py", 1000, seed) == ["equal\n"] * size


@pytest.mark.skipif(not IS_NEW, reason="FSDP2 and DTensor need torch 2")
@pytest.mark.timeout(600)
def test_trainings_have_the_losses_of_gloo():
    ours, theirs = (outputs(2, "training.py", backend)[0] for backend in ("disco", "gloo"))
    ours, theirs = map(ast.literal_eval, (ours, theirs))
    assert ours.keys() == theirs.keys() == {"DDP", "FSDP2", "tensor parallel", "DTensor"}
    for name, losses in ours.items():
        assert losses == pytest.approx(theirs[name], rel=1e-6), name


@pytest.mark.parametrize("how", ["kill", "stop", "absent", "absent from a group"])
@pytest.mark.parametrize("who", [0, 2])
def test_each_other_rank_names_the_one_that_is_missing(how, who):
    ranks = started(3, "failure.py", how, who)
    others = [rank for rank in range(3) if rank != who]
    try:
        found = [json.loads(ranks[rank].communicate(timeout=60)[0]) for rank in others]
    finally:
        ranks[who].kill()
        ranks[who].communicate()
    assert [row["rank"] for row in found] == others
    for row in found:
        if how == "kill":
            lost = "the controller lost" if who == 0 else f"worker {who} lost"
            assert lost in row["error"], row
        else:
            assert f"rank {who} has not arrived" in row["error"] and "all_reduce" in row["error"], (
                row
            )


def test_ranks_that_all_raise_an_exception_end_with_it():
    for _ in range(5):
        for rank in started(2, "failure.py", "raise", 0):
            _, err = rank.communicate(timeout=60)
            assert rank.returncode == 1 and "ValueError: as all ranks do" in err, err


@pytest.mark.skipif(not IS_NEW, reason="the table is of torch 2")
@pytest.mark.timeout(1800)
def test_torchs_own_tests_pass_that_the_table_calls_passed():
    table = tomllib.loads((Path(__file__).parents[1] / "torch_tests.toml").read_text())
    names = [f"test_{name}" for results in table.values() for name in results["passed"]]
    command = [sys.executable, PROGRAMS / "suite.py", "disco", *names]
    variables = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=1700)
    assert done.returncode == 0, done.stderr
    errors = json.loads(done.stdout.splitlines()[-1])
    assert list(errors) == names
    assert {name: error for name, error in errors.items() if error} == {}


def test_groups_are_made_used_and_destroyed_one_after_the_other():
    assert outputs(3, "groups.py") == ["ended\n"] * 3
