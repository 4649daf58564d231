"""Rewrite modes stated with a mass matrix, M y' = f, into the other forms of equations.

A variable whose rate follows from M, f and parameters keeps its equation in `Mode.ode`. If M is singular, a combination
of variables whose rate follows becomes a state of its own, named by the combination, and its variables become
algebraic. Where the matrix varies between transitions, the equations stay implicit, in `Mode.residual`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.codegen.casadi_tools import derivative_pattern
from dae_hybrid.compile.mass_constraints import constraints
from dae_hybrid.compile.mass_events import Combination, rewrite_events
from dae_hybrid.compile.mass_samples import is_regular
from dae_hybrid.compile.mass_structure import MassStructure, Weights, mass_structure, without_zeros
from dae_hybrid.compile.structure import unmatched
from dae_hybrid.errors import FormulationError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.statement.declarations import Declaration, MassStatement, Mode
from dae_hybrid.statement.discontinuous_nodes import bare
from dae_hybrid.statement.model import HybridModel

#: label and equation
_Row = tuple[str, Any]


@dataclass
class _Rewriting:
    model: HybridModel
    combinations: dict[str, Combination] = field(default_factory=dict)
    of_mode: dict[str, list[Combination]] = field(default_factory=dict)

    @cached_property
    def parameters(self) -> dict[int, Array]:
        """Nominal values of the parameters by hash of their symbols."""
        return {d.symbol.__hash__(): d.start for d in self.model.of_kind("parameter")}

    def structures(self) -> dict[str, MassStructure]:
        """The structure of each mass matrix."""
        found = {}
        for name, mode in self.model.modes.items():
            if mode.mass is not None:
                columns = [self._label(*e) for e in self.columns(mode)]
                stated = (name, mode.mass.matrix, self.parameters, mode.mass.labels, columns)
                found[name] = mass_structure(*stated, index_1=True)
                if found[name].needs_index_1 and not _Rewriting(_copied(self.model)).serves(mode, found[name]):
                    found[name] = mass_structure(*stated, index_1=False)
        return found

    def serves(self, mode: Mode, structure: MassStructure) -> bool:
        """Whether the equations and derivatives of constraints determine all rates and algebraic variables.

        They do at sampled values. Not if another equation needs the rate of an algebraic variable.
        """
        algebraic = set(self._without_rate({mode.name: structure}))
        if algebraic & self._needed().keys():
            return False
        rewritten = self.mode(mode, structure, algebraic)
        z = self._z(algebraic)
        if derivative_pattern(rewritten.constraint, z).nnz():
            return False
        y = self._differential() | {c.name: c.symbol for c in self.of_mode[mode.name]}
        rate_of: dict[str, Any] = self.model.rates | rewritten.ode
        moving = [name for name in y if name in rate_of]
        by_y = ca.jacobian(rewritten.constraint, ca.vertcat(*(y[name] for name in moving)))
        hidden = ca.mtimes(by_y, ca.vertcat(*(rate_of[name] for name in moving)))
        equations = ca.vertcat(rewritten.residual, rewritten.algebraic, hidden)
        occurring = {s.__hash__() for s in ca.symvar(equations)}
        rates = [rate for rate in self.model.rates.values() if rate.__hash__() in occurring]
        by = ca.jacobian(equations, ca.vertcat(*rates, *z))
        return by.is_square() and is_regular(by, self.parameters)

    def _differential(self) -> dict[str, ca.MX]:
        return {d.name: d.symbol for d in self.model.of_kind("differential")}

    def _z(self, algebraic: set[str]) -> list[ca.MX]:
        """The variables that are algebraic in the rewritten model."""
        every = self.model.declarations.values()
        return [d.symbol for d in every if d.kind == "algebraic" or d.name in algebraic]

    def columns(self, mode: Mode) -> list[tuple[str, int]]:
        """Variable and entry of each column of the mass matrix."""
        if mode.mass is None:
            return []
        return [(name, i) for name in mode.mass.variables for i in range(self.model.declarations[name].size)]

    def algebraic(self, structures: dict[str, MassStructure]) -> set[str]:
        """Names of the variables with an entry whose rate does not follow by itself.

        Raises
        ------
        FormulationError
            Another equation needs the rate of such a variable.
        """
        found, needed = self._without_rate(structures), self._needed()
        for name in needed.keys() & found.keys():
            raise FormulationError(
                f"The mass matrix of mode '{found[name]}' leaves an entry of '{name}' algebraic, and an equation "
                "needs its rate.",
                mode=needed[name],
                variables=[name],
                remedy="Declare the entries with and without a rate as variables of their own; state the modes "
                "with the same differential variables.",
            )
        return set(found)

    def _without_rate(self, structures: dict[str, MassStructure]) -> dict[str, str]:
        """Variables with an entry whose rate does not follow by itself, and a mode in which it does not."""
        found: dict[str, str] = {}
        for key, structure in structures.items():
            columns = self.columns(self.model.modes[key])
            known = [*structure.rates, *(of for of, _ in structure.states)]
            single = {next(iter(of)) for of in known if len(of) == 1}
            found |= {columns[j][0]: key for j in range(len(columns)) if j not in single}
        return found

    def _needed(self) -> dict[str, str]:
        """Variables whose rates stated equations contain, and a mode with such an equation."""
        found: dict[str, str] = {}
        for key, mode in self.model.modes.items():
            used = {s.__hash__() for s in ca.symvar(ca.vertcat(mode.residual, mode.algebraic))}
            found |= {name: key for name, rate in self.model.rates.items() if rate.__hash__() in used}
        return found

    def mode(self, mode: Mode, structure: MassStructure | None, algebraic: set[str]) -> Mode:
        """The mode without a mass matrix, and without rates of variables that are algebraic elsewhere."""
        ode: dict[str, Any] = {}
        self.of_mode[mode.name] = own = []
        for name, rate in mode.ode.items():
            if name in algebraic:
                for i in range(rate.numel()):
                    own.append(self._combination({(name, i): 1.0}))
                    ode[own[-1].name] = rate[i]
            else:
                ode[name] = rate
        split = [mode.residual.numel(), mode.residual.numel() + mode.algebraic.numel()]
        stated = [mode.labels[: split[0]], mode.labels[split[0] : split[1]], mode.labels[split[1] :]]
        residual, hidden = list[_Row](), list[_Row]()
        closing: list[_Row] = list(zip(stated[1], ca.vertsplit(mode.algebraic), strict=True))
        if mode.mass is not None and structure is not None:
            rates, residual = self._rates(mode, mode.mass, structure, algebraic)
            ode |= rates
            f, labels = mode.mass.rhs, mode.mass.labels
            closing += [(_joined(weights, labels), _weighted(weights, f)) for weights in structure.algebraic]
        differential = self._differential()
        values = [(f"value of {c.name}", c.value(differential) - c.symbol) for c in own]
        if values:
            closing, hidden = self._constraints(closing, values, self._z(algebraic))
        if structure is not None and structure.implicit:
            closing, loose = self._split(closing, self._z(algebraic))
            hidden += loose
        closing += values
        return replace(
            mode,
            ode=ode,
            residual=_column(mode.residual, residual),
            algebraic=_column(ca.MX(0, 1), closing),
            constraint=_column(mode.constraint, hidden),
            labels=(*stated[0], *_names(residual), *_names(closing), *stated[2], *_names(hidden)),
            mass=None,
        )

    def _rates(
        self, mode: Mode, mass: MassStatement, structure: MassStructure, algebraic: set[str]
    ) -> tuple[dict[str, Any], list[_Row]]:
        """Rates that follow, by variable or combination, and equations in which the others are unknowns."""
        ode: dict[str, Any] = {}
        columns, f, labels = self.columns(mode), mass.rhs, mass.labels
        rates: dict[str, dict[int, _Row]] = {}
        unknown: dict[tuple[str, int], ca.MX] = {}
        for of in structure.rates:
            first = columns[next(iter(of))]
            if first[0] in algebraic:
                unknown[first] = self._rate(self._state(mode, of))
            else:
                unknown[first] = self.model.der(first[0])[first[1]]
        for of, weights in structure.states:
            name, i = columns[next(iter(of))]
            if name in algebraic:
                ode[self._state(mode, of).name] = _weighted(weights, f)
            else:
                rates.setdefault(name, {})[i] = _joined(weights, labels), _weighted(weights, f)
        residual: list[_Row] = []
        whole = {name for name, _ in unknown} - algebraic
        for name, entries in rates.items():
            if name in whole:
                residual += [(label, self.model.der(name)[i] - rate) for i, (label, rate) in entries.items()]
            else:
                ode[name] = ca.vertcat(*(entries[i][1] for i in sorted(entries)))
        if structure.implicit:
            y = []
            for name in mass.variables:
                size = self.model.declarations[name].size
                parts = [unknown.get((name, i), ca.MX(1, 1)) for i in range(size)]
                y.append(self.model.der(name) if name in whole else ca.vertcat(*parts))
            off = ca.mtimes(without_zeros(mass.matrix), ca.vertcat(*y)) - f
            residual += [(_joined(weights, labels), _weighted(weights, off)) for weights in structure.implicit]
        return ode, residual

    def _state(self, mode: Mode, of: Weights) -> Combination:
        """The state of a combination of columns, as one of a mode."""
        columns = self.columns(mode)
        self.of_mode[mode.name].append(self._combination({columns[j]: factor for j, factor in of.items()}))
        return self.of_mode[mode.name][-1]

    def _rate(self, state: Combination) -> ca.MX:
        return self.model.rates.setdefault(state.name, ca.MX.sym(f"der({state.name})"))

    def _constraints(self, rows: list[_Row], values: list[_Row], z: list[ca.MX]) -> tuple[list[_Row], list[_Row]]:
        """Split equations without rates into those that determine algebraic variables, and constraints on the states.

        A constraint is a combination from which the algebraic variables cancel, given the `values` of the states.
        """
        found = constraints([row for _, row in rows], [row for _, row in values], z, self.parameters)
        labels = [label for label, _ in rows]
        hidden = [(_joined(weights, labels), constraint) for weights, constraint in found.values()]
        return [row for i, row in enumerate(rows) if i not in found], hidden

    def _split(self, rows: list[_Row], z: list[ca.MX]) -> tuple[list[_Row], list[_Row]]:
        """Split such equations by structure: where M leaves rates as unknowns, there are more equations than variables.

        Equations that no variable is left for are constraints.
        """
        if not rows or not z:
            return rows, []
        loose = set(unmatched(derivative_pattern(ca.vertcat(*(row for _, row in rows)), z))[0])
        return [row for i, row in enumerate(rows) if i not in loose], [rows[i] for i in sorted(loose)]

    def _combination(self, terms: dict[tuple[str, int], Any]) -> Combination:
        """The state of a combination, shared by the modes that have it."""
        text = " + ".join(self._term(*item) for item in terms.items())
        name = f"({text})".replace("+ -1 ", "- ").replace("+ -", "- ")
        if name not in self.combinations:
            self.combinations[name] = Combination(name, ca.MX.sym(name), terms)
        return self.combinations[name]

    def _term(self, entry: tuple[str, int], factor: Any) -> str:
        if isinstance(factor, float) and factor == 1.0:
            return self._label(*entry)
        text = f"{factor:.12g}" if isinstance(factor, float) else bare(str(factor))
        return f"{text} {self._label(*entry)}"

    def _label(self, name: str, i: int) -> str:
        return name if self.model.declarations[name].size == 1 else f"{name}[{i}]"


def _weighted(weights: Weights, rows: ca.MX) -> Any:
    return sum(rows[i] if isinstance(w, float) and w == 1.0 else w * rows[i] for i, w in weights.items())


def _joined(weights: Weights, labels: Sequence[str]) -> str:
    return " and ".join(labels[i] for i in weights)


def _column(stated: ca.MX, more: list[_Row]) -> ca.MX:
    return ca.vertcat(stated, *(row for _, row in more)) if more else stated


def _names(rows: list[_Row]) -> list[str]:
    return [name for name, _ in rows]


def _copied(model: HybridModel) -> HybridModel:
    """The model, with rates and values after transitions of its own."""
    found = copy.copy(model)
    found.rates, found.posts = dict(model.rates), dict(model.posts)
    return found


def with_mass(model: HybridModel) -> HybridModel:
    """Return the model without mass matrices.

    Raises
    ------
    FormulationError
        A mass matrix cannot be reduced, or its variables have no common form in all modes.
    """
    if all(mode.mass is None for mode in model.modes.values()):
        return model
    found = _copied(model)
    rewriting = _Rewriting(found)
    structures = rewriting.structures()
    algebraic = rewriting.algebraic(structures)
    modes = {key: rewriting.mode(mode, structures.get(key), algebraic) for key, mode in model.modes.items()}
    declarations = dict(model.declarations)
    for name in algebraic:
        declarations[name] = replace(declarations[name], kind="algebraic", value=np.zeros(declarations[name].size))
    for c in rewriting.combinations.values():
        unit = declarations[next(iter(c.terms))[0]].unit
        declarations[c.name] = Declaration(c.name, "differential", 1, c.symbol, unit=unit)
    for d in model.of_kind("memory"):
        if d.of is not None and d.of.name in algebraic:
            declarations[d.name] = replace(d, of=declarations[d.of.name])
    found.modes, found.declarations = modes, declarations
    rewrite_events(found, rewriting.of_mode, algebraic)
    return found
