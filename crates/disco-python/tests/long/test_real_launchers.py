"""Slurm's srun, by `testing/scripts/slurm.sh`, and torchrun of Debian's torch."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SLURM = Path(__file__).parents[4] / "testing/scripts/slurm.sh"
PROGRAM = """
import disco, socket
import numpy as np

@disco.function
def total(ctx):
    return ctx.all_reduce(np.arange(4.0) * (ctx.worker + 1)).tolist(), socket.gethostname()

disco.init()
with disco.session({options}) as s:
    found = total(s).get_all()
    print([sums for sums, _ in found], len({{host for _, host in found}}))
"""


def run(tmp_path, options, launcher, **environment):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM.format(options=options)))
    done = subprocess.run(
        [*launcher, program],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


def test_tasks_of_srun_are_nodes(tmp_path):
    if not all(Path("/usr/sbin", daemon).exists() for daemon in ("slurmctld", "munged")):
        pytest.skip(f"no Slurm here; {SLURM} names the packages")
    srun = [SLURM, "timeout", "60", "srun", "--nodes", "2", "--ntasks", "2", sys.executable]
    said = run(
        tmp_path, "nodes=2, per_node=2", srun, DISCO_TOKEN="8d15c6f5e0a94c3f8d15c6f5e0a94c3f"
    )
    assert said == f"{[[0.0, 10.0, 20.0, 30.0]] * 4} 2\n"


def test_tasks_of_torchrun_are_workers(tmp_path):
    pytest.importorskip("torch")
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "3",
    ]
    # With Python 3.11, this version of torchrun fails without them.
    logs = ["--redirects", "1", "--tee", "1", "--log_dir", tmp_path / "logs"]
    said = run(tmp_path, "processes=3", [*torchrun, *logs])
    assert f"[default0]:{[[0.0, 6.0, 12.0, 18.0]] * 3} 1\n" in said
