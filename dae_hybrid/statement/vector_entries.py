"""Entries of vectors as keys of mappings: ``{v[3:]: 0.0, v[0]: 1.0}``, or by label, ``{"v[0]": 1.0}``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import casadi as ca

from dae_hybrid.errors import ModelError
from dae_hybrid.statement.declarations import Declaration

LABEL = re.compile(r"(.+)\[(\d+)\]", re.DOTALL)


def chosen(declarations: Mapping[str, Declaration], key: Any) -> tuple[Declaration, list[int]] | None:
    """Return the variable and the entries that a key names; None if it does not name entries of a vector."""
    if isinstance(key, str):
        match = None if key in declarations else LABEL.fullmatch(key)
        found = None if match is None else declarations.get(match.group(1))
        if match is None or found is None or not (entry := int(match.group(2))) < found.size:
            return None
        return found, [entry]
    if not isinstance(key, ca.MX) or key.op() != ca.OP_GETNONZEROS or key.n_dep() != 1 or not key.dep(0).is_symbolic():
        return None
    symbol = key.dep(0)
    found = declarations.get(symbol.name())
    if found is None or found.symbol.__hash__() != symbol.__hash__():
        return None
    numbers = ca.Function("entries", [symbol], [key])(ca.DM(range(found.size)))
    return found, [int(i) for i in ca.vec(numbers).nonzeros()]


def assembled(
    where: str, declared: Declaration, given: Mapping[int, ca.MX], rest: Callable[[int], ca.MX] | None
) -> ca.MX:
    """Return the value of a vector whose entries are given, as columns; `rest` gives the others.

    Raises
    ------
    ModelError
        Entries are missing, and there is no `rest`.
    """
    missing = [i for i in range(declared.size) if i not in given]
    if missing and rest is None:
        names = ", ".join(f"{declared.name}[{i}]" for i in missing)
        raise ModelError(
            f"{where}: {names} {'is' if len(missing) == 1 else 'are'} missing.",
            variables=[declared.name],
            remedy="Give every entry of a vector.",
        )
    columns = [given[i] if i in given or rest is None else rest(i) for i in range(declared.size)]
    return ca.vertcat(*columns) if columns[0].is_scalar() else ca.horzcat(*columns)
