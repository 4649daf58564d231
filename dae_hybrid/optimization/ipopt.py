"""IPOPT through CasADi, with exact first derivatives and a limited-memory Hessian."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import casadi as ca
import numpy as np

from dae_hybrid.errors import OptionError
from dae_hybrid.numerics.arrays import Array

#: options of CasADi: IPOPT shortens the step where a function is NaN, without a message for each
QUIET: dict[str, Any] = {
    "ipopt.hessian_approximation": "limited-memory", "ipopt.print_level": 0, "ipopt.sb": "yes", "print_time": False,
    "show_eval_warnings": False,
}  # fmt: skip


class Functions(NamedTuple):
    """Objective and constraints (1 + m,) at x, and their derivatives (1 + m, n); NaN where a run fails."""

    values: Callable[[Array], Array]
    derivatives: Callable[[Array], Array]


class Stalled(Exception):
    """The iterates do not move any more; the argument is the last."""


class IpoptResult(NamedTuple):
    """Final point and statistics."""

    x: Array
    stats: Mapping[str, Any]


class _Guarded:
    """Calls of Python from CasADi, which swallows exceptions: the first one is kept, and ends all calls after it."""

    def __init__(self) -> None:
        self.raised: BaseException | None = None

    def __call__(self, function: Callable[[Array], Array], x: Any, shape: tuple[int, ...]) -> Array:
        if self.raised is None:
            try:
                return function(np.array(x, dtype=float).ravel()).reshape(shape)
            except BaseException as error:
                self.raised = error
        return np.full(shape, np.nan)


class _Callback(ca.Callback):
    """A function of x (n,) with m outputs, and its Jacobian."""

    def __init__(self, functions: Functions, n: int, m: int, guard: _Guarded, *, is_jacobian: bool = False) -> None:
        ca.Callback.__init__(self)
        self._functions, self._n, self._m, self._guard, self._is_jacobian = functions, n, m, guard, is_jacobian
        self._jacobian: _Callback | None = None
        self.construct("jac_run" if is_jacobian else "run", {})

    def get_n_in(self) -> int:
        return 2 if self._is_jacobian else 1

    def get_n_out(self) -> int:
        return 1

    def get_sparsity_in(self, i: int) -> Any:
        return ca.Sparsity.dense(self._m if i else self._n, 1)

    def get_sparsity_out(self, i: int) -> Any:  # noqa: ARG002 - there is one output
        return ca.Sparsity.dense(self._m, self._n if self._is_jacobian else 1)

    def eval(self, inputs: Any) -> list[Any]:
        function = self._functions.derivatives if self._is_jacobian else self._functions.values
        return [ca.DM(self._guard(function, inputs[0], (self._m, self._n if self._is_jacobian else 1)))]

    def has_jacobian(self) -> bool:
        return not self._is_jacobian

    def get_jacobian(self, *_: Any) -> Any:
        self._jacobian = _Callback(self._functions, self._n, self._m, self._guard, is_jacobian=True)
        return self._jacobian


def ipopt(
    functions: Functions,
    x0: Array,
    bounds: tuple[Array, Array],
    limits: tuple[Array, Array],
    options: Mapping[str, Any],
    differences: Array,
) -> IpoptResult:
    """Minimise the first function subject to bounds of x, limits (m,) of the others and ``differences @ x <= 0``.

    Raises
    ------
    OptionError
        IPOPT does not accept an option, or CasADi cannot load it.
    """
    n, m, guard = x0.size, limits[0].size, _Guarded()
    run, x = _Callback(functions, n, 1 + m, guard), ca.MX.sym("x", n)
    found = run(x)
    given = {name if "." in name else f"ipopt.{name}": value for name, value in options.items()}
    constrained = ca.vertcat(*([found[1:]] if m else []), ca.DM(differences) @ x)
    try:
        solver = ca.nlpsol("solver", "ipopt", {"x": x, "f": found[0], "g": constrained}, QUIET | given)
    except RuntimeError as error:
        raise OptionError(f"IPOPT cannot be set up with the options {dict(options)}: {error}") from error
    k = len(differences)
    lower, upper = np.append(limits[0], np.full(k, -np.inf)), np.append(limits[1], np.zeros(k))
    solution = solver(x0=x0, lbx=bounds[0], ubx=bounds[1], lbg=lower, ubg=upper)
    if isinstance(guard.raised, Stalled):
        stats = solver.stats() | {"success": False, "return_status": "No progress: the iterates do not move any more"}
        return IpoptResult(guard.raised.args[0], stats)
    if guard.raised is not None:
        raise guard.raised
    return IpoptResult(np.array(solution["x"], dtype=float).ravel(), solver.stats())
