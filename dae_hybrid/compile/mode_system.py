"""Build the functions of one mode: those called by the integrator and those evaluated at points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, cached_property
from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.codegen.casadi_tools import dense, jacobian, renamed
from dae_hybrid.codegen.hoisting import hoisted
from dae_hybrid.codegen.kernels import Kernel, NativeFunction
from dae_hybrid.codegen.products import products
from dae_hybrid.codegen.sharing import shared
from dae_hybrid.compile.elimination import solve_in_blocks
from dae_hybrid.compile.families import apart, closed, functions_of, kernels_of
from dae_hybrid.compile.lowering import Flat, moving_symbols, symbols_for
from dae_hybrid.compile.mode_functions import ModeFunctions, term_sizes
from dae_hybrid.compile.motion_functions import motion_equations
from dae_hybrid.layout import Layout
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.matrices import compact
from dae_hybrid.port.integrator import Equations
from dae_hybrid.port.motion import MotionEquations, with_code
from dae_hybrid.statement.discontinuities import Discontinuities, are_smooth
from dae_hybrid.statement.discontinuous_nodes import KINKS
from dae_hybrid.system.system import ModeSystem

#: largest product of guards and equations for which guards at consistent points are weighted, not solved for
MAX_WEIGHTED_PRODUCT = 100_000
#: index of the parameter input in a mode's functions
P = 3


class ModeBuilder(ModeFunctions):
    """Builds a `ModeSystem`."""

    def integrator_functions(self) -> dict[str, ca.Function]:
        """Return the functions called by the integrator, with inputs (t, X, m, p); see `Equations`.

        X is y if the algebraic variables are eliminated, otherwise x = (y, z).
        """
        s = self.symbols()
        inputs = list(s.point)
        if self.explicit is not None:
            inputs[1] = y = s.kind.sym("y", self.ny)
            z, poles = self.explicit(s.t, y, s.m, s.p)
            s = replace(s, x=ca.vertcat(y, z))
        state = inputs[1]
        equations = (self.stated if self.direct else self.flow)(*s.point)[: state.numel(), :]
        g, h = self.integrands(*s.point), self.guards(*s.point)
        if self.explicit is not None and self.poles:
            h = ca.vertcat(h, poles)
        if self.explicit is None:
            by, integrands_by = ([jacobian(v, w) for w in (state, s.parameters, s.m)] for v in (equations, g))
        else:
            by, integrands_by = self._by_implicit_functions(s)
        integrands_by = [matrix.T for matrix in integrands_by]
        named = {
            "flow": [dense(equations), dense(g)],  # MX drops structural zeros
            "jacobian": [by[0], integrands_by[0]],
            "linearised": [equations, g, *by, *integrands_by],
            "guards": [h],
        }
        if self.reducible:
            named["reduced"] = [dense(self.xdot(s)), dense(g)]
        functions = {key: ca.Function(f"m{self.index}_{key}", inputs, outputs) for key, outputs in named.items()}
        if not self.numbers:
            functions |= products(f"m{self.index}", functions["flow"], functions["linearised"], explicit=not self.nz)
        for key, function in self._at_points(inputs, h, equations).items():
            w = symbols_for([function], state.numel(), self.nm, self.np)
            outputs = [dense(o) for o in function.call(list(w.point))]  # MX drops structural zeros
            functions[key] = ca.Function(f"m{self.index}_{key}", list(w.point), outputs)
        return functions

    @cached_property
    def motion(self) -> MotionEquations | None:
        """The step of the equations of motion, if the mode was stated as such."""
        stated = self.lowering.mode.motion
        return None if stated is None else motion_equations(self, stated)

    def _by_implicit_functions(self, s: Flat) -> tuple[list[Any], list[Any]]:
        """Derivatives of rates and integrands by (y, p, m), with those of z from the implicit function theorem."""
        ny, n, nm, n_p = self.ny, self.lowering.n, self.nm, self.np
        places = range(ny), range(n + nm, n + nm + n_p), range(n, n + nm)
        whole, of_integrands = self.by_u(self.flow, s), self.by_u(self.integrands, s)
        rows = [i for place in places for i in place]
        z_by = -solve_in_blocks(whole[ny:, ny:n], whole[ny:, rows])
        found = []
        for by_u in (whole[:ny, :], of_integrands):
            total = by_u[:, rows] + by_u[:, ny:n] @ z_by
            found.append(list(ca.horzsplit(total, [0, ny, ny + n_p, ny + n_p + nm])))
        return found[0], found[1]

    def _at_points(self, inputs: list[Any], h: Any, equations: Any) -> dict[str, ca.Function]:
        """Functions that involve a solve: `complete`, `rates` and, with constraints, `drift`."""
        t, state, m, p = inputs
        landing, consistent, eliminated = self.landing, self.consistent, state.numel() == self.ny
        if self.nk:  # the integrator's X is off the constraints, and in index 2 its z is less accurate than its y
            point = [ca.MX.sym(k, v.numel()) for k, v in zip("txmp", (t, state, m, p), strict=True)]
            (x, xdot, correction), there = landing(*point), consistent(*point)[0]
            own = (x[: self.ny], xdot[: self.ny], ca.MX(0, 1)) if eliminated else (x, xdot, correction)
            return {
                "complete": ca.Function("complete", point, list(own)),
                "drift": ca.Function("drift", point, [there[: self.ny] - point[1][: self.ny]]),
                "guards": self._with_singularities(self._on_the_constraints(point, there, "guards"), "guards"),
                "rates": self._with_singularities(self._on_the_constraints(point, there, "rates"), "rates"),
            } | ({} if eliminated else self._in_pieces())
        if not eliminated:
            found = {"complete": landing, "rates": self.point_function("rates", lambda s: [self.guard_rates(s)])}
            if max(ca.jacobian_sparsity(h, state).get_col(), default=-1) >= self.ny:  # z is off by the tolerance
                point = [ca.MX.sym(k, v.numel()) for k, v in zip("txmp", (t, state, m, p), strict=True)]
                found["guards"] = self._on_the_constraints(point, consistent(*point)[0], "guards")
                found |= self._in_pieces()
            else:
                found["settle"] = self.point_function("settle", lambda s: [self.settle(s)])
            if self.poles:
                guards = found.get("guards") or ca.Function("guards", inputs, [h])
                found["guards"] = self._with_singularities(guards, "guards")
                found["rates"] = self._with_singularities(found["rates"], "rates")
            return found
        along = jacobian(h, state) @ equations + jacobian(h, t)
        return {
            "complete": ca.Function("complete", [t, state, m, p], [state, equations, dense(0 * state[:0, :])]),
            "rates": ca.Function("rates", [t, state, m, p], [dense(along)]),
        }

    def _in_pieces(self) -> dict[str, ca.Function]:
        """Functions from which compiled code assembles consistent points and guards there; see `Equations`."""
        found, n_guards = {"settle": self.point_function("settle", lambda s: [self.settle(s)])}, len(self.guarded)
        if not n_guards:
            return found
        s = self.symbols()
        values = [dense(v) for v in (self.guards(*s.point), self.off(s))]
        found["sketch"] = ca.Function("sketch", list(s.point), values)
        found["slopes"] = self.point_function("slopes", lambda s: [self.guard_rates(s)])
        if n_guards * (self.nz + self.nk) <= MAX_WEIGHTED_PRODUCT:
            found["weigh"] = self.point_function("weigh", lambda s: [self.guard_weights(s)])
        if self.singularities is not None:
            found["poles"] = self.point_function("poles", lambda s: [self.singular(s), self.singular_rates(s)])
        return found

    def _with_singularities(self, function: ca.Function, name: str) -> ca.Function:
        """Append the determinants of implicit equations to the guards or their rates.

        They are evaluated at the state itself: near a singular matrix there is no consistent point.
        """
        if self.singularities is None:
            return function

        def values(s: Flat) -> list[Any]:
            return [self.singular(s) if name == "guards" else self.singular_rates(s)]

        n_p = self.np + self.numbers
        point = [ca.MX.sym(k, v) for k, v in zip("txmp", (1, self.lowering.n, self.nm, n_p), strict=True)]
        both = ca.vertcat(function(*point), self.point_function("determinants", values)(*point))
        return ca.Function(name, point, [both])

    def _on_the_constraints(self, point: list[Any], x: Any, name: str) -> ca.Function:
        """Guards, or their rates, at the consistent point x nearest to an integrator's state."""

        def values(s: Flat) -> list[Any]:
            h = self.guards(*s.point)
            if self.poles and self.explicit is not None:
                h = ca.vertcat(h, self.explicit(s.t, s.x[: self.ny, :], s.m, s.p)[1])
            if name == "guards":
                return [h]
            return [ca.jtimes(h, s.x, self.xdot(s)) + ca.jtimes(h, s.t, s.kind(1))]

        t, _, m, p = point
        return ca.Function(name, point, [self.point_function(name, values)(t, x, m, p)])

    def kernels(self) -> dict[str, Kernel]:
        """Kernels evaluated at points; see `ModeSystem`."""
        s = self.symbols()
        k = self.invariant_part(s)
        phi, g, equations = self.terminals(*s.point), self.integrands(*s.point), self.flow(*s.point)
        outputs = {
            "closure_by_u": ([compact(jacobian(self.algebraic_part(s), s.u))], [0]),
            "terminal": ([phi, dense(jacobian(phi, s.u))], [1]),
            "adjoint_point": ([compact(jacobian(equations, s.x)), dense(jacobian(g, s.x))], [0, 1]),
            "flow_by_u": ([compact(jacobian(equations, s.u))], [0]),
        }
        found = {
            key: Kernel(ca.Function(key, list(s.point), dense_vectors(values, matrices)), matrices)
            for key, (values, matrices) in outputs.items()
        }
        found["entry"], found["closure"] = Kernel(self.entry), Kernel(self.closure, [1])
        if self.explicit is not None or self.nk:
            found["landing"] = Kernel(self.landing)
        if self.nk:
            by_u = jacobian(k, s.u)
            values = [dense(k), compact(by_u), dense(term_sizes(k, s.u))]
            sizes = ca.Function("invariants", list(s.point), values)
            found["invariants"] = Kernel(sizes, [1])
            found["direction"] = Kernel(self.point_function("direction", lambda s: [self.direction(s)]), [0])
            found["multipliers"] = Kernel(self.multipliers())
        return found

    @cached_property
    def closure(self) -> ca.Function:
        """k and k_z of the algebraic equations, and the sizes of the terms of k."""
        s = self.symbols()
        k = self.algebraic_part(s)
        outputs = [k, compact(jacobian(k, s.x)[:, self.ny :]), term_sizes(k, s.u)]
        return ca.Function("closure", list(s.point), dense_vectors(outputs, [1]))

    def _solved(self) -> dict[str, Any]:
        """x at outputs and its derivative by (y, m, p), created on demand; see `ModeSystem`."""
        t, state, m, p = self._state_point()
        x = self.consistent(t, state, m, p)[0]
        ny, n_w = self.ny, self.ny + self.nm + self.np

        def by_w(s: Flat) -> list[Any]:
            derivative = self.chain(s)[: self.lowering.n, :n_w]
            if not self.nk:
                return [derivative]
            k_u = jacobian(self.invariant_part(s), s.u)
            n = self.lowering.n
            moved = s.kind(ca.DM.eye(n_w))
            moved[:ny, :] -= self.direction(s) @ ca.horzcat(k_u[:, :ny], k_u[:, n : n + self.nm + self.np])
            return [derivative @ moved]

        @cache
        def solved_by_w() -> ca.Function:
            derivative = self.point_function("by_w", by_w)
            return ca.Function("solved_by_w", [t, state, m, p], [derivative(t, x, m, p)])

        solved = ca.Function("solved", [t, state, m, p], [x])
        return {"solved": lambda: solved, "solved_by_w": solved_by_w}

    def _is_clipped(self) -> bool:
        """Whether equations or integrands have kinks that are no events."""
        stated = [self.lowering.mode.everything, *(f.integrand for f in self.model.functionals.values())]
        parts = [part for part in stated if part is not None]
        if are_smooth(parts):
            return False
        where = f"mode '{self.lowering.mode.name}'"
        return bool(Discontinuities(where, parts, moving_symbols(self.model), clips=True).innermost(KINKS))

    def _in_words(self) -> str:
        if not self.nz:
            return "ODE"
        if self.nk:
            return f"Hessenberg index 2 ({self.nk} constraint{'s' * (self.nk > 1)})"
        return "implicit, index 0 or 1" if self.lowering.implicit else "Hessenberg index 1"

    def system(
        self,
        functions: dict[str, ca.Function],
        compiled: dict[str, NativeFunction],
        of_motion: dict[str, NativeFunction],
        guarded: tuple[int, ...],
        timed: tuple[int, ...],
    ) -> ModeSystem:
        """Build the mode, given the indices of its transitions."""
        lowering = self.lowering
        variables = Layout.of((d.name, d.size) for d in lowering.variables)
        equations = Equations(
            name=lowering.mode.name,
            n=lowering.n if self.explicit is None else self.ny,
            n_differential=self.ny,
            n_memory=self.nm,
            n_parameters=self.np,
            directions=(*(t.direction for t in self.guarded), *(0,) * self.poles),
            resolution=min((t.resolution for t in self.guarded), default=np.inf),
            functions={key: NativeFunction(function, None) for key, function in functions.items()},
            compiled=compiled if all(f.address is not None for f in compiled.values()) else {},
            variables=variables if self.explicit is None else lowering.differential,
            functionals=Layout.of((f.name, f.size) for f in self.model.functionals.values()),
            index=2 if self.direct and self.nk else 1,
            constrained=self.nk > 0,
            tested=self.index1,
            integrates=any(f.integrand is not None for f in self.model.functionals.values()),
            algebraic=lowering.algebraic,
            n_singularities=self.poles,
            clipped=self._is_clipped(),
            unwatched=self.unwatched,
            motion=None if self.motion is None else with_code(self.motion, of_motion),
        )
        return ModeSystem(
            name=lowering.mode.name,
            index=self.index,
            differential=lowering.differential,
            algebraic=lowering.algebraic,
            equations=equations,
            guarded=guarded,
            timed=timed,
            guess=np.array(lowering.guess, dtype=float),
            kernels=self.kernels(),
            formulation=self._in_words(),
            explicit=self.explicit,
            invariants=self.constraint_labels,
            fragile=self.nz > 0 and (self.explicit is None or self.poles > 0),
            **self._solved(),
        )


