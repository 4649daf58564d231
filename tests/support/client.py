"""Client of an ensemble in a process of its own: ``python client.py STORE [EXECUTOR]``; prints a line per report."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import dae_hybrid as dh

#: the call: 120 runs of some 3 ms each, so that reports come before the end
COUNT = 120
CALL: dict[str, Any] = {
    "parameters": {"k": np.linspace(0.5, 2.0, COUNT)}, "gradient": "forward", "t_eval": [0.5, 1.0], "max_step": 2e-4,
    "chunk": 3,
}  # fmt: skip


def decay() -> dh.HybridSystem:
    """Return the system x' = -k x."""
    m = dh.HybridModel("decay")
    k, x = m.parameter("k", 1.0), m.differential("x")
    m.initial(m.mode("run", ode={x: -k * x}), {x: 1.0})
    m.functional("G", terminal=x)
    return m.build()


def direct(system: dh.HybridSystem) -> dh.Batch:
    """Return the runs of the call as a batch."""
    return dh.batch(system, (0, 1), **{name: value for name, value in CALL.items() if name != "chunk"})


def tell(what: object) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    found = dh.ensemble(
        decay(), (0, 1), store=sys.argv[1], executor=sys.argv[2], workers=1,
        progress=lambda state: tell(state.done), **CALL,
    )  # fmt: skip
    tell("complete" if found.complete else "incomplete")
