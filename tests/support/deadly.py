"""A function of a user's that ends its process: parameters k < 0 of `decay` kill their worker."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from numpy.typing import ArrayLike
from scipy.sparse import csc_array
from scipy.sparse.linalg import splu

import dae_hybrid as dh

#: options with which runs of `decay` call `preconditioner`
OPTIONS: dict[str, Any] = {"method": "bdf", "linear_solver": "krylov", "rtol": 1e-6}


def decay() -> dh.HybridSystem:
    """Return the system x' = -k x, y' = x - y with the functional y(end)."""
    m = dh.HybridModel("decay")
    k, x, y = m.parameter("k", 1.0), m.differential("x"), m.differential("y")
    m.initial(m.mode("run", ode={x: -k * x, y: x - y}), {x: 1.0, y: 0.0})
    m.functional("G", terminal=y)
    return m.build()


def preconditioner(matrix: csc_array) -> Callable[[Any], ArrayLike]:
    """Factorise Newton's matrix 1 + h k; kill the process if k < 0."""
    if matrix[0, 0] < 1.0:
        os.kill(os.getpid(), signal.SIGKILL)
    return splu(matrix).solve


def unlicensed() -> None:
    """Initialise a worker in vain."""
    raise RuntimeError("no licence")


def noisy() -> str:
    """Write to the standard output, by Python and past it."""
    sys.stdout.write("by Python\n")
    sys.stdout.flush()
    os.write(1, b"past Python\n")
    return "result"
