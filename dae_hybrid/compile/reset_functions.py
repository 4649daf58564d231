"""Symbolic functions of a transition's reset: its unknowns, its equations, and their derivatives."""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.codegen.casadi_tools import dense, jacobian, kind_for
from dae_hybrid.codegen.kernels import Kernel
from dae_hybrid.compile.lowering import Flat, ModeLowering, split, symbols_for
from dae_hybrid.compile.mode_functions import entry_sizes, term_sizes
from dae_hybrid.compile.mode_system import ModeBuilder
from dae_hybrid.compile.structure import unmatched
from dae_hybrid.errors import FormulationError, ModelError
from dae_hybrid.layout import Layout
from dae_hybrid.numerics.matrices import compact
from dae_hybrid.statement.declarations import Declaration, Transition
from dae_hybrid.statement.model import HybridModel


class Jump:
    """The reset of a transition as functions of the point before, (t, x-, m-, p), and of the unknowns xi.

    xi = (y+ left open by the reset, z+, unknowns of the reset, multipliers of the projection). The equations
    Phi(xi) = 0 are T = 0 (SR eq. 3c, 16c) or the stationarity of the projection, those of the target's constraints that
    help to determine y+ (eq. 16e), and the target's K (eq. 3d, 16f).
    """

    def __init__(self, model: HybridModel, transition: Transition, source: ModeLowering, target: ModeBuilder) -> None:
        self.model, self.transition, self.source, self.target = model, transition, source, target
        self.has = {d.name for d in source.variables}
        self.own = [d.name for d in target.lowering.variables]
        used = {v.__hash__() for v in ca.symvar(transition.equations)}
        self.unknowns = [d for d in model.of_kind("unknown") if d.symbol.__hash__() in used]
        self._check_names()
        self.posts = [
            model.posts.setdefault(d.name, ca.MX.sym(f"post({d.name})", d.size)) for d in target.lowering.variables
        ]
        layout = target.lowering.differential
        self.rated = [n for n in layout.names if f"der({n})" in model.posts and f"der({n})" not in self.own]
        open_names = [n for n in layout.names if model.posts[n].__hash__() in used]
        open_names += [d.name for d in transition.project]
        self.free = [i for n in open_names for i in range(layout[n].start, layout[n].stop)]
        self.nu = sum(d.size for d in self.unknowns)
        self._lower(open_names)
        self.conditions, self.solved = self._parted()
        self.helping = self._helping_constraints()
        self.nv = len(self.helping) if transition.project else 0
        self.n_xi = len(self.free) + target.nz + self.nu + self.nv

    @property
    def post_rates(self) -> list[ca.MX]:
        """Symbols for the post-transition rates of the states `rated`."""
        return [self.model.posts[f"der({n})"] for n in self.rated]

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the entries of xi."""
        y, z = self.target.lowering.differential.labels(), self.target.lowering.algebraic.labels()
        unknowns = Layout.of((d.name, d.size) for d in self.unknowns).labels()
        return (*(y[i] for i in self.free), *z, *unknowns, *(f"projection multiplier {i}" for i in range(self.nv)))

    @property
    def equation_labels(self) -> tuple[str, ...]:
        """Labels of the rows of Phi."""
        target, stationary = self.target, len(self.free) if self.transition.project else 0
        return (
            *(self.transition.labels[i] for i in self.solved),
            *(f"nearest value of {self.labels[i]}" for i in range(stationary)),
            *(target.constraint_labels[i] for i in self.helping),
            *(f"equation {i} of the target" for i in range(target.nz)),
        )

    @property
    def condition_labels(self) -> tuple[str, ...]:
        """Labels of the reset equations without unknowns."""
        return tuple(self.transition.labels[i] for i in self.conditions)

    @property
    def simple(self) -> bool:
        """Whether xi is z+ alone and there are no further conditions."""
        return self.n_xi == self.target.nz and not self.target.nk and not self.conditions

    # -- declarations -----------------------------------------------------------------------------------

    def _check_names(self) -> None:
        transition, target, name = self.transition, self.target, self.transition.name
        unused = [d.name for d in transition.project if d.name not in target.lowering.differential]
        for what, keys in (("reset gives a value to", transition.reset), ("projection moves", unused)):
            for key in keys:
                if key not in target.lowering.differential:
                    raise ModelError(
                        f"The {what} '{key}', which the target mode '{target.lowering.mode.name}' does not have.",
                        transition=name,
                        variables=[key],
                        remedy=f"States of the target: {', '.join(target.lowering.differential.names)}.",
                    )
        if transition.project and not target.nk:
            raise ModelError(
                f"project= needs a target with constraints; mode '{target.lowering.mode.name}' has none.",
                transition=name,
            )
        known = {*self.own, *(d.name for d in self.unknowns)}
        lost = [key for key in transition.guess if key not in known]
        if lost:
            raise ModelError(
                f"guess= names {', '.join(lost)}, which this transition does not solve for.",
                transition=name,
                variables=lost,
            )

    def _lower(self, open_names: list[str]) -> None:
        transition, target, name = self.transition, self.target, self.transition.name
        states, given, starts, before = [], [], [], []
        for d in target.lowering.variables:
            if d.kind == "algebraic":
                starts.append((f"start of '{d.name}'", self._start(d)))
                before.append((f"value of '{d.name}'", self._before(d)))
            elif d.name in transition.reset or d.name in self.has or d.name in open_names:
                value = transition.reset.get(d.name, self._before(d))
                given.append((f"value of '{d.name}'", value))
                states.append((f"reset of '{d.name}'", transition.guess.get(d.name, value)))
            else:
                raise ModelError(
                    f"State '{d.name}' of the target mode has no value: the source mode does not have it.",
                    transition=name,
                    variables=[d.name],
                    remedy="Give it one in reset=.",
                )
        updates = []
        for d in self.model.of_kind("memory"):
            if transition.freezes and d.of is not None and d.of.name in self.own:
                updates.append((f"memory '{d.name}'", self.model.posts[d.of.name]))
            else:
                updates.append((f"memory update of '{d.name}'", transition.memory.get(d.name, d.symbol)))
        none = [("none", ca.MX(0, 1))]
        unknown = [d.symbol for d in self.unknowns]
        rates = self.post_rates
        lower = self.source.lower
        self.y = lower("jump_y", states)
        self.given = lower("given_y", given)
        self.z = lower("jump_z", starts or none)
        self.z_before = lower("z_before", before or none)
        self.u = lower("jump_u", [(f"guess of '{d.name}'", self._start(d)) for d in self.unknowns] or none)
        self.m = lower("jump_m", updates or none, [*self.posts, *unknown])
        self.t = lower("jump_t", [(f"reset of '{name}'", transition.equations)], [*self.posts, *unknown, *rates])
        metric = ca.MX.eye(1) if transition.metric is None else transition.metric
        self.metric = lower("metric", [(f"metric of '{name}'", ca.vec(dense(metric)))])
        costs = event_costs(self.model, name)
        self.has_cost = bool(costs)
        self.cost = lower("cost", costs or none, [*self.posts, *unknown, *rates])

    def _start(self, d: Declaration) -> ca.MX:
        """Initial guess of Newton's method for a variable, in pre-transition values."""
        return self.transition.guess.get(d.name, self._before(d))

    def _before(self, d: Declaration) -> ca.MX:
        """The value before the transition; the declared value if the source mode lacks the variable."""
        if d.name in self.has:
            return d.symbol
        return ca.MX(ca.DM(np.zeros(d.size) if d.value is None else d.value))

    def _parted(self) -> tuple[list[int], list[int]]:
        """Split the reset equations into conditions on pre-transition values (no unknowns) and the others."""
        unknowns = range(4, self.t.n_in())
        solved = sorted({row for i in unknowns for row in self.t.jac_sparsity(0, i).row()})
        return [i for i in range(self.transition.equations.numel()) if i not in set(solved)], solved

    def _helping_constraints(self) -> tuple[int, ...]:
        """Indices of the target's constraints that contain values left open by the reset; refuses too few equations."""
        target, name = self.target, self.transition.name
        s = target.symbols()
        by_x = jacobian(target.invariant_part(s), s.x)
        helping = tuple(sorted(set(by_x[:, self.free].sparsity().row()))) if self.free else ()
        rows, wanted = self.transition.equations.numel(), len(self.free) + self.nu
        if self.transition.project or (rows + len(helping) >= wanted and (wanted or not rows)):
            return helping
        layout = target.lowering.differential.labels()
        unknowns = [*(f"post({layout[i]})" for i in self.free), *(d.name for d in self.unknowns)]
        raise FormulationError(
            f"The reset has {rows} equations and {len(helping)} constraints of the target for {wanted} unknowns "
            f"({', '.join(unknowns) or 'none'}).",
            transition=name,
            variables=unknowns,
            remedy="State one equation for every post() value and unknown that they contain; what has no post() is "
            "continuous, and the target's constraints on these values count.",
        )

    # -- functions of flat vectors ------------------------------------------------------------------------

    def symbols(self) -> tuple[Flat, Any, Any]:
        """Flat symbols before the transition, symbols for xi and for m+."""
        functions = [self.y, self.given, self.z, self.z_before, self.u, self.m, self.t, self.metric, self.cost]
        s = symbols_for(
            [*functions, self.target.flow, self.target.invariants], self.source.n, self.target.nm, self.target.np
        )
        return s, s.kind.sym("xi", self.n_xi), s.kind.sym("m_after", self.target.nm)

    def start(self, s: Flat, *, continuous: bool = False) -> Any:
        """Initial guess of Newton's method for xi; with the pre-transition z if `continuous`."""
        functions = (self.y, self.z_before if continuous else self.z, self.u)
        columns: list[Any] = [ca.vertcat(*function.call(list(s.point))) for function in functions]
        y, z, u = columns
        parts = [y[self.free, :] if self.free else s.kind(0, 1), z, u, s.kind(ca.DM.zeros(self.nv))]
        return ca.vertcat(*parts)

    def values_given(self, s: Flat) -> Any:
        """y+ given by the reset; for values left open, the value before."""
        return ca.vertcat(*self.given.call(list(s.point)))

    def after(self, s: Flat, xi: Any) -> Any:
        """x+ as a function of xi."""
        y, count = s.kind(self.values_given(s)), len(self.free)
        if count:
            y[self.free, :] = xi[:count, :]
        return ca.vertcat(y, xi[count : count + self.target.nz, :])

    def _unknown(self, xi: Any) -> list[Any]:
        begin = len(self.free) + self.target.nz
        return split(xi[begin : begin + self.nu, :], [d.size for d in self.unknowns])

    def _posts(self, after: Any) -> list[Any]:
        return split(after, [d.size for d in self.target.lowering.variables])

    def memory(self, s: Flat, xi: Any) -> Any:
        """m+ as a function of xi."""
        return ca.vertcat(*self.m.call([*s.point, *self._posts(self.after(s, xi)), *self._unknown(xi)]))

    def _rates(self, s: Flat, after: Any, m_after: Any) -> list[Any]:
        layout = self.target.lowering.differential
        f = self.target.flow(s.t, after, m_after, s.p)
        return [f[layout[n], :] for n in self.rated]

    def phi(self, s: Flat, xi: Any, m_after: Any) -> Any:
        """Phi(xi)."""
        target, after = self.target, self.after(s, xi)
        joint = Flat(s.kind, s.t, after, m_after, s.p)
        inputs = [*self._posts(after), *self._unknown(xi), *self._rates(s, after, m_after)]
        rows = [self.t(*s.point, *inputs)[self.solved, :]]
        if self.transition.project:
            rows.append(self._stationary(s, xi, after, m_after))
        if self.helping:
            rows.append(target.invariant_part(joint)[list(self.helping), :])
        return ca.vertcat(*rows, target.algebraic_part(joint))

    def _stationary(self, s: Flat, xi: Any, after: Any, m_after: Any) -> Any:
        """M (y+ - y~) - k_y^T nu: y+ is the point on the constraints nearest to y~ in the metric M."""
        count = len(self.free)
        metric = square_metric(self.metric(*s.point), count, s.kind, transition=self.transition.name)
        at = s.kind.sym("at", after.numel())
        k = self.target.invariants(s.t, at, m_after, s.p)
        by_y = ca.substitute(jacobian(k, at), at, after)[list(self.helping), self.free]
        return metric @ (xi[:count, :] - self.values_given(s)[self.free, :]) - by_y.T @ xi[self.n_xi - self.nv :, :]

    def costs(self, s: Flat, xi: Any) -> Any:
        """Costs of all functionals at this transition."""
        after = self.after(s, xi)
        inputs = [*self._posts(after), *self._unknown(xi), *self._rates(s, after, self.memory(s, xi))]
        return ca.vertcat(*self.cost.call([*s.point, *inputs]))

    # -- kernels ----------------------------------------------------------------------------------------

    def phi_by_xi(self, s: Flat, xi: Any, m_after: Any) -> tuple[Any, Any, Any]:
        """Phi, its total derivative by xi (with m+ a function of xi), and the sizes of that derivative's terms."""
        phi = self.phi(s, xi, m_after)
        by_xi, by_m = jacobian(phi, xi), jacobian(phi, m_after)
        m_xi = jacobian(self.memory(s, xi), xi)
        return phi, by_xi + by_m @ m_xi, ca.fabs(by_xi) + ca.fabs(by_m) @ ca.fabs(m_xi)

    def kernels(self) -> dict[str, Kernel]:
        """Return `jump`, `after`, `linear` and, if there are costs, `cost` of `TransitionMap`."""
        s, xi, m_after = self.symbols()
        t, x, m, p = s.point
        phi, by_xi, by_xi_size = self.phi_by_xi(s, xi, m_after)
        everything = ca.vertcat(xi, m_after, s.u)
        at = ca.Function("at", [*s.point, xi, m_after], [phi, by_xi, by_xi_size, term_sizes(phi, everything)])
        m_new = self.memory(s, xi)
        at_new = at.call([*s.point, xi, m_new])
        outputs = [self.after(s, xi), m_new, *at_new]
        outputs = [compact(e) if i in (3, 4) else dense(e) for i, e in enumerate(outputs)]
        after = ca.Function("after", [t, x, m, xi, p], outputs)
        total = self.phi(s, xi, m_new)
        self._check_rank(jacobian(total, xi).sparsity())
        z_before = ca.vertcat(*self.z_before.call(list(s.point)))
        y_new = self.after(s, xi)[: self.target.ny, :]
        linear = [
            *(jacobian(v, w) for v in (y_new, m_new, total) for w in (s.u, xi)),
            at_new[2],
            jacobian(z_before, s.u),
            entry_sizes(jacobian(total, xi), ca.vertcat(xi, s.u)),
        ]
        found = {
            "jump": Kernel(self._arrival(after)),
            "after": Kernel(after, [3, 4]),
            "linear": Kernel(ca.Function("linear", [t, x, m, xi, p], [compact(e) for e in linear]), range(9)),
        }
        if self.conditions:
            found["conditions"] = self._conditions(s)
        if self.has_cost:
            cost = self.costs(s, xi)
            found["cost"] = cost_kernel(s, xi, cost)
        return found

    def _conditions(self, s: Flat) -> Kernel:
        """Return `conditions` of `TransitionMap`."""
        none = [s.kind(*self.t.size_in(i)) for i in range(4, self.t.n_in())]
        rows = self.t(*s.point, *none)[self.conditions, :]
        outputs = [rows, jacobian(rows, s.u), term_sizes(rows, s.u)]
        return Kernel(ca.Function("conditions", list(s.point), [dense(e) for e in outputs]), [1])

    def _check_rank(self, pattern: ca.Sparsity) -> None:
        """Refuse structurally deficient equations.

        Algebraic variables may be determined by continuity, which is decided when the transition fires.
        """
        begin = len(self.free)
        continuous = ca.DM.eye(self.n_xi)[begin : begin + self.target.nz, :].sparsity()
        if ca.sprank(ca.DM(ca.vertcat(pattern, continuous), 1)) == self.n_xi:
            return
        rows, columns = unmatched(pattern)
        names = [self.labels[j] for j in columns]
        raise FormulationError(
            f"The reset and the target's equations cannot determine {', '.join(names)}; "
            f"{', '.join(self.equation_labels[i] for i in rows) or 'nothing'} is left over.",
            transition=self.transition.name,
            variables=names,
            remedy="Some of the equations state the same thing twice, and something else is missing.",
        )

    def _arrival(self, after: ca.Function) -> ca.Function:
        """Arrival in one call, for the usual case that the initial guess of xi solves the equations."""
        s, _, _ = self.symbols()
        first = self.start(s, continuous=True)
        x_new, m_new, phi, _, _, phi_size = after(s.t, s.x, s.m, first, s.p)
        arrive = ca.Function("arrive", list(s.point), [x_new, m_new, first, phi, phi_size, self.start(s)])
        entry = self.target.entry
        kind = kind_for([arrive, entry])
        t, x, m, p = (kind.sym(n, v.numel()) for n, v in zip("txmp", s.point, strict=True))
        x_new, m_new, *rest = arrive(t, x, m, p)
        return ca.Function("jump", [t, x, m, p], [dense(e) for e in (x_new, m_new, *rest, *entry(t, x_new, m_new, p))])


