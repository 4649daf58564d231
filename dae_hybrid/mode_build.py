"""The functions of one mode: differentiated, and split into what the integrator and what the core needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.codegen import Kernel, NativeFunction
from dae_hybrid.errors import ModelError
from dae_hybrid.formulation import check_structure, solve_explicitly
from dae_hybrid.integrator import Equations
from dae_hybrid.layout import Layout
from dae_hybrid.lowering import SYMBOLIC_SOLVE, ModeLowering, Symbols, linear_solve, symbols_for
from dae_hybrid.model import HybridModel
from dae_hybrid.system import ModeSystem

NEWTON_STEPS = 3  # from the integrator's tolerance to rounding


class ModeBuilder:
    """The functions of one mode."""

    def __init__(self, model: HybridModel, lowering: ModeLowering, index: int, *, eliminate: bool) -> None:
        self.model, self.lowering, self.index = model, lowering, index
        mode = lowering.mode
        self.outgoing = [t for t in model.transitions.values() if t.source is mode]
        self.guarded = [t for t in self.outgoing if t.guard is not None]
        functionals = list(model.functionals.values())
        where = f"in mode '{mode.name}'"
        rows = [
            (f"ode of '{d.name}' {where}", mode.ode[d.name]) for d in lowering.variables if d.kind == "differential"
        ]
        rows.append((f"algebraic equations {where}", mode.algebraic))
        guards = [(f"guard of transition '{t.name}'", t.guard) for t in self.guarded]
        integrands = [(f"integrand of functional '{f.name}'", self._part(f.integrand, f.size)) for f in functionals]
        terminals = [(f"terminal value of functional '{f.name}'", self._part(f.terminal, f.size)) for f in functionals]
        self.ny, self.nz = lowering.differential.size, lowering.algebraic.size
        self.nm = sum(d.size for d in lowering.memory)
        self.np = sum(d.size for d in lowering.parameters)
        self.flow = self._stack("flow", rows)
        self.guards = self._stack("guards", guards)
        self.integrands = self._stack("integrands", integrands)
        self.terminals = self._stack("terminals", terminals)
        s = self.symbols()
        equations = self.flow(*s.point)
        check_structure(
            mode.name, lowering.algebraic.labels(), ca.jacobian(equations[self.ny :, :], s.x)[:, self.ny :].sparsity()
        )
        self._check_guards()
        self.explicit = self._explicit() if eliminate and self.nz else None

    def _explicit(self) -> ca.Function | None:
        """Algebraic variables as functions of (t, y, m, p), where the equations give them one after the other."""
        s = self.symbols()
        if s.kind is not ca.SX:
            return None
        y, z = s.x[: self.ny, :], s.x[self.ny :, :]
        solution = solve_explicitly(self.algebraic_part(s), z)
        return None if solution is None else ca.Function("explicit", [s.t, y, s.m, s.p], [ca.densify(solution)])

    @staticmethod
    def _part(expression: ca.MX | None, size: int) -> ca.MX:
        return ca.MX.zeros(size) if expression is None else expression

    def _stack(self, name: str, rows: list[tuple[str, Any]]) -> ca.Function:
        """One function (t, x, m, p) -> column, checked row by row so that errors name the equation."""
        function = self.lowering.lower(name, rows or [(name, ca.MX(0, 1))])
        s = symbols_for([function], self.lowering.n, self.nm, self.np)
        return ca.Function(name, list(s.point), [ca.vertcat(*function.call(list(s.point)))])

    def _check_guards(self) -> None:
        for i, transition in enumerate(self.guarded):
            s = self.symbols()
            row = self.guards(*s.point)[i]
            if ca.jacobian(row, ca.vertcat(s.t, s.x)).nnz() == 0:
                raise ModelError(
                    "The guard depends on no variable and not on time: it can never cross zero.",
                    transition=transition.name,
                    mode=self.lowering.mode.name,
                    remedy="Write the guard as an expression that changes along the run; for a fixed time use at=.",
                )

    def symbols(self, suffix: str = "") -> Symbols:
        """Flat symbols that suit all functions of the mode."""
        functions = (self.flow, self.guards, self.integrands, self.terminals)
        return symbols_for(functions, self.lowering.n, self.nm, self.np, suffix)

    # -- derivatives ------------------------------------------------------------------------------

    def algebraic_part(self, s: Symbols) -> Any:
        """k(x, m, p, t)."""
        return self.flow(*s.point)[self.ny :, :]

    def _xdot(self, s: Symbols) -> Any:
        """Rates of y, which are f, and of z from the differentiated algebraic equations."""
        equations = self.flow(*s.point)
        f, k = equations[: self.ny, :], equations[self.ny :, :]
        if not self.nz:
            return f
        by_x = ca.jacobian(k, s.x)
        right = by_x[:, : self.ny] @ f + ca.jacobian(k, s.t)
        return ca.vertcat(f, -linear_solve(by_x[:, self.ny :], right))

    def chain(self, s: Symbols) -> Any:
        """Derivative of u = (y, z, m, p, t) by (y, m, p, t) along the algebraic equations; see `transition.chain`."""
        n_u = self.lowering.n + self.nm + self.np + 1
        kept = [*range(self.ny), *range(self.lowering.n, n_u)]
        selection = ca.DM.eye(n_u)[:, kept]
        if not self.nz:
            return s.kind(selection)
        by_u = ca.jacobian(self.algebraic_part(s), s.u)
        by_kept = -linear_solve(by_u[:, self.ny : self.lowering.n], by_u[:, kept])
        return ca.vertcat(selection[: self.ny, :], by_kept, selection[self.lowering.n :, :])

    def solvable(self, s: Symbols) -> Symbols:
        """Symbols of a kind in which the mode's algebraic equations can be solved."""
        if self.nz <= SYMBOLIC_SOLVE or s.kind is ca.MX:
            return s
        names = ("t", "x", "xdot", "m", "p")
        return Symbols(ca.MX, *(ca.MX.sym(n, getattr(s, n).numel()) for n in names))

    def _point_function(self, name: str, outputs: Any) -> ca.Function:
        """A function of (t, x, m, p); `outputs(s)` are evaluated on symbols that its linear solves allow."""
        s = self.solvable(self.symbols())
        return ca.Function(name, list(s.point), [ca.densify(o) for o in outputs(s)])

    def integrator_functions(self) -> dict[str, ca.Function]:
        """What the integrator calls, with inputs (t, X, X', m, p); see `Equations`.

        X is y where the algebraic variables are eliminated, x = (y, z) where they are not.
        """
        s = self.symbols()
        inputs = [s.t, s.x, s.xdot, s.m, s.p]
        if self.explicit is not None:
            y, ydot = s.kind.sym("y", self.ny), s.kind.sym("ydot", self.ny)
            inputs[1:3] = y, ydot
            s = replace(s, x=ca.vertcat(y, self.explicit(s.t, y, s.m, s.p)))
        state = inputs[1]
        equations = self.flow(*s.point)[: state.numel(), :]
        g, h = self.integrands(*s.point), self.guards(*s.point)
        by = [ca.jacobian(equations, v) for v in (state, s.p, s.m)]
        integrands_by = [ca.jacobian(g, v).T for v in (state, s.p, s.m)]
        named = {
            "flow": [equations, g],
            "jacobian": [by[0], integrands_by[0]],
            "linearised": [*by, *integrands_by],
            "guards": [h],
        }
        if state.numel() == self.ny:
            named["rates"] = [ca.jacobian(h, state) @ equations + ca.jacobian(h, s.t)]
            named["complete"] = [state, equations, s.kind(0, 1)]
        functions = {key: ca.Function(f"m{self.index}_{key}", inputs, outputs) for key, outputs in named.items()}
        if state.numel() > self.ny:
            for key, function in (
                ("rates", self._point_function("rates", lambda s: [self._rates(s)])),
                ("complete", self._complete()),
            ):
                w = symbols_for([function], self.lowering.n, self.nm, self.np)
                functions[key] = ca.Function(
                    f"m{self.index}_{key}", [w.t, w.x, w.xdot, w.m, w.p], function.call(list(w.point))
                )
        return functions

    def _rates(self, s: Symbols) -> Any:
        h = self.guards(*s.point)
        return ca.jacobian(h, s.x) @ self._xdot(s) + ca.jacobian(h, s.t)

    def _complete(self) -> ca.Function:
        """Newton for the algebraic part and x' at the result; also the last correction."""
        xdot = self._point_function("xdot", lambda s: [self._xdot(s)])
        newton = self._newton()
        t, x, m, p = (ca.MX.sym(n, v) for n, v in zip("txmp", (1, self.lowering.n, self.nm, self.np), strict=True))
        point, step = x, ca.MX.zeros(self.nz)
        for _ in range(NEWTON_STEPS):
            step = newton(t, point, m, p)
            point = point + ca.vertcat(ca.MX.zeros(self.ny), step)
        return ca.Function("complete", [t, x, m, p], [point, xdot(t, point, m, p), step])

    def kernels(self) -> dict[str, Kernel]:
        """What the core evaluates at points; see `ModeSystem`."""
        s = self.symbols()
        k, k_z = self.algebraic_part(s), ca.jacobian(self.algebraic_part(s), s.x)[:, self.ny :]
        phi, g, equations = self.terminals(*s.point), self.integrands(*s.point), self.flow(*s.point)
        outputs = {
            "closure": ([k, k_z, term_sizes(k, s.u)], [1]),
            "closure_by_u": ([ca.jacobian(k, s.u)], [0]),
            "quadrature": ([g], []),
            "terminal": ([phi, ca.jacobian(phi, s.u)], [1]),
            "adjoint_point": ([ca.jacobian(equations, s.x), ca.jacobian(g, s.x)], [0, 1]),
            "flow_by_u": ([ca.jacobian(equations, s.u)], [0]),
        }
        found = {
            key: Kernel(ca.Function(key, list(s.point), [ca.densify(o) for o in values]), matrices)
            for key, (values, matrices) in outputs.items()
        }
        found["entry"] = Kernel(self.entry())
        if self.explicit is not None:
            y = s.x[: self.ny, :]
            x = ca.vertcat(y, self.explicit(s.t, y, s.m, s.p))
            xdot = self._point_function("xdot", lambda s: [self._xdot(s)])
            found["explicit"] = Kernel(ca.Function("extend", [s.t, y, s.m, s.p], [x, xdot(s.t, x, s.m, s.p)]))
        return found

    def _solved(self) -> dict[str, ca.Function]:
        """Algebraic variables at outputs, and their derivatives by (y, m, p); see `ModeSystem`."""
        n = self.lowering.n if self.explicit is None else self.ny
        t, state, m, p = (ca.MX.sym(k, v) for k, v in zip(("t", "x", "m", "p"), (1, n, self.nm, self.np), strict=True))
        if not self.nz:
            return dict.fromkeys(("solved", "solved_by_u"), ca.Function("solved", [t, state, m, p], [ca.MX(0, 1)]))
        x = state
        if self.explicit is not None:
            x = ca.vertcat(state, self.explicit(t, state, m, p))
        else:
            newton = self._newton()
            for _ in range(NEWTON_STEPS):
                x = x + ca.vertcat(ca.MX.zeros(self.ny), newton(t, x, m, p))
        rows = slice(self.ny, self.lowering.n)
        by_w = self._point_function("by_w", lambda s: [self.chain(s)[rows, : self.ny + self.nm + self.np]])
        return {
            "solved": ca.Function("solved", [t, state, m, p], [x[self.ny :, :]]),
            "solved_by_u": ca.Function("solved_by_u", [t, state, m, p], [by_w(t, x, m, p)]),
        }

    def _newton(self) -> ca.Function:
        """One Newton correction of the algebraic variables."""
        return self._point_function(
            "newton",
            lambda s: [-linear_solve(ca.jacobian(self.algebraic_part(s), s.x)[:, self.ny :], self.algebraic_part(s))],
        )

    def entry(self) -> ca.Function:
        """x', guards, their rates and the sizes of their terms at a point."""
        return self._point_function("entry", self._entry)

    def _entry(self, s: Symbols) -> list[Any]:
        h = self.guards(*s.point)
        return [self._xdot(s), h, self._rates(s), term_sizes(h, s.u)]

    def system(self, compiled: dict[str, NativeFunction], index_of: dict[str, int]) -> ModeSystem:
        """The finished mode."""
        lowering = self.lowering
        prefix = f"{self.index}:"
        variables = Layout.of((d.name, d.size) for d in lowering.variables)
        equations = Equations(
            name=lowering.mode.name,
            n=lowering.n if self.explicit is None else self.ny,
            n_differential=self.ny,
            n_memory=self.nm,
            n_parameters=self.np,
            directions=tuple(t.direction for t in self.guarded),
            functions={key.removeprefix(prefix): f for key, f in compiled.items() if key.startswith(prefix)},
            variables=variables if self.explicit is None else lowering.differential,
            functionals=Layout.of((f.name, f.size) for f in self.model.functionals.values()),
            integrates=any(f.integrand is not None for f in self.model.functionals.values()),
        )
        return ModeSystem(
            name=lowering.mode.name,
            index=self.index,
            differential=lowering.differential,
            algebraic=lowering.algebraic,
            equations=equations,
            guarded=tuple(index_of[t.name] for t in self.guarded),
            timed=tuple(index_of[t.name] for t in self.outgoing if t.guard is None),
            guess=np.array(lowering.guess, dtype=float),
            kernels=self.kernels(),
            explicit=self.explicit,
            **self._solved(),
        )


def term_sizes(values: Any, u: Any) -> Any:
    """Size of what each value is summed from, to first order: |dv/du| |u|. Rounding is a multiple of it."""
    return ca.fabs(ca.jacobian(values, u)) @ ca.fabs(u) + ca.fabs(values)
