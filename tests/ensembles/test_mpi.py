"""Ensembles on the ranks of an MPI job."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import client
import mpi4py  # noqa: F401  # of the jobs
import numpy as np
import pytest
import zarr  # noqa: F401  # of their stores

import dae_hybrid as dh

MPIEXEC = Path(sysconfig.get_path("scripts")) / "mpiexec"
if not MPIEXEC.exists():
    raise ModuleNotFoundError("There is no mpiexec beside Python", name="mpich")

JOB = """
import os, signal, sys
import client
import dae_hybrid as dh

def end():
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    from mpi4py.futures import MPIPoolExecutor

    def tell(state):
        if sys.argv[2] == "kill" and state.done:
            pool.submit(end)

    with MPIPoolExecutor() as pool:
        found = dh.ensemble(
            client.decay(), (0, 1), store=sys.argv[1], executor=pool, workers=1, progress=tell, **client.CALL
        )
    print("complete" if found.complete else "incomplete", flush=True)
"""


def run(folder: Path, what: str) -> subprocess.CompletedProcess[str]:
    """Run a client on rank 0 and its worker on rank 1."""
    job = folder / "job.py"
    job.write_text(JOB)
    command = [MPIEXEC, "-n", "2", sys.executable, "-m", "mpi4py.futures", job, folder / "store", what]
    environment = {"PYTHONPATH": str(Path(client.__file__).parent), "PATH": f"{MPIEXEC.parent}:/usr/bin:/bin"}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)


@pytest.mark.operation
def test_a_job_that_ends_with_a_rank_loses_nothing_that_was_done(tmp_path: Path) -> None:
    assert run(tmp_path, "kill").returncode != 0
    done = dh.Ensemble.open(tmp_path / "store").done
    assert done.any()
    assert not done.all()
    again = run(tmp_path, "whole")
    assert again.stdout.splitlines() == ["complete"], again.stderr
    found = dh.Ensemble.open(tmp_path / "store")
    direct = client.direct(client.decay())
    np.testing.assert_array_equal(found.values, direct.values)
    np.testing.assert_array_equal(found.gradients, direct.gradients)
