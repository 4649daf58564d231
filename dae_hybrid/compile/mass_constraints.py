"""Find constraints on the states among equations without rates that contain algebraic variables.

The states of a singular mass matrix are combinations of variables, S z = s, and S z may be what other equations
determine, as in a loop of capacitors and voltage sources: the values of z cancel there, and the index is 2.
"""

from __future__ import annotations

from collections.abc import Sequence

import casadi as ca
import numpy as np

from dae_hybrid.codegen.casadi_tools import expanded
from dae_hybrid.compile.mass_samples import is_regular
from dae_hybrid.compile.mass_structure import CANCELLATION, Weights, constant_dependencies
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.statement.discontinuities import instructions, unsmooth
from dae_hybrid.statement.discontinuous_nodes import ALL


def constraints(
    equations: Sequence[ca.MX], values: Sequence[ca.MX], z: Sequence[ca.MX], parameters: dict[int, Array]
) -> dict[int, tuple[Weights, ca.MX]]:
    """Combinations of equations from which z cancels, given the values of the states.

    Parameters
    ----------
    equations : sequence of MX
        Equations without rates.
    values : sequence of MX
        ``S z - s`` of each state.
    z : sequence of MX
        The algebraic variables.
    parameters : dict
        Nominal values of the parameters by hash of their symbols.

    Returns
    -------
    dict
        By index of an equation that the constraint can replace: the factors of the equations, and the constraint.
    """
    every, unknowns = [*equations, *values], ca.vertcat(*z)
    by_z = ca.jacobian(ca.vertcat(*every), unknowns)
    if by_z.is_square() and is_regular(by_z, parameters):
        return {}
    linear, factors = _linear(every, unknowns)
    own, states = [i for i in linear if i < len(equations)], [i for i in linear if i >= len(equations)]
    if not own:
        return {}
    rows, of_states = factors[: len(own)], factors[len(own) :]
    shares = np.linalg.lstsq(of_states.T, rows.T, rcond=None)[0].T  # of the states in the rows
    rest = rows - shares @ of_states
    rest[np.abs(rest) <= CANCELLATION * np.abs(rows).max(initial=0.0)] = 0.0
    nothing, found = [ca.DM.zeros(*s.shape) for s in z], {}
    for k, weights in (constant_dependencies(rest[None]) or {}).items():
        terms = {own[i]: float(w) for i, w in enumerate(weights) if w}
        of_values = zip(states, np.round(weights @ shares, 12).tolist(), strict=True)
        total = sum(w * equations[i] for i, w in terms.items()) - sum(w * every[i] for i, w in of_values if w)
        found[own[k]] = terms, ca.graph_substitute([total], list(z), nothing)[0]
    return found


def _linear(equations: Sequence[ca.MX], z: ca.MX) -> tuple[list[int], Array]:
    """Equations that are linear in z with constant factors, and these factors."""
    bent = {
        i for i, (e,) in unsmooth({i: [e] for i, e in enumerate(equations)}).items()
        if any(ca.depends_on(node, z) for _, node in instructions(ca.symvar(e), [e], ALL | {ca.OP_CALL}))
    }  # fmt: skip
    tried = [i for i in range(len(equations)) if i not in bent]
    by_z = ca.jacobian(ca.vertcat(*(equations[i] for i in tried)), z)
    function = expanded(ca.Function("by_z", ca.symvar(by_z), [by_z]))
    if not function.is_a("SXFunction"):
        return [], np.zeros((0, z.numel()))
    entries = ca.sparsify(ca.vertcat(*function.call(function.sx_in())))
    varying = {row for k, row in enumerate(entries.sparsity().row()) if not entries.nz[k].is_constant()}
    linear = [k for k in range(len(tried)) if k not in varying]
    return [tried[k] for k in linear], np.array(ca.evalf(entries[linear, :]).full())