def square_metric(given: Any, count: int, kind: Any, *, transition: str | None = None) -> Any:
    """Expand a metric given as a number, a diagonal or a matrix, in one column, to a matrix."""
    if given.numel() == 1:
        return given * kind(ca.DM.eye(count))
    if given.numel() == count:
        return ca.diag(given)
    if given.numel() == count**2:
        return ca.reshape(given, count, count)
    raise ModelError(
        f"The metric has {given.numel()} entries; the projection moves {count} values.",
        transition=transition,
        remedy=f"Give a number, {count} entries for a diagonal, or a {count} by {count} matrix.",
    )


def event_costs(model: HybridModel, transition: str) -> list[tuple[str, ca.MX]]:
    """Costs of all functionals at a transition, each with a description; empty if no functional has any."""
    fired = [(f, dict(f.at_events).get(transition)) for f in model.functionals.values()]
    if all(value is None for _, value in fired):
        return []
    return [
        (f"cost of '{f.name}' at '{transition}'", ca.MX.zeros(f.size) if value is None else value) for f, value in fired
    ]


def cost_kernel(s: Flat, xi: Any, cost: Any) -> Kernel:
    """Return `cost` of `TransitionMap`."""
    outputs = [dense(e) for e in (cost, jacobian(cost, s.u), jacobian(cost, xi))]
    return Kernel(ca.Function("cost", [s.t, s.x, s.m, xi, s.p], outputs), [1, 2])
