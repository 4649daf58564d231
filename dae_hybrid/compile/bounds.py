"""Turn the bounds of algebraic variables into guarded conditions of every mode that uses the variable.

A convex combination of two vector fields has a weight between 0 and 1; a contact force only pushes. Beyond the bounds
the equations of the mode still have a solution, but not one of the problem. Forward and adjoint analysis, differences
and the duality check would all agree on it.

A bound is violated if it is exceeded by more than the accuracy of the run, and not if it is only touched; see
`dae_hybrid.simulation.touching` for the rule.
"""

from __future__ import annotations

import copy
import math

import casadi as ca

from dae_hybrid.statement.declarations import Declaration, Mode, Transition, VariableBound
from dae_hybrid.statement.expressions import free_name
from dae_hybrid.statement.model import HybridModel
from dae_hybrid.statement.triggers import StateTrigger


def with_bounds(model: HybridModel) -> HybridModel:
    """Return the model with a condition, ending in a `BoundError`, for each finite bound in each mode that uses it."""
    bounded = [d for d in model.of_kind("algebraic") if d.bounds is not None]
    if not bounded:
        return model
    found = copy.copy(model)
    found.transitions = dict(model.transitions)
    for mode in model.modes.values():
        used = {s.__hash__() for s in ca.symvar(mode.everything)}
        for declared in bounded:
            if declared.symbol.__hash__() in used and declared.name not in mode.idle:
                for bound in _bounds(declared):
                    sign = ">=" if bound.is_lower else "<="
                    name = free_name(f"{mode.name}: {bound.label} {sign} {bound.limit:g}", found.transitions)
                    found.transitions[name] = _condition(name, mode, declared, bound)
    return found


def _bounds(declared: Declaration) -> list[VariableBound]:
    """The finite bounds of all entries of a variable."""
    if declared.bounds is None:
        return []
    found = []
    for i, (lower, upper) in enumerate(zip(*(side.tolist() for side in declared.bounds), strict=True)):
        label = declared.name if declared.size == 1 else f"{declared.name}[{i}]"
        found += [
            VariableBound(declared.name, i, label, lower, upper, is_lower)
            for is_lower, limit in ((True, lower), (False, upper))
            if math.isfinite(limit)
        ]
    return found


def _condition(name: str, mode: Mode, declared: Declaration, bound: VariableBound) -> Transition:
    value = declared.symbol[bound.entry]
    guard = value - bound.limit if bound.is_lower else bound.limit - value
    none: dict[str, ca.MX] = {}
    return Transition(
        name, (mode,), None, StateTrigger(guard), -1, "error", math.inf, none, none, ca.MX(0, 1), (), (), None, none,
        bound=bound,
    )  # fmt: skip
