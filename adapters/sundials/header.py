"""The C text of the loops, and the constants and structs that it declares."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from dae_hybrid.codegen import sparse_lu
from dae_hybrid.codegen.c_declarations import declarations
from dae_hybrid.interface.native_constants import as_c

#: parts of the C text, joined in this order
PARTS = (
    "declarations.h", "model.c", "callbacks.c", "linear.c", "staggered.c", "runge_kutta.c", "guards.c",
    "steps.c", "arrival.c", "resting_guards.c", "event_loop.c", "sweep.c", "stiffness.c", "native_run.c",
    "conditions.c", "batch.c",
)  # fmt: skip


def source() -> str:
    """Return the C text: the generated constants, the sparse factorisation and the parts."""
    return "\n".join((as_c(), sparse_lu.source(), *map(_text, PARTS)))


def _text(part: str) -> str:
    return files("dae_hybrid.adapters.sundials").joinpath("native", part).read_text()


CONSTANTS: Mapping[str, Any]
STRUCTS: Mapping[str, Any]
CONSTANTS, STRUCTS = declarations(as_c() + _text(PARTS[0]))
