"""The equations of one mode as functions of flat vectors: formulated, differentiated, and solved at points."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.codegen.casadi_tools import (
    MAX_DETERMINANT_GUARDS,
    MAX_ELIMINATED_BLOCK,
    SYMBOLIC_SOLVE,
    dense,
    expanded,
    jacobian,
    linear_solve,
)
from dae_hybrid.compile.coupled_constraints import without_index1
from dae_hybrid.compile.dependence import refuse_dependent_equations
from dae_hybrid.compile.elimination import singularities, solve_explicitly
from dae_hybrid.compile.lowering import Flat, ModeLowering, symbols_for
from dae_hybrid.compile.structure import check_structure
from dae_hybrid.errors import ModelError
from dae_hybrid.layout import Layout
from dae_hybrid.numerics.arrays import SMALLEST_NORMAL
from dae_hybrid.numerics.matrices import MAX_DENSE_ROWS, is_dense
from dae_hybrid.statement.declarations import Transition
from dae_hybrid.statement.model import HybridModel

#: right-hand sides by which the rounding errors of a large system are estimated
ROUNDING_PROBES = 3
NEWTON_STEPS = 3  # from the integrator's tolerance to rounding


class ModeFunctions:
    """The equations of one mode as functions of (t, x, m, p), and functions derived from them."""

    def __init__(
        self,
        model: HybridModel,
        lowering: ModeLowering,
        index: int,
        outgoing: Sequence[Transition],
        *,
        eliminate: bool,
        direct: bool,
    ) -> None:
        self.model, self.lowering, self.index = model, lowering, index
        self.guarded = [t for t in outgoing if t.guard is not None]
        functionals = list(model.functionals.values())
        guards = [(f"guard of transition '{t.name}'", t.guard) for t in self.guarded]
        integrands = [(f"integrand of functional '{f.name}'", self._part(f.integrand, f.size)) for f in functionals]
        terminals = [(f"terminal value of functional '{f.name}'", self._part(f.terminal, f.size)) for f in functionals]
        self.ny, self.nz = lowering.differential.size, lowering.algebraic.size
        self.nm = sum(d.size for d in lowering.memory)
        self.np = sum(d.size for d in lowering.parameters)
        self.numbers = sum(s.numel() for s in lowering.numbers)  # appended to the parameters
        self.direct = direct
        self._slopes: dict[str, ca.Function] = {}
        self._formulate()
        self.guards = self.stack("guards", guards)
        self.integrands = self.stack("integrands", integrands)
        self.terminals = self.stack("terminals", terminals)
        self._check_guards()
        self.poles = 0  # number of quantities that must not vanish: determinants of the systems solved for z
        eliminate = eliminate and lowering.mode.motion is None  # whose accelerations are results of the integrator
        self.explicit = self._explicit() if eliminate and self.nz and not (direct and self.nk) else None
        self.singularities: ca.Function | None = None  # quantities of implicit equations that must not vanish
        self.unwatched = False  # whether there are too many of them, or too large ones, to write out
        if self.nz and self.explicit is None:
            self._watch_singularities()
        #: whether the algebraic variables can be solved for within a right-hand side, on a monitored branch
        self.reducible = eliminate and self.explicit is None and self._is_reducible()

    def _formulate(self) -> None:
        """Set `flow` (f, K), `stated` (f and the equations as stated) and `invariants` k; see `numerics.algebraic`."""
        lowering, mode = self.lowering, self.lowering.mode
        where, ny = f"of mode '{mode.name}'", self.ny
        f = self.stack("rates", lowering.flow())
        kinds = (("residual", mode.residual), ("algebraic", mode.algebraic), ("constraint", mode.constraint))
        labels = mode.labels
        given = self.stack("given", [(f"{kind} equations {where}", rows) for kind, rows in kinds])
        s = symbols_for([f, given], lowering.n, self.nm, self.np)
        rates, rows = f(*s.point), given(*s.point)
        stated_by_z = jacobian(rows, s.x)[:, ny:].sparsity()
        with_z = set(stated_by_z.row())
        kept = range(len(labels) - mode.constraint.numel(), len(labels))
        coupled = [i for i in kept if i in with_z]  # constraints with variables of index 1
        index1 = sorted(with_z - set(coupled))
        index2 = [i for i in range(len(labels)) if i not in index1]
        self.coupled = bool(coupled)
        if coupled:
            rows = without_index1(given, s, lowering, index1, coupled)
        by_x = jacobian(rows, s.x)
        self.nk = len(index2)
        by_index1 = sorted({j for i, j in zip(*stated_by_z.get_triplet(), strict=True) if i in index1})
        #: indices of the algebraic variables determined by equations other than constraints
        self.index1 = tuple(by_index1) if len(by_index1) == len(index1) else ()
        self.constraint_labels = tuple(labels[i] for i in index2)
        hidden = by_x[index2, :ny] @ rates + jacobian(rows[index2, :], s.t) if index2 else s.kind(0, 1)
        closure = ca.vertcat(rows[index1, :] if index1 else s.kind(0, 1), hidden)
        by_z = jacobian(closure, s.x)[:, ny:]
        names = [labels[i] for i in index1] + [f"the time derivative of {labels[i]}" for i in index2]
        check_structure(mode.name, lowering.algebraic.labels(), names, self.nk, by_z.sparsity())
        if lowering.implicit:
            nominal = np.concatenate([*(d.start for d in lowering.parameters), np.zeros(self.numbers)])
            matrix = ca.Function("by_z", list(s.point), [dense(by_z)])
            refuse_dependent_equations(mode.name, matrix, lowering.algebraic.labels(), names, nominal)
        k = rows[index2, :] if index2 else s.kind(0, 1)
        stated = ca.vertcat(rates, rows[index1 + index2, :]) if labels else rates

        def function(name: str, value: Any) -> ca.Function:
            return ca.Function(name, list(s.point), [dense(value)])

        self.flow = function("flow", ca.vertcat(rates, closure))
        self.stated = function("stated", stated)
        self.invariants = function("invariants", k)

    def _explicit(self) -> ca.Function | None:
        """Algebraic variables, if the equations give them explicitly, and the quantities that must not vanish."""
        s = self.symbols()
        if s.kind is not ca.SX:
            return None
        y, z = s.x[: self.ny, :], s.x[self.ny :, :]
        found = solve_explicitly(self.algebraic_part(s), z, MAX_ELIMINATED_BLOCK)
        if found is None:
            return None
        self.poles = found[1].numel()
        return ca.Function("explicit", [s.t, y, s.m, s.p], [dense(v) for v in found])

    def _watch_singularities(self) -> None:
        """Set `singularities` to the determinants of the blocks of [F_y' | F_z] (C B in index 2), if few and small."""
        s = self.symbols()
        found, by_z = None, None
        if s.kind is ca.SX:
            by_z = jacobian(self.algebraic_part(s), s.x)[:, self.ny :]
        elif self.nz <= MAX_ELIMINATED_BLOCK:
            y, z = s.x[: self.ny], ca.MX.sym("z", self.nz)
            k = self.flow(s.t, ca.vertcat(y, z), s.m, s.p)[self.ny :, :]
            by_z = expanded(ca.Function("by_z", [s.t, s.x, s.m, s.p, z], [jacobian(k, z)]))
            s = Flat(ca.SX, *(ca.SX.sym(name, getattr(s, name).numel()) for name in "txmp"), numbers=s.numbers)
            by_z = by_z(*s.point, s.x[self.ny :, :]) if by_z.is_a("SXFunction") else None
        if by_z is not None:
            found = singularities(by_z, ca.vertcat(s.t, s.x), MAX_ELIMINATED_BLOCK, MAX_DETERMINANT_GUARDS)
        if found is None:
            self.unwatched = True
        elif found.numel():
            self.poles = found.numel()
            self.singularities = ca.Function("singularities", list(s.point), [dense(found)])

    def _is_reducible(self) -> bool:
        semi_explicit = not (self.lowering.implicit or self.nk or self.unwatched)
        return semi_explicit and 0 < self.nz <= SYMBOLIC_SOLVE and self.symbols().kind is ca.SX

    def singular(self, s: Flat) -> Any:
        """Determinants of the implicit equations."""
        return ca.MX(0, 1) if self.singularities is None else self.singularities(*s.point)

    def singular_rates(self, s: Flat) -> Any:
        """Total time derivatives of the determinants."""
        return self._along(self.singularities, s) if self.singularities is not None else ca.MX(0, 1)

    @staticmethod
    def _part(expression: ca.MX | None, size: int) -> ca.MX:
        return ca.MX.zeros(size) if expression is None else expression

    def stack(self, name: str, rows: list[tuple[str, Any]]) -> ca.Function:
        """Return a function (t, x, m, p) -> column, checked row by row so that errors name the equation."""
        function = self.lowering.lower(name, rows or [(name, ca.MX(0, 1))])
        s = symbols_for([function], self.lowering.n, self.nm, self.np)
        return ca.Function(name, list(s.point), [ca.vertcat(*function.call(list(s.point)))])

    def _check_guards(self) -> None:
        by_t, by_x, by_m = (self.guards.jac_sparsity(0, i) for i in range(3))
        moving = {*by_t.get_triplet()[0], *by_x.get_triplet()[0]}
        signals = set(self._signal_entries())
        moving |= {row for row, entry in zip(*by_m.get_triplet(), strict=True) if entry in signals}
        for i, transition in enumerate(self.guarded):
            stays = i not in moving and not transition.jumps and not transition.shared
            if stays and transition.relation is None:  # equations may let a relation slide for ever
                raise ModelError(
                    "The guard depends on no variable and not on time: it can never cross zero.",
                    transition=transition.name,
                    mode=self.lowering.mode.name,
                    remedy="Write the guard as an expression that changes along the run; for a fixed time use at=.",
                )

    def _signal_entries(self) -> list[int]:
        """Indices of memory entries that vary with time between events: those of signals."""
        layout = Layout.of((d.name, d.size) for d in self.lowering.memory)
        names = [d.name for d in self.lowering.memory if d.signal is not None]
        return [i for name in names for i in range(layout[name].start, layout[name].stop)]

    def symbols(self, suffix: str = "") -> Flat:
        """Flat symbols of a kind that suits all functions of the mode."""
        functions = (self.flow, self.guards, self.integrands, self.terminals)
        return symbols_for(functions, self.lowering.n, self.nm, self.np, suffix)

    # -- derivatives ------------------------------------------------------------------------------

    def algebraic_part(self, s: Flat) -> Any:
        """k(x, m, p, t)."""
        return self.flow(*s.point)[self.ny :, :]

    def by_u(self, function: ca.Function, s: Flat) -> Any:
        """Derivative of a function by u; in MX form a call of one shared function."""
        if not function.is_a("SXFunction"):
            return jacobian(function(*s.point), s.u)
        key = function.name()
        if key not in self._slopes:
            own = symbols_for([function], self.lowering.n, self.nm, self.np)
            self._slopes[key] = ca.Function(f"{key}_by_u", list(own.point), [jacobian(function(*own.point), own.u)])
        return self._slopes[key](*s.point)

    @property
    def flow_by_u(self) -> ca.Function | None:
        """Derivative of `flow` that functions at points call, if `linearised` contains it."""
        if self.explicit is not None or self.direct or self.flow.jac_sparsity(0, 0).nnz():
            return None
        return self._slopes.get(self.flow.name())

    def by_z(self, s: Flat) -> Any:
        """Derivative of the rates and of the algebraic equations by z."""
        return self.by_u(self.flow, s)[:, self.ny : self.lowering.n]

    def xdot(self, s: Flat) -> Any:
        """Rates of y, given by f, and of z, from the differentiated algebraic equations."""
        f = self.flow(*s.point)[: self.ny, :]
        if not self.nz:
            return f
        by_u = self.by_u(self.flow, s)[self.ny :, :]
        right = by_u[:, : self.ny] @ f + by_u[:, -1]
        return ca.vertcat(f, -linear_solve(by_u[:, self.ny : self.lowering.n], right))

    def chain(self, s: Flat) -> Any:
        """Derivative of u = (y, z, m, p, t) by (y, m, p, t) along the equations; see `linearisation.chain`."""
        n_u = self.lowering.n + self.nm + self.np + 1
        kept = [*range(self.ny), *range(self.lowering.n, n_u)]
        selection = ca.DM.eye(n_u)[:, kept]
        if not self.nz:
            return s.kind(selection)
        by_u = self.by_u(self.flow, s)[self.ny :, :]
        by_kept = -linear_solve(by_u[:, self.ny : self.lowering.n], by_u[:, kept])
        return ca.vertcat(selection[: self.ny, :], by_kept, selection[self.lowering.n :, :])

    def solvable(self, s: Flat) -> Flat:
        """Flat symbols of a kind that allows solving the mode's algebraic equations."""
        if self.nz <= SYMBOLIC_SOLVE or s.kind is ca.MX:
            return s
        return Flat(ca.MX, *(ca.MX.sym(n, getattr(s, n).numel()) for n in "txmp"), numbers=s.numbers)

    def point_function(self, name: str, outputs: Any) -> ca.Function:
        """Return a function of (t, x, m, p); `outputs(s)` is evaluated on symbols that permit its linear solves."""
        s = self.solvable(self.symbols())
        return ca.Function(name, list(s.point), [dense(o) for o in outputs(s)])

    def invariant_part(self, s: Flat) -> Any:
        """The constraints k(y, m, p, t) of index 2."""
        return self.invariants(*s.point)

    def direction(self, s: Flat) -> Any:
        """D = f_z K_z^-1 E, along which y is projected onto the constraints: k_y D = I; see `numerics.algebraic`."""
        by_z = self.by_z(s)
        columns = s.kind(ca.DM.eye(self.nz)[:, self.nz - self.nk :])
        return by_z[: self.ny, :] @ linear_solve(by_z[self.ny :, :], columns)

    def onto(self, s: Flat) -> Any:
        """-D k, which projects y onto the constraints to first order; one right-hand side instead of one per column."""
        by_z = self.by_z(s)
        right = ca.vertcat(s.kind.zeros(self.nz - self.nk, 1), self.invariant_part(s))
        return -by_z[: self.ny, :] @ linear_solve(by_z[self.ny :, :], right)

    def guard_rates(self, s: Flat) -> Any:
        """Total time derivatives of the guards (SR eq. 4)."""
        return self._along(self.guards, s)

    def _along(self, function: ca.Function, s: Flat) -> Any:
        """Total time derivative of a function of (t, x, m, p)."""
        by_u = self.by_u(function, s)
        return by_u[:, : self.lowering.n] @ self.xdot(s) + by_u[:, -1]

    def newton(self) -> ca.Function:
        """One Newton correction of the algebraic variables."""

        def step(s: Flat) -> list[Any]:
            return [-linear_solve(self.by_z(s)[self.ny :, :], self.algebraic_part(s))]

        return self.point_function("newton", step)

    def settle(self, s: Flat) -> Any:
        """x after one Newton correction: y moved onto the constraints, z onto the algebraic equations there."""
        k, by_x = self.algebraic_part(s), self.by_u(self.flow, s)[self.ny :, : self.lowering.n]
        moved = self.onto(s) if self.nk else s.kind.zeros(self.ny, 1)
        off = k + by_x[:, : self.ny] @ moved if self.nk else k
        return s.x + ca.vertcat(moved, -linear_solve(by_x[:, self.ny :], off))

    def off(self, s: Flat) -> Any:
        """Residuals of the algebraic equations and the constraints at x."""
        return ca.vertcat(self.algebraic_part(s), self.invariant_part(s))

    def guard_weights(self, s: Flat) -> Any:
        """W, with a column per guard: `settle` changes the guards by -W^T off, to first order."""
        ny, nz = self.ny, self.nz
        by_x, h_x = (self.by_u(f, s)[:, : self.lowering.n] for f in (self.flow, self.guards))
        transposed = by_x[ny:, ny:].T
        by_z = linear_solve(transposed, dense(h_x[:, ny:].T))
        if not self.nk:
            return by_z
        along = by_x[:ny, ny:].T @ (h_x[:, :ny].T - by_x[ny:, :ny].T @ by_z)
        return ca.vertcat(by_z, linear_solve(transposed, dense(along))[nz - self.nk :, :])

    def _rounding(self) -> ca.Function:
        """Scale of the rounding errors of the algebraic variables: their size and that of their equations' terms."""

        def scale(s: Flat) -> list[Any]:
            k, by_u = self.algebraic_part(s), self.by_u(self.flow, s)[self.ny :, :]
            by_z, terms = by_u[:, self.ny : self.lowering.n], sizes_by(by_u, k, s.u)
            if self.nz > MAX_DENSE_ROWS:  # in place of the full inverse, its product with some combinations of signs:
                # random ones, because terms in a regular order may cancel in a variable
                signs = np.random.default_rng(0).choice([-1.0, 1.0], (self.nz, ROUNDING_PROBES))
                found = linear_solve(by_z, ca.DM(signs) * ca.repmat(terms, 1, ROUNDING_PROBES))
                return [ca.fabs(s.x[self.ny :, :]) + ca.fabs(found) @ ca.DM.ones(ROUNDING_PROBES)]
            return [ca.fabs(s.x[self.ny :, :]) + ca.fabs(linear_solve(by_z, s.kind.eye(self.nz))) @ terms]

        return self.point_function("rounding", scale)

    @cached_property
    def consistent(self) -> ca.Function:
        """(t, state, m, p) -> x, last correction of z: the consistent point nearest to a state.

        The state is y if the algebraic variables are eliminated, otherwise x.
        """
        t, state, m, p = point = self._state_point()
        ny = self.ny
        newton = None if self.explicit is not None else self.newton()
        onto = self.point_function("onto", lambda s: [self.onto(s)]) if self.nk else None

        def completed(y: Any) -> Any:
            return ca.vertcat(y, self.explicit(t, y, m, p)[0]) if self.explicit is not None else y

        x, step = completed(state), ca.MX.zeros(self.nz)
        for _ in range(NEWTON_STEPS if self.nk or newton is not None else 0):
            if onto is not None:
                x = x + ca.vertcat(onto(t, x, m, p), ca.MX.zeros(self.nz))
            if newton is None:
                x = completed(x[:ny])
            else:
                step = newton(t, x, m, p)
                x = x + ca.vertcat(ca.MX.zeros(ny), step)
        return ca.Function("consistent", point, [dense(x), dense(step)])

    def _state_point(self) -> list[ca.MX]:
        """Symbols for (t, state, m, p)."""
        n = self.ny if self.explicit is not None else self.lowering.n
        return [ca.MX.sym(k, v) for k, v in zip("txmp", (1, n, self.nm, self.np + self.numbers), strict=True)]

    @cached_property
    def landing(self) -> ca.Function:
        """(t, state, m, p) -> x, x', last correction of z relative to its scale: `consistent`, extended."""
        t, _, m, p = point = self._state_point()
        x, step = self.consistent(*point)
        xdot = self.point_function("xdot", lambda s: [self.xdot(s)])
        if self.explicit is None and self.nz:
            # a vanishing variable has no scale of its own: linear algebra gives it roundings of the other corrections
            step = ca.fabs(step)
            step = step / (self._rounding()(t, x, m, p) + ca.mmax(step) + SMALLEST_NORMAL)
        return ca.Function("landing", point, [dense(v) for v in (x, xdot(t, x, m, p), step)])

    def multipliers(self) -> ca.Function:
        """(t, x, m, p, L, e) -> lambda, (mu of index-1 rows, mu of constraints), zeta, lambda'.

        The adjoint in the notation of Serban and Recuero (SR).
        L = dG/dy is the adjoint of (f, K), e selects components of the functionals. With (alpha, zeta) =
        -K_z^-T (g_z + f_z^T L), lambda = L + k_y^T zeta is the projection above SR eq. 21, and mu of the constraints
        is -zeta', which is SR's mu_f in the lines after eq. 21.
        """
        s = self.solvable(self.symbols())
        ny, nk = self.ny, self.nk
        adjoint, e = s.kind.sym("L", ny), s.kind.sym("e", self.integrands.numel_out(0))
        equations, g = self.flow(*s.point), self.integrands(*s.point)
        f_x, g_x = jacobian(equations, s.x), jacobian(g, s.x)
        mu = -linear_solve(f_x[ny:, ny:].T, g_x[:, ny:].T @ e + f_x[:ny, ny:].T @ adjoint)
        rate = -(f_x[:ny, :ny].T @ adjoint + f_x[ny:, :ny].T @ mu + g_x[:, :ny].T @ e)
        xdot = self.xdot(s)
        along = ((s.x, xdot), (s.t, s.kind(1)), (adjoint, rate))
        mu_rate = sum((ca.jtimes(mu, v, of_v) for v, of_v in along[1:]), ca.jtimes(mu, *along[0]))
        k_y = jacobian(self.invariant_part(s), s.x)[:, :ny]
        zeta, zeta_rate = mu[self.nz - nk :, :], mu_rate[self.nz - nk :, :]
        lam = adjoint + k_y.T @ zeta
        of_index1 = mu
        if self.coupled:  # K_z has derivatives of k_y by z of index 1, which the equations as stated do not have
            of_index1 = -linear_solve(f_x[ny:, ny:].T, g_x[:, ny:].T @ e + f_x[:ny, ny:].T @ lam)
        multiplier = ca.vertcat(of_index1[: self.nz - nk, :], -zeta_rate)
        stated_x = jacobian(self.stated(*s.point), s.x)[:, :ny]
        lam_rate = -(stated_x.T @ ca.vertcat(lam, multiplier) + g_x[:, :ny].T @ e)
        return ca.Function("multipliers", [*s.point, adjoint, e], [dense(v) for v in (lam, multiplier, zeta, lam_rate)])

    @cached_property
    def entry(self) -> ca.Function:
        """x', the guards, their rates and the sizes of their terms at a point."""
        return self.point_function("entry", self._entry)

    def _entry(self, s: Flat) -> list[Any]:
        h = self.guards(*s.point)
        return [self.xdot(s), h, self.guard_rates(s), term_sizes(h, s.u)]


def term_sizes(values: Any, u: Any) -> Any:
    """First-order size of the terms summed into each value, |dv/du| |u|. Rounding errors are proportional to it."""
    return sizes_by(jacobian(values, u), values, u)


def sizes_by(by_u: Any, values: Any, u: Any) -> Any:
    """`term_sizes`, given the derivative by u."""
    return ca.fabs(by_u) @ ca.fabs(u) + ca.fabs(values)


def entry_sizes(matrix: Any, u: Any) -> Any:
    """Size of the terms summed into each entry of a matrix; an entry far below it is zero up to cancellation.

    Zero for sparse matrices: see `algebraic.refuse_multiple_root`.
    """
    if not is_dense(matrix):
        return type(matrix)(*matrix.shape)
    if min(matrix.shape) > MAX_DENSE_ROWS:  # structural nonzeros only
        return type(matrix)(matrix.sparsity(), term_sizes(matrix.nz[:], u))
    return ca.reshape(term_sizes(ca.vec(dense(matrix)), u), *matrix.shape)