def of_member(
    family: ModeSystem, name: str, index: int, guarded: tuple[int, ...], timed: tuple[int, ...], numbers: Array
) -> ModeSystem:
    """Return a mode that shares the functions of a family, with its own numbers appended to the parameters."""
    e = family.equations

    def completed(function: Callable[[], ca.Function]) -> Callable[[], ca.Function]:
        made: list[ca.Function] = []

        def once() -> ca.Function:
            if not made:
                made.append(closed(function(), P, numbers))
            return made[0]

        return once

    return replace(
        family,
        name=name,
        index=index,
        guarded=guarded,
        timed=timed,
        equations=replace(e, name=name, functions=functions_of(e.functions, P, numbers), numbers=numbers, cache={}),
        kernels=kernels_of(family.kernels, lambda _: P, numbers),
        solved=completed(family.solved),
        solved_by_w=completed(family.solved_by_w),
    )


def to_compile(functions: dict[str, ca.Function], mode: ModeBuilder) -> dict[str, ca.Function]:
    """Return the functions to compile, with the numbers of a family as an input after c.

    `sketch` and `slopes` replace `guards` and `rates` if present.
    """
    if "sketch" in functions:
        kept = {key: function for key, function in functions.items() if key not in ("guards", "slopes")}
        functions = kept | {"rates": functions["slopes"]}
    found = hoisted(functions)
    if mode.numbers:
        return {key: apart(function, P, mode.numbers, 5) for key, function in found.items()}
    slopes = mode.flow_by_u
    return found if slopes is None else shared(found, mode.flow, slopes)


def motion_to_compile(functions: dict[str, ca.Function], mode: ModeBuilder) -> dict[str, ca.Function]:
    """Return the functions of a step of the equations of motion to compile, with those of the guards."""
    if mode.motion is None:
        return {}
    own = {key: renamed(functions[key], f"s{mode.index}_{key}") for key in ("guards", "rates")}
    return {**mode.motion.functions, **own}


def dense_vectors(values: list[Any], matrices: list[int]) -> list[Any]:
    """Densify columns; leave the outputs listed in `matrices` sparse."""
    return [value if i in matrices else dense(value) for i, value in enumerate(values)]
