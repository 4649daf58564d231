"""Compare gradients by forward analysis, adjoint analysis and finite differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from dae_hybrid.errors import AssumptionError, DaeHybridError, OptionError
from dae_hybrid.interface.api import RunOptions, adjoint_gradient, forward_sensitivity, simulate
from dae_hybrid.interface.parameter_sets import ParameterTable
from dae_hybrid.interface.registry import for_call
from dae_hybrid.interface.starts import for_call as start_for_call
from dae_hybrid.numeric_input import shown
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import Options
from dae_hybrid.statement.declarations import Mode
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.tables import align, html


@dataclass(frozen=True, eq=False)
class GradientCheck:
    """One gradient, computed by several methods.

    Attributes
    ----------
    functional : str
        Name of the functional.
    value : float or ndarray, shape (k,)
        Value of the functional.
    parameters : tuple of str
        Labels of the parameters.
    gradients : dict of ndarray, each of shape (n_wrt,) or (k, n_wrt)
        By method: ``"finite_difference"``, ``"forward"``, ``"adjoint"`` and, if applicable, ``"algorithm_1"``.
    same_events : bool
        Whether the perturbed runs of the finite differences had the same transitions; if not, the finite differences
        do not approximate the derivative.
    """

    functional: str
    value: Any
    parameters: tuple[str, ...]
    gradients: Mapping[str, Array]
    same_events: bool

    def difference(self, one: str, other: str) -> float:
        """Largest difference between two methods, relative to the largest component of each row."""
        a, b = (np.atleast_2d(self.gradients[way]) for way in (one, other))
        scale = np.maximum(np.abs(a).max(axis=1, initial=0.0), np.abs(b).max(axis=1, initial=0.0))
        return float((np.abs(a - b).max(axis=1, initial=0.0) / np.where(scale > 0, scale, 1.0)).max(initial=0.0))

    def __repr__(self) -> str:
        ways = {way: self.difference(way, "forward") for way in self.gradients if way != "forward"}
        said = ", ".join(f"{way} {difference:.1e}" for way, difference in ways.items())
        return f"<GradientCheck of '{self.functional}': differences from forward analysis: {said}>"

    def _repr_html_(self) -> str:
        return html(repr(self), self._rows())

    def _rows(self) -> list[list[str]]:
        ways = list(self.gradients)
        rows = [["", *ways, "adjoint - forward"]]
        table = {way: np.atleast_2d(values) for way, values in self.gradients.items()}
        k = len(table[ways[0]])
        for j in range(k):
            for i, name in enumerate(self.parameters):
                label = f"d{self.functional}{f'[{j}]' if k > 1 else ''}/d{name}"
                one, other = table["adjoint"][j, i], table["forward"][j, i]
                relative = abs(one - other) / (max(abs(one), abs(other)) or 1.0)
                rows.append([label, *(f"{table[way][j, i]: .12e}" for way in ways), f"{relative:.1e}"])
        rows.append(["relative to the largest", *(f"{self.difference(way, 'forward'):.1e}" for way in ways), ""])
        return rows

    def __str__(self) -> str:
        heading, _, *body = align(self._rows())
        lines = [heading, *body]
        if not self.same_events:
            lines.append(
                "The perturbed runs went through other transitions, or failed: the finite differences are not the "
                "derivative."
            )
        return "\n".join(lines)


def _relative_step(step: object, options: Mapping[str, Any]) -> float:
    if step is None:
        return Options.of(options).rtol ** (1 / 3)
    if isinstance(step, bool) or not isinstance(step, int | float | np.number) or not 0 < step < 1:
        raise OptionError(f"step must be a number between 0 and 1, got {shown(step)}.")
    return float(step)


def check_gradient(
    system: HybridSystem,
    t_span: Sequence[float],
    functional: str | None = None,
    *,
    wrt: str | Sequence[str] | None = None,
    parameters: Mapping[str, ArrayLike] | ArrayLike | None = None,
    x0: ParameterTable = None,
    start_mode: Mode | str | None = None,
    adapter: str = "sundials",
    step: float | None = None,
    **options: Unpack[RunOptions],
) -> GradientCheck:
    """Compare forward, adjoint and finite-difference gradients. Printing the result gives a table.

    Parameters
    ----------
    step : float, optional
        Relative step of the central differences (absolute for a parameter equal to zero). The default rtol^(1/3)
        balances truncation error against the integrator's error.

    Returns
    -------
    GradientCheck
        The gradients, and their differences.

    Raises
    ------
    OptionError
        `step` is not between 0 and 1.

    Notes
    -----
    Other parameters are those of `adjoint_gradient`. Algorithm 1 of Serban and Recuero is included if its assumptions
    hold.

    Examples
    --------
    >>> import dae_hybrid as dh
    >>> from dae_hybrid.problems import hybrid_ode
    >>> check = dh.check_gradient(hybrid_ode.system(), (0, 5), "G", rtol=1e-10, atol=1e-12)
    >>> check.difference("forward", "adjoint") < 1e-7
    True
    """
    system = start_for_call(system, x0, start_mode, wrt)
    system = for_call(system, adapter, options)  # one engine for all runs of the differences
    relative = _relative_step(step, options)
    name = system.functional_name(functional)
    common: dict[str, Any] = {"adapter": adapter, **options}
    indices = system.parameter_indices(wrt)
    forward = forward_sensitivity(system, t_span, wrt=wrt, parameters=parameters, **common)
    adjoint = adjoint_gradient(system, t_span, name, wrt=wrt, parameters=parameters, **common)
    p = system.parameter_vector(parameters)
    columns, same = [], True
    events = [e.transition for e in forward.events]
    for i in indices:
        h = relative * (abs(p[i]) or 1.0)
        sides = []
        for sign in (1, -1):
            shifted = p.copy()
            shifted[i] += sign * h
            try:
                run = simulate(system, t_span, parameters=shifted, **common)
            except DaeHybridError:  # no difference available
                same = False
                sides.append(np.full(np.size(forward.functionals[name]), np.nan))
                continue
            same = same and [e.transition for e in run.events] == events
            sides.append(np.atleast_1d(run.functionals[name]))
        columns.append((sides[0] - sides[1]) / (2 * h))
    k = np.size(forward.functionals[name])
    difference = np.array(columns).T if columns else np.zeros((k, 0))
    gradients = {
        "finite_difference": difference[0] if k == 1 else difference,
        "forward": forward.gradient[name],
        "adjoint": adjoint.gradient,
    }
    with suppress(AssumptionError):  # the column is then missing
        gradients["algorithm_1"] = adjoint_gradient(
            system, t_span, name, wrt=wrt, parameters=parameters, algorithm="serban-recuero", **common
        ).gradient
    return GradientCheck(name, forward.functionals[name], forward.parameters, gradients, same)
