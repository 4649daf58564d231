"""Convert expressions in a model's named symbols to functions of flat vectors.

Every function of a mode takes ``(t, x, m, p)`` with ``x = (y, z)``. Derivative symbols ``der(y)`` are
replaced by the mode's right-hand side. Expressions are expanded to CasADi SX (fast, flat) if possible, and
stay MX if they contain operations that cannot be expanded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.codegen.casadi_tools import dense, expanded, is_vectorised, kind_for
from dae_hybrid.compile.powers import with_powers
from dae_hybrid.errors import ModelError
from dae_hybrid.layout import Layout
from dae_hybrid.statement.declarations import Declaration, Mode
from dae_hybrid.statement.discontinuities import without_marks
from dae_hybrid.statement.model import HybridModel


def moving_symbols(model: HybridModel, *, inputs: bool = False) -> set[int]:
    """Hashes of the symbols that change between transitions: time, variables and their rates, `inputs` if wanted."""
    declared = model.declarations.values()
    moving = [d for d in declared if d.kind in ("differential", "algebraic") or (inputs and d.signal is not None)]
    return {symbol.__hash__() for symbol in (model.time, *(d.symbol for d in moving), *model.rates.values())}


@dataclass(frozen=True)
class Flat:
    """Flat symbols of one type (SX or MX) for one mode.

    The last entries of p may be `numbers`, in which modes that share their functions differ; see
    `dae_hybrid.compile.families`.
    """

    kind: Any
    t: Any
    x: Any
    m: Any
    p: Any
    numbers: int = field(default=0, kw_only=True)

    @property
    def point(self) -> tuple[Any, Any, Any, Any]:
        """(t, x, m, p)."""
        return self.t, self.x, self.m, self.p

    @property
    def parameters(self) -> Any:
        """p without the numbers."""
        return self.p[: self.p.numel() - self.numbers, :] if self.numbers else self.p

    @cached_property
    def u(self) -> Any:
        """(x, m, p, t) as one column, without the numbers."""
        return ca.vertcat(self.x, self.m, self.parameters, self.t)


def symbols_for(functions: Sequence[ca.Function], n: int, nm: int, np_: int, suffix: str = "") -> Flat:
    """Create symbols of the kind that suits functions of (t, x, m, p, ...); entries of p beyond `np_` are numbers."""
    kind, size = kind_for(functions), functions[0].size1_in(3)
    symbols = (kind.sym(name + suffix, s) for name, s in zip("txmp", (1, n, nm, size), strict=True))
    return Flat(kind, *symbols, numbers=size - np_)


class ModeLowering:
    """Lowers the expressions of one mode, and determines which variables the mode has.

    A derivative that appears in a residual becomes an algebraic variable ``der(y)`` with y' = der(y). The implicit
    equations then read 0 = F(der(y), y, z), which is Hessenberg index 1 with [F_y' | F_z] in the role of k_z. Their
    adjoint is SR eq. 12 with L = -F_y'^T lambda as an additional state; its index remains one.
    """

    def __init__(self, model: HybridModel, mode: Mode, numbers: ca.MX | None = None) -> None:
        self.model = model
        self.mode = mode
        self.numbers = [] if numbers is None else [numbers]  # symbols that follow the parameters
        used = {s.__hash__() for s in ca.symvar(mode.everything)}
        self.implicit = [
            d for d in model.of_kind("differential") if d.name not in mode.ode and self._rate_hash(d) in used
        ]
        differential = [d for d in model.of_kind("differential") if d.name in mode.ode or d in self.implicit]
        rates = [
            Declaration(
                f"der({d.name})",
                "algebraic",
                d.size,
                model.rates[d.name],
                np.zeros(d.size),
                unit=f"{d.unit}/s" * bool(d.unit),
            )
            for d in self.implicit
        ]
        algebraic = [*rates, *(d for d in model.of_kind("algebraic") if d.symbol.__hash__() in used)]
        self.variables: list[Declaration] = [*differential, *algebraic]
        self.differential = Layout.of((d.name, d.size) for d in differential)
        self.algebraic = Layout.of((d.name, d.size) for d in algebraic)
        self.memory = model.of_kind("memory")
        self.parameters = model.of_kind("parameter")
        self.n = self.differential.size + self.algebraic.size
        behind = [*(d.symbol for d in self.parameters), *self.numbers]
        own = ([d.symbol for d in group] for group in (self.variables, self.memory))
        self._groups = [[model.time], *own, behind]  # symbols of t, x, m and p
        self._point = [_column(group) for group in self._groups]
        held, by = [d.symbol for d in (*self.memory, *self.parameters)], [d.symbol for d in self.variables]
        self.vectorised = is_vectorised(mode.everything, held, by)

    def _rate_hash(self, declared: Declaration) -> int | None:
        rate = self.model.rates.get(declared.name)
        return None if rate is None else int(rate.__hash__())

    @property
    def guess(self) -> list[float]:
        """Initial guess of Newton's method for the algebraic variables."""
        return [float(v) for d in self.variables if d.kind == "algebraic" for v in d.start]

    def flow(self) -> list[tuple[str, ca.MX]]:
        """Rates of the differential variables, each with a description for errors."""
        where = f"in mode '{self.mode.name}'"
        rates = {d.name: self.model.rates[d.name] for d in self.implicit}
        return [
            (f"ode of '{name}' {where}", self.mode.ode[name] if name in self.mode.ode else rates[name])
            for name in self.differential.names
        ]

    def lower(self, name: str, expressions: Sequence[tuple[str, ca.MX]], extra: Sequence[ca.MX] = ()) -> ca.Function:
        """Return a function of (t, x, m, p, *extra) for expressions, each given with a description for errors."""
        rates = [self.model.rates[key] for key in self.mode.ode if key in self.model.rates]
        flows = [self.mode.ode[key] for key in self.mode.ode if key in self.model.rates]
        values = [e for _, e in expressions]
        if rates:
            values = ca.substitute(values, rates, flows)
        values = in_mode(self.model, self.mode.name, values)
        inputs = [*(symbol for group in self._groups for symbol in group), *extra]
        try:
            function = ca.Function(name, [*self._point, *extra], [dense(value) for value in values])
        except RuntimeError:
            whats = [what for what, _ in expressions]
            self._check_symbols(list(zip(whats, values, strict=True)), inputs)
            raise
        if not self.vectorised and (function := expanded(with_powers(function))).is_a("SXFunction"):
            return function
        function = with_powers(without_marks(ca.Function(name, inputs, values)))
        point = [ca.MX.sym(key, column.numel()) for key, column in zip("txmp", self._point, strict=True)]
        sizes = [[symbol.numel() for symbol in group] for group in self._groups]
        named = [piece for column, own in zip(point, sizes, strict=True) for piece in split(column, own)]
        more = [ca.MX.sym(f"extra{i}", s.numel()) for i, s in enumerate(extra)]
        results = function.call([*named, *more])
        return ca.Function(name, [*point, *more], [dense(r) for r in results])

    def _check_symbols(self, expressions: Sequence[tuple[str, ca.MX]], inputs: Sequence[ca.MX]) -> None:
        known = {s.__hash__() for s in inputs}
        own = {d.symbol.__hash__(): d for d in self.model.declarations.values()}
        own_rates = {s.__hash__() for s in (*self.model.rates.values(), *self.model.posts.values())}
        for what, expression in expressions:
            for symbol in ca.symvar(expression):
                key = symbol.__hash__()
                if key in known:
                    continue
                if key in own:
                    declared = own[key]
                    if declared.kind == "unknown":
                        raise ModelError(f"{what} cannot use the unknown '{declared.name}' here.", mode=self.mode.name)
                    missing = "ode= or residual=" if declared.kind == "differential" else "algebraic="
                    raise ModelError(
                        f"{what} uses '{declared.name}', which has no equation in this mode.",
                        mode=self.mode.name,
                        variables=[declared.name],
                        remedy=f"Give it one in {missing} of the mode, or leave it out of the expression.",
                    )
                if key in own_rates:
                    raise ModelError(f"{what} cannot use {symbol.name()} here.", mode=self.mode.name)
                raise ModelError(
                    f"{what} uses the symbol '{symbol.name()}', which model '{self.model.name}' does not declare.",
                    mode=self.mode.name,
                    remedy="Declare it with m.parameter, m.differential, m.algebraic or m.memory.",
                )


def in_mode(model: HybridModel, mode: str, values: list[ca.MX]) -> list[ca.MX]:
    """Return expressions with the indicators of modes replaced by 1 or 0."""
    if not model.indicators:
        return values
    is_active = [ca.MX(float(name == mode)) for name in model.indicators]
    found: list[ca.MX] = ca.substitute(values, list(model.indicators.values()), is_active)
    return found


def _column(symbols: Sequence[ca.MX]) -> ca.MX:
    """Symbols one below the other."""
    if len(symbols) == 1:
        return symbols[0]
    return ca.vertcat(*symbols) if symbols else ca.MX(0, 1)


def split(flat: Any, sizes: Sequence[int]) -> list[Any]:
    """Split a column into pieces of the given sizes."""
    if len(sizes) < 2:
        return [flat] * len(sizes)
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + size)
    return list(ca.vertsplit(flat, offsets))
