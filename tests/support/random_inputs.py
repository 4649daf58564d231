"""Random systems with peaks, levels, other starts, lookup tables and mass matrices.

A system of `random_systems` gets statements of one kind; seed mod the number of kinds chooses it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import casadi as ca
import numpy as np
from random_events import WithStatements, extended
from random_statements import RandomMode, Restatement, Scope
from random_systems import FORMS, Draw

import dae_hybrid as dh

EXTREMA = ("maximum", "minimum", "maximum_abs", "time_of_maximum", "time_of_minimum", "time_of_maximum_abs")


class InputSystem(WithStatements):
    """A random system with a peak, another start, a lookup table or a mass matrix."""

    kinds = MappingProxyType({
        "extremum": "peaks", "level": "peaks", "start": "inputs", "table": "inputs", "mass matrix": "inputs"
    })  # fmt: skip

    # -- kinds ----------------------------------------------------------------------------------------

    def _extremum(self, m: dh.HybridModel, rng: np.random.Generator) -> None:
        part = EXTREMA[int(rng.integers(len(EXTREMA)))]
        signal = self._signal(m, rng)
        if rng.random() < 0.3:
            signal = ca.vertcat(signal, self._signal(m, rng))
        m.functional("peak", **{part: signal})

    def _level(self, m: dh.HybridModel, rng: np.random.Generator) -> None:
        signal, bound = self._signal(m, rng), m.parameter("bound", self._number(rng) / 2)
        parts: list[dict[str, Any]] = [
            {"time_above": (signal, bound)},
            {"exceedance": (signal, bound)},
            {"rise_time": (signal, bound, bound + 0.3)},
            {"settling_time": (signal, bound, 0.2)},
            {"overshoot": (signal, bound - 1, bound)},
        ]
        m.functional("level", **parts[int(rng.integers(len(parts)))])

    def _start(self, m: dh.HybridModel, rng: np.random.Generator) -> None:
        """Without effect on the statement: `system` starts elsewhere."""

    def _table(self, m: dh.HybridModel, rng: np.random.Generator) -> None:
        x, n = self._x(m), int(rng.integers(4, 8))
        grid = np.sort(rng.uniform(-1.5, 1.5, n).round(3)) + 0.1 * np.arange(n)
        kind, outside = ("cubic", "linear")[int(rng.integers(2))], ("hold", "linear")[int(rng.integers(2))]
        if rng.random() < 0.5:
            curve = m.table("curve", grid, m.parameter("ordinates", rng.uniform(-1, 1, n)), kind=kind, outside=outside)
            self._drive(m, curve(x))
            return
        other = np.linspace(-1.2, 1.2, int(rng.integers(4, 6)))
        values = m.parameter("level", self._number(rng)) * rng.uniform(-1, 1, (n, other.size))
        self._drive(m, m.table("map", (grid, other), values, kind=kind, outside=outside)(x, ca.sin(2 * m.time)))

    def _mass_matrix(self, m: dh.HybridModel, rng: np.random.Generator) -> None:
        """Without effect on what was declared: `_equations` and `_symbols` state the masses."""

    # -- other starts ---------------------------------------------------------------------------------

    def system(self, *, native: bool, how: Restatement | None = None) -> dh.HybridSystem:
        """Build the system, and start it elsewhere."""
        built = super().system(native=native, how=how)
        if self.kind != "start":
            return built
        rng = np.random.default_rng([2027, self.seed])
        first = next(iter(self.modes))
        mode = first if self.equations else list(self.modes)[int(rng.integers(len(self.modes)))]
        names = self.modes[mode].states if mode != first else [n for n in self.initial if rng.random() < 0.7]
        x0 = {name: rng.uniform(-0.8, 0.8, self.states[name]).round(3) for name in names}
        return dh.started(built, x0=x0, start_mode=mode, wrt=[f"{name}(0)" for name in names])

    # -- masses ---------------------------------------------------------------------------------------

    def _symbols(self, m: dh.HybridModel, s: Scope) -> None:
        if self.kind == "mass matrix":  # all variables of a mode with a mass matrix are declared differential
            declared = self.states, self.algebraics
            self.states, self.algebraics = self.states | dict.fromkeys(self.algebraics, 1), []
            super()._symbols(m, s)
            self.states, self.algebraics = declared
        else:
            super()._symbols(m, s)

    def _equations(self, mode: RandomMode, s: Scope) -> dict[str, Any]:
        stated = super()._equations(mode, s)
        if self.kind != "mass matrix":
            return stated
        states, rows = list(stated["ode"]), [*stated["ode"].values(), *stated["algebraic"]]
        variables = [*states, *(s[name] for name in mode.algebraics)]
        f = ca.vertcat(*rows)
        n, moving = f.numel(), sum(y.numel() for y in states)
        rng = np.random.default_rng([2028, self.seed, len(mode.name)])
        mixed = ca.MX(np.tril(rng.uniform(-0.6, 0.6, (n, n)), -1)) * ca.cos(s["x"] + s.t)
        mixed = (mixed + ca.diag(1.2 + 0.5 * ca.sin(ca.MX(rng.uniform(-2, 2, n)) * s["x"])))[rng.permutation(n), :]
        mass = ca.horzcat(mixed[:, :moving], ca.MX.zeros(n, n - moving))
        return {"mass": mass, "rhs": ca.mtimes(mixed, f), "variables": variables}


def input_system(seed: int, **limits: Any) -> InputSystem:
    """The system of a seed, without constraints; with explicit rates where there are tables or masses."""
    explicit = list(InputSystem.kinds)[seed % len(InputSystem.kinds)] in ("table", "mass matrix")
    return extended(InputSystem, Draw(seed, **({"sizes": 3, "forms": FORMS[: 4 if explicit else -1]} | limits)))
