"""Identity of a call: what two ensembles must have in common to share a store."""

from __future__ import annotations

import hashlib
import inspect
import json
import pickle
import platform
from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from dae_hybrid.codegen.compiler import compiler_version
from dae_hybrid.compile.origin import Origin
from dae_hybrid.errors import UnsupportedError
from dae_hybrid.interface.prepared_case import CheckedCall
from dae_hybrid.interface.starts import as_built
from dae_hybrid.numeric_input import shown
from dae_hybrid.statement.pickling import packed, unpacked

#: packages on which the last digit of a result depends
PACKAGES = ("dae_hybrid", "casadi", "sundials4py", "numpy", "scipy")


def versions() -> dict[str, str]:
    """Versions on which the last digit of a result depends."""
    return {"machine": platform.machine()} | {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str:
    try:
        return version(name.replace("_", "-"))
    except PackageNotFoundError:
        return "unknown"


def identity(case: CheckedCall, strict: bool, duality: bool | float) -> dict[str, Any]:
    """Return the facts on which the results of a call depend, as values that JSON can hold.

    Raises
    ------
    UnsupportedError
        The model calls functions outside of its expressions, or an option is a function that cannot be compared.
    """
    system, setup = case.system, case.setup
    original, start = as_built(system)
    if not isinstance(original.remake, Origin):
        raise UnsupportedError(f"Model '{system.name}' cannot be compared with that of a store.")
    _, (content, expressions, build) = original.remake()
    facts: dict[str, Any] = {
        "model": system.name,
        "parameters": system.parameters.labels(),
        "nominal values": system.nominal.tolist(),
        "functionals": list(case.names),
        "modes": [mode.name for mode in system.modes],
        "transitions": [transition.name for transition in system.transitions],
        "equations": _statement_digest(content, expressions),
        "build options": {name: shown(value) for name, value in build.items() if name != "native"},
        "compiled": system.native,
        "compiler": compiler_version() if system.native else None,
        "t_span": list(setup.span),
        "t_eval": None if setup.t_eval is None else setup.t_eval.tolist(),
        "x0": [] if case.starts is None else list(case.starts.layout.labels()),
        "gradient": case.analysis,
        "wrt": [system.parameters.labels()[i] for i in case.indices],
        "adapter": setup.integrator.name,
        "strict": strict,
        "duality": duality,
    }
    if original is not system:
        facts["start"] = list(start)
    options = {f"option {f.name}": _plain(f.name, getattr(setup.options, f.name)) for f in fields(setup.options)}
    facts |= options | {f"version of {name}": text for name, text in versions().items()}
    restored: dict[str, Any] = json.loads(json.dumps(facts))
    return restored


def differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describe the facts that differ."""
    return [
        f"{name}: {_difference(stored.get(name), now.get(name))}"
        for name in {**stored, **now}
        if json.dumps(stored.get(name)) != json.dumps(now.get(name))  # 1.0 and True are equal in Python
    ]


def _difference(stored: object, now: object) -> str:
    if isinstance(stored, list) and isinstance(now, list):
        if len(stored) != len(now):
            return f"stored {len(stored)} entries, now {len(now)}"
        i = next(i for i, pair in enumerate(zip(stored, now, strict=True)) if pair[0] != pair[1])
        return f"entry {i}: stored {shown(stored[i])}, now {shown(now[i])}"
    return f"stored {shown(stored)}, now {shown(now)}"


def _statement_digest(content: bytes, expressions: str) -> str:
    """Digest of a statement; that of a pickled and restored statement is the same."""
    again = packed(unpacked(content, expressions))
    return hashlib.sha256(again[0] + again[1].encode()).hexdigest()[:16]


def _plain(name: str, value: object) -> Any:
    """Return a value of an option as JSON can hold it; a function as the digest of its pickle and source."""
    if isinstance(value, Mapping):
        return {str(key): _plain(name, own) for key, own in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    try:
        content = pickle.dumps(value)
        content += inspect.getsource(value).encode() if inspect.isfunction(value) else b""
    except Exception as reason:
        raise UnsupportedError(
            f"The option {name}={shown(value)} cannot be compared with that of a store: {reason}.",
            remedy="Pass a function of a module, not one that is defined within another; or omit store=.",
        ) from reason
    return hashlib.sha256(content).hexdigest()[:16]
