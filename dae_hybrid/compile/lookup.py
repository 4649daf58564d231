"""Replace lookup tables in expressions by their interpolation, and refuse arguments outside of their grids."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import casadi as ca

from dae_hybrid.compile.lookup_functions import clipped, coefficients, defined, in_cells, margins, nearest, position
from dae_hybrid.compile.lowering import moving_symbols
from dae_hybrid.errors import ModelError
from dae_hybrid.statement.declarations import Declaration, Functional, Initial, MassStatement, Mode, Transition
from dae_hybrid.statement.discontinuities import instructions
from dae_hybrid.statement.discontinuous_nodes import bare
from dae_hybrid.statement.expressions import free_name
from dae_hybrid.statement.lookup import MAX_DERIVATIVE, PREFIX, LookupTable, is_table, stands_for
from dae_hybrid.statement.model import HybridModel
from dae_hybrid.statement.triggers import StateTrigger, TimeTrigger, Trigger


def with_tables(model: HybridModel, *, kinks: bool) -> HybridModel:
    """Return the model without calls of its tables; `kinks` tells whether kinks of linear ones become events."""
    if not model.tables:
        return model
    found, tables = copy.copy(model), _Tables(model, kinks=kinks)
    modes = {name: tables.mode(mode) for name, mode in model.modes.items()}
    found.modes = modes
    found.functionals = {name: tables.functional(f) for name, f in model.functionals.items()}
    found.transitions = {
        name: replace(
            tables.transition(t),
            sources=(modes[t.source.name],),
            target=None if t.target is None else modes[t.target.name],
        )
        for name, t in model.transitions.items()
    }
    if model.start is not None:
        found.start = replace(tables.initial(model.start), mode=modes[model.start.mode.name])
    found.declarations = {name: tables.declaration(d) for name, d in model.declarations.items()}
    for mode in modes.values():
        for transition in tables.conditions(mode, found.transitions):
            found.transitions[transition.name] = transition
    return found


@dataclass(frozen=True)
class _Use:
    """An argument of a table with ``outside="error"``."""

    table: LookupTable
    axis: int
    argument: ca.MX


@dataclass
class _Tables:
    model: HybridModel
    kinks: bool
    uses: dict[str, list[_Use]] = field(default_factory=dict)  # by mode; integrands under ""

    def __post_init__(self) -> None:
        model = self.model
        self._by_number = {table.number: table for table in model.tables.values()}
        self._functions: dict[tuple[int, str], ca.Function] = {}
        self._coefficients: dict[int, ca.MX] = {}
        self._moving = moving_symbols(model, inputs=True)
        self._solved = ca.veccat(ca.MX(0, 1), *(d.symbol for d in model.of_kind("algebraic")), *model.rates.values())

    # -- statements -------------------------------------------------------------------------------

    def mode(self, mode: Mode) -> Mode:
        """The mode without tables. Linear tables of differentiated equations become events."""
        parts = [mode.residual, mode.algebraic, mode.constraint]
        rows = sum(part.numel() for part in parts)
        is_hidden = rows > len(set(ca.jacobian_sparsity(ca.vertcat(*parts), self._solved).row()))
        is_hidden |= ca.jacobian_sparsity(mode.constraint, self._solved).nnz() > 0
        *rates, residual, algebraic, constraint = self._flows(
            [*mode.ode.values(), *parts], mode.name, events=self.kinks or is_hidden
        )
        mass: MassStatement | None = mode.mass
        if mass is not None:
            shape = mass.matrix.shape
            entries, rhs = self._flows([ca.vec(mass.matrix), mass.rhs], mode.name, events=self.kinks)
            mass = replace(mass, matrix=ca.reshape(entries, *shape), rhs=rhs)
        ode = dict(zip(mode.ode, rates, strict=True))
        return replace(mode, ode=ode, residual=residual, algebraic=algebraic, constraint=constraint, mass=mass)

    def functional(self, f: Functional) -> Functional:
        """The functional without tables."""
        integrand = None if f.integrand is None else self._flows([f.integrand], "", events=self.kinks)[0]
        return replace(
            f,
            integrand=integrand,
            terminal=self._at(f.terminal),
            at_times=tuple((self._at(when), self._at(value)) for when, value in f.at_times),
            at_events=tuple((name, self._at(value)) for name, value in f.at_events),
            series=tuple(replace(series, value=self._at(series.value)) for series in f.series),
            peaks=tuple(
                replace(
                    peak,
                    parts=tuple(map(self._at, peak.parts)),
                    watched=self._flows([peak.watched], "", events=True)[0],
                )
                for peak in f.peaks
            ),
        )

    def _each(self, values: dict[str, ca.MX]) -> dict[str, ca.MX]:
        return {name: self._at(value) for name, value in values.items()}

    def transition(self, t: Transition) -> Transition:
        """The transition without tables."""
        if isinstance(t.trigger, TimeTrigger):
            trigger: Trigger = replace(t.trigger, expression=self._at(t.trigger.expression), times=None)
        else:
            guard = t.trigger.expression
            trigger = replace(t.trigger, expression=self._flows([guard], t.source.name, events=not t.refusal)[0])
        return replace(
            t,
            trigger=trigger,
            reset=self._each(t.reset),
            memory=self._each(t.memory),
            equations=self._at(t.equations),
            metric=self._at(t.metric),
            guess=self._each(t.guess),
            when=self._at(t.when),
            priority=self._at(t.priority),
        )

    def initial(self, start: Initial) -> Initial:
        """The start without tables."""
        return replace(
            start,
            values=self._each(start.values),
            equations=self._at(start.equations),
            metric=self._at(start.metric),
            guess=self._each(start.guess),
        )

    def declaration(self, d: Declaration) -> Declaration:
        """The declaration without tables."""
        if isinstance(d.initial, ca.MX):
            return replace(d, initial=self._at(d.initial))
        if d.signal is not None:
            return replace(d, signal=replace(d.signal, values=self._at(d.signal.values)))
        return d

    # -- expressions ------------------------------------------------------------------------------

    def _at(self, expression: Any) -> Any:
        """An expression that is evaluated at instants: outside of the grid its value is no number."""
        if expression is None:
            return None
        return self._replaced([expression], partial(self._value, events=False, checked=True))[0]

    def _flows(self, expressions: Sequence[ca.MX], mode: str, *, events: bool) -> list[ca.MX]:
        """Expressions that are evaluated between transitions of a mode."""

        def value(table: LookupTable, orders: tuple[int, ...], x: list[ca.MX]) -> ca.MX:
            is_moving = [not self._moving.isdisjoint(s.__hash__() for s in ca.symvar(part)) for part in x]
            if table.outside == "error":
                own = self.uses.setdefault(mode, [])
                own += [_Use(table, i, part) for i, part in enumerate(x) if is_moving[i]]
            checked = not all(is_moving)
            return self._value(table, orders, x, events=events and any(is_moving), checked=checked)

        return self._replaced(expressions, value)

    def _replaced(
        self, expressions: Sequence[ca.MX], value: Callable[[LookupTable, tuple[int, ...], list[ca.MX]], ca.MX]
    ) -> list[ca.MX]:
        """Replace the calls of tables, innermost first."""
        found = list(expressions)
        while calls := _calls(found):
            own = [(node, [node.dep(i) for i in range(node.n_dep())]) for node in calls]
            inner = [(node, x) for node, x in own if not _calls(x)]
            which = [stands_for(node.which_function()) or (-1, ()) for node, _ in inner]
            new = [value(self._by_number[n], orders, x) for (n, orders), (_, x) in zip(which, inner, strict=True)]
            found = ca.graph_substitute(found, [node.get_output(0) for node, _ in inner], new)
        return found

    def _value(
        self, table: LookupTable, orders: tuple[int, ...], x: list[ca.MX], *, events: bool, checked: bool
    ) -> ca.MX:
        """The interpolation, or its derivative of some orders.

        `events`: kinks become jumps of `floor`; `checked`: no number outside of the grid.
        """
        given = x
        if orders and (table.kind == "linear" or table.outside == "hold"):
            raise ModelError(
                f"An expression contains the derivative of table '{table.name}', which jumps at "
                f"{'grid points' if table.kind == 'linear' else 'the ends of the grid'}.",
                remedy="Take kind='cubic' with outside='error' or 'linear', or a table of the derivative.",
            )
        if table.outside == "hold":
            x = [clipped(axis, part) for axis, part in zip(table.grid, x, strict=True)]
        c = self._coefficients.setdefault(table.number, coefficients(table))
        if table.kind == "cubic":
            what = "_".join(["cubic", *map(str, orders)])
            value = self._function(table, what, lambda name: in_cells(table, name, searched=True, orders=orders))(*x, c)
        elif events:
            value = self._function(table, "cells", lambda name: in_cells(table, name, searched=False))(
                *x, *self._cells(table, given), c
            )
        else:
            points, found = self._function(table, "nearest", lambda name: nearest(table, name))(*x, c)
            powers = [[ca.MX(1), d, ca.fabs(d)] for d in (part - points[i] for i, part in enumerate(x))]
            last = powers[1] if len(powers) > 1 else [ca.MX(1)]
            terms = [p * q for q in last for p in powers[0]]
            value = sum((term * found[k] for k, term in enumerate(terms)), ca.MX(0))
        if checked and table.outside == "error":
            value = value + self._function(table, "defined", lambda name: defined(table, name))(*x)
        return value

    def _cells(self, table: LookupTable, x: list[ca.MX]) -> list[ca.MX]:
        found = []
        for i, (axis, part) in enumerate(zip(table.grid, x, strict=True)):
            place = position(tuple(axis.tolist()), f"{PREFIX}{table.number}_position{i}")(part)
            found.append(ca.fmin(ca.fmax(ca.floor(place), 0), axis.size - 2))
        return found

    def _function(self, table: LookupTable, what: str, make: Callable[[str], ca.Function]) -> ca.Function:
        key = table.number, what
        if key not in self._functions:
            self._functions[key] = make(f"{PREFIX}{table.number}_{what}")
        return self._functions[key]

    # -- the domain -------------------------------------------------------------------------------

    def conditions(self, mode: Mode, taken: dict[str, Transition]) -> list[Transition]:
        """Conditions of a mode: the arguments of its tables stay on the grid."""
        found: dict[str, Transition] = {}
        stated = set[str]()
        for use in (*self.uses.get(mode.name, ()), *self.uses.get("", ())):
            axis, by = use.table.grid[use.axis], margins(use.table)[use.axis]
            key = f"{use.table.number} {use.axis} {use.argument}"
            if key in stated:
                continue
            stated.add(key)
            text = bare(str(use.argument))
            for sign, limit, guard in (
                (">=", axis[0], use.argument - (axis[0] - by)), ("<=", axis[-1], axis[-1] + by - use.argument)
            ):  # fmt: skip
                name = free_name(f"{mode.name}: table '{use.table.name}', {text} {sign} {limit:g}", taken | found)
                reason = f"The argument {text} of table '{use.table.name}' leaves its grid, {sign} {limit:g}."
                found[name] = Transition(
                    name, (mode,), None, StateTrigger(guard), -1, "error", math.inf, {}, {}, ca.MX(0, 1), (), (), None,
                    {}, refusal=reason,
                )  # fmt: skip
        return list(found.values())


def _calls(expressions: Sequence[ca.MX]) -> list[ca.MX]:
    """Calls of the functions that stand for tables."""
    column = ca.veccat(ca.MX(0, 1), *expressions)
    if column.is_constant():
        return []
    nodes = [node for _, node in instructions(ca.symvar(column), [column], {ca.OP_CALL})]
    for function in [node.which_function() for node in nodes if not is_table(node.which_function())]:
        inner = [own for own in (function, *function.find_functions()) if PREFIX in own.name()]
        if any(not is_table(own) and not own.name().startswith(f"jac_{PREFIX}") for own in inner):
            raise ModelError(
                f"An expression contains a derivative of a table of an order above {MAX_DERIVATIVE}.",
                remedy="State the derivative by a table of its own.",
            )
        if inner:
            raise ModelError(
                f"The function '{function.name()}' calls a table of the model.",
                remedy="Call the table outside of CasADi functions, and pass its value.",
            )
    return [node for node in nodes if stands_for(node.which_function()) is not None]
