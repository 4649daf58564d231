"""Declare the symbols of a model: parameters, variables, memory, signals, and their values around a transition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import casadi as ca
import numpy as np
from numpy.typing import ArrayLike

from dae_hybrid.errors import ModelError
from dae_hybrid.numeric_input import shown
from dae_hybrid.statement.declarations import Declaration, Interpolation, Kind, SignalData, Statement
from dae_hybrid.statement.expressions import (
    as_matrix,
    checked_name,
    entries,
    expression,
    in_rows,
    labelled,
    limits,
    numbers,
    positive_size,
)
from dae_hybrid.statement.lookup import LookupTable, Outside, lookup_table
from dae_hybrid.statement.pickling import packed, unpacked
from dae_hybrid.statement.vector_entries import assembled, chosen
from dae_hybrid.tables import html, in_short

Rest = Literal["none", "kept", "open"]
#: polynomial degree of a signal between two knots
DEGREES: dict[str, int] = {"previous": 0, "linear": 1, "cubic": 3}


@dataclass
class Symbols(Statement):
    """The named symbols of a model; base class of `HybridModel`."""

    name: str
    time: ca.MX = field(default_factory=lambda: ca.MX.sym("t"), init=False)
    declarations: dict[str, Declaration] = field(default_factory=dict, init=False)
    rates: dict[str, ca.MX] = field(default_factory=dict, init=False)
    posts: dict[str, ca.MX] = field(default_factory=dict, init=False)
    indicators: dict[str, ca.MX] = field(default_factory=dict, init=False)  # by the name of the mode
    signals: dict[str, tuple[ca.MX, ca.MX]] = field(default_factory=dict, init=False)  # (value, rate)
    tables: dict[str, LookupTable] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ModelError(f"The name of a model must be a string, got {shown(self.name)}.")

    def __reduce__(self) -> tuple[Any, ...]:
        return unpacked, packed(self)

    def _repr_html_(self) -> str:
        rows = [["name", "kind", "size", "value", "unit", "description"]]
        for d in self.declarations.values():
            value = in_short(d.start) if d.kind == "parameter" else ""
            rows.append([d.name, "signal" if d.signal else d.kind, str(d.size), value, d.unit, d.description])
        return html(repr(self), rows)

    # -- declarations -------------------------------------------------------------------------------

    def parameter(
        self, name: str, value: ArrayLike, *, size: int | None = None, unit: str = "", description: str = ""
    ) -> ca.MX:
        """Declare a parameter with its nominal value.

        Parameters
        ----------
        value : float or array
            An array of shape (n,) declares a vector, one of shape (m, n) a matrix. The entries of a matrix follow each
            other by rows, as ``K[0,0]``, ``K[0,1]``, ..., in arrays of all parameters, labels and derivatives.
        size : int, optional
            Length of a vector whose entries are equal.

        Returns
        -------
        MX
            A symbol, or an expression of shape (m, n).

        Examples
        --------
        >>> import numpy as np
        >>> import dae_hybrid as dh
        >>> m = dh.HybridModel("oscillators")
        >>> K, x, v = m.parameter("K", np.diag([1.0, 4.0])), m.differential("x", size=2), m.differential("v", size=2)
        >>> m.initial(m.mode("run", ode={x: v, v: -K @ x}), {x: 1.0, v: 0.0})
        >>> m.functional("G", terminal=x[0])
        >>> found = dh.adjoint_gradient(m.build(), (0, 1), parameters={"K": [[2, 1], [1, 4]]}, rtol=1e-9)
        >>> found.parameters
        ('K[0,0]', 'K[0,1]', 'K[1,0]', 'K[1,1]')
        """
        table = None if size is not None else as_matrix(f"parameter '{name}'", value)
        if table is not None:
            self._declare(name, "parameter", table.size, unit, description, value=table.ravel())
            declared = self.declarations[name]
            matrix = ca.reshape(declared.symbol, *table.shape[::-1]).T
            self.declarations[name] = replace(declared, matrix=matrix)
            return matrix
        value = entries(f"parameter '{name}'", name, size, value)
        nominal = numbers(f"parameter '{name}'", value, None if size is None else positive_size(name, size))
        return self._declare(name, "parameter", nominal.size, unit, description, value=nominal)

    def differential(self, name: str, *, size: int = 1, unit: str = "", description: str = "") -> ca.MX:
        """Declare a state whose time derivative is defined by the modes."""
        return self._declare(name, "differential", size, unit, description)

    def algebraic(
        self,
        name: str,
        *,
        size: int = 1,
        guess: ArrayLike = 0.0,
        bounds: tuple[Any, Any] | None = None,
        unit: str = "",
        description: str = "",
    ) -> ca.MX:
        """Declare an algebraic variable: a multiplier, a force, a current.

        Parameters
        ----------
        name : str
            Name of the variable.
        size : int
            Length of a vector.
        guess : float or array, shape (size,)
            Initial guess of Newton's method at the initial time.
        bounds : (lower, upper), optional
            Valid range of the variable in the modes that use it: ``(0, 1)`` for a fraction, ``(0, inf)`` for a
            force that only pushes. Each bound is a number, an array of shape (size,), or None. A run that violates a
            bound raises a `BoundError`, unless a transition leaves the mode there.

        Raises
        ------
        ModelError
            The name is taken, or `guess` or `bounds` is invalid.
        """
        start = numbers(f"guess of '{name}'", guess, positive_size(name, size))
        between = limits(f"bounds of '{name}'", bounds, size)
        return self._declare(name, "algebraic", size, unit, description, value=start, bounds=between)

    def unknown(
        self, name: str, *, size: int = 1, guess: ArrayLike = 0.0, unit: str = "", description: str = ""
    ) -> ca.MX:
        """Declare an unknown of implicit resets, such as an impulse; its value is in `EventRecord.unknowns`.

        `guess` is the initial guess of Newton's method.
        """
        start = numbers(f"guess of '{name}'", guess, positive_size(name, size))
        return self._declare(name, "unknown", size, unit, description, value=start)

    def memory(
        self,
        name: str,
        *,
        of: ca.MX | None = None,
        initial: Any = None,
        size: int = 1,
        unit: str = "",
        description: str = "",
    ) -> ca.MX:
        """Declare a memory state: constant within a mode, updated by transitions.

        Parameters
        ----------
        name : str
            Name of the memory state.
        of : symbol, optional
            Freeze this differential or algebraic variable on entry into a mode: ``y*``, ``z*`` of Serban and
            Recuero (2019), section 4. Without it, transitions update the memory by their ``memory=`` argument.
        initial : number, array or expression
            Value in the initial mode, in terms of parameters and differential variables. Optional if `of` is given;
            the default is that variable's consistent initial value.
        size : int
            Length; taken from `of` if that is given.

        Raises
        ------
        ModelError
            The name is taken, `of` is neither differential nor algebraic, or `of` and `initial` are both missing.
        """
        frozen, size = None, positive_size(name, size)
        if of is not None:
            where = f"of= of memory '{name}'"
            frozen = self.lookup(of, where)
            frozen.require(("differential", "algebraic"), where)
            size = frozen.size
        if initial is None and frozen is None:
            raise ModelError(
                f"Memory '{name}' needs an initial value.",
                remedy="Give initial=, a number or an expression in parameters.",
            )
        start = None if initial is None else expression(f"initial value of memory '{name}'", initial, size)
        return self._declare(name, "memory", size, unit, description, initial=start, of=frozen)

    def discrete(self, name: str, *, initial: Any, size: int = 1, unit: str = "", description: str = "") -> ca.MX:
        """Declare a discrete state, constant between the ticks of the clocks that `update` it: `memory` without `of=`.

        Parameters
        ----------
        initial : number, array or expression
            Value at the start, in terms of parameters and differential variables.

        Raises
        ------
        ModelError
            The name is taken, or an argument is invalid.
        """
        return self.memory(name, initial=initial, size=size, unit=unit, description=description)

    def active(self, mode: Any) -> ca.MX:
        """Return an indicator: 1 in a mode, 0 in the others.

        It may be used wherever variables may; at a transition it is that of the source mode.

        Parameters
        ----------
        mode : Mode or str
            A mode of this model, which may be declared later.
        """
        name = mode if isinstance(mode, str) else getattr(mode, "name", None)
        if not isinstance(name, str):
            raise ModelError(f"active() needs a mode or its name, got {shown(mode)}.")
        return self.indicators.setdefault(name, ca.MX.sym(f"active({name})"))

    def signal(
        self,
        name: str,
        t_data: ArrayLike,
        values: Any,
        *,
        kind: Interpolation = "linear",
        outside: str = "error",
        unit: str = "",
        description: str = "",
    ) -> ca.MX:
        """Declare an input signal from data, such as a ground motion or a measured load.

        The result is a symbol like any other, by which `casadi.jacobian` differentiates. The coefficients of the
        current interval are memory and change at the knots, where the integrator stops, so that jumps of the signal or
        its derivatives cost no accuracy. `der` gives the signal's rate.

        Parameters
        ----------
        t_data : array, shape (n,)
            Knots, strictly increasing numbers. Times that depend on parameters are those of transitions (``at=``).
        values : array, shape (n,), or expression in parameters
            Values at the knots. Derivatives with respect to an expression, such as a vector parameter, are exact.
        kind : {"linear", "previous", "cubic"}
            Interpolation: piecewise linear, piecewise constant (the previous value), or cubic spline (not-a-knot).
        outside : {"error", "hold"}
            Outside the data, refuse the run, or hold the first and the last value.

        Raises
        ------
        ModelError
            The name is taken, the knots do not increase strictly, or `kind`, `outside` or the sizes are invalid.

        Examples
        --------
        >>> import dae_hybrid as dh
        >>> m = dh.HybridModel("cart")
        >>> push = m.signal("push", [0.0, 1.0, 2.0], [0.0, 1.0, 0.0])
        >>> v = m.differential("v")
        >>> m.initial(m.mode("free", ode={v: push}), {v: 0.0})
        >>> round(float(dh.simulate(m.build(), (0, 2))(2.0)["v"]), 6)
        1.0
        """
        if _is_symbolic(t_data):
            raise ModelError(
                f"The knots of signal '{name}' are expressions, {shown(t_data)}; they must be numeric.",
                remedy="State times that depend on parameters by a memory that transitions update: "
                "m.transition('all', 'same', at=times, memory={level: values}).",
            )
        knots = numbers(f"knots of signal '{name}'", t_data)
        what = f"values of signal '{name}'"
        if knots.size < 2 or np.any(np.diff(knots) <= 0):
            raise ModelError(f"The knots of signal '{name}' must be two or more and increase strictly.")
        if not isinstance(kind, str) or kind not in DEGREES:
            raise ModelError(f"Signal '{name}': kind must be one of {', '.join(DEGREES)}, got {kind!r}.")
        if kind == "cubic" and knots.size < 4:
            raise ModelError(f"Signal '{name}': kind='cubic' needs four knots or more, got {knots.size}.")
        if not isinstance(outside, str) or outside not in ("error", "hold"):
            raise ModelError(f"Signal '{name}': outside must be 'error' or 'hold', got {outside!r}.")
        if not _is_symbolic(values):
            values = numbers(what, values)
        column = expression(what, values, None)
        if column.numel() != knots.size:
            raise ModelError(f"Signal '{name}' has {knots.size} knots and {column.numel()} values.")
        data = SignalData(name, knots, column, kind, outside == "hold")
        held = self._declare(name, "memory", DEGREES[kind] + 2, unit, description, signal=data)
        offset, coefficients = self.time - held[0], [held[i] for i in range(1, held.numel())]
        value = sum((c * offset**k for k, c in enumerate(coefficients)), ca.MX(0))
        rate = sum((k * c * offset ** (k - 1) for k, c in enumerate(coefficients) if k), ca.MX(0))
        self.signals[name] = (value, rate)
        return self._input(name)

    def table(
        self,
        name: str,
        grid: Any,
        values: Any,
        *,
        kind: Literal["cubic", "linear"] = "cubic",
        outside: Outside = "error",
        unit: str = "",
        description: str = "",
    ) -> LookupTable:
        """Declare a lookup table, a function of one or two expressions: ``drag = m.table(...)``, ``drag(speed)``.

        Parameters
        ----------
        name : str
            Name of the table, unique among tables.
        grid : array, shape (n,), or pair of arrays, shapes (n,) and (m,)
            Grid points along each axis, strictly increasing.
        values : array, shape (n,) or (n, m), or expression in parameters
            Values on the grid. Derivatives with respect to an expression, such as a vector parameter, are exact.
        kind : {"cubic", "linear"}
            Not-a-knot spline with continuous second derivatives, of four points or more along each axis; or linear
            between grid points (bilinear on cells), whose kinks are those of ``fabs`` (see `build`).
        outside : {"error", "hold", "linear"}
            Outside of the grid, refuse the run, hold the value at the end of the grid, or continue linearly.
        unit, description : str
            For files.

        Raises
        ------
        ModelError
            The name is taken, the grid does not increase, or `kind`, `outside` or the sizes are invalid.

        Examples
        --------
        >>> import dae_hybrid as dh
        >>> m = dh.HybridModel("tank")
        >>> level = m.differential("level")
        >>> outflow = m.table("outflow", [0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 1.4, 1.7], kind="linear")
        >>> m.initial(m.mode("run", ode={level: -outflow(level)}), {level: 1.0})
        >>> round(float(dh.simulate(m.build(), (0, 2))(2.0)["level"]), 6)
        0.135335
        """
        made = lookup_table(
            self.tables, name, grid, values, kind=kind, outside=outside, unit=unit, description=description
        )
        self.tables[name] = made
        return made

    # -- derivatives and sides --------------------------------------------------------------------------

    def der(self, variable: ca.MX | str) -> ca.MX:
        """Return the time derivative of a differential variable (for residuals, guards, resets, costs) or a signal."""
        name = self._signal_name(variable)
        if name is not None:
            return self._input_rate(name)
        declared = self.lookup(variable, "der()")
        if declared.signal is not None:
            return self._input_rate(declared.name)
        declared.require(("differential",), "der()")
        return self.rates.setdefault(declared.name, ca.MX.sym(f"der({declared.name})", declared.size))

    def post(self, variable: ca.MX | str) -> ca.MX:
        """Return the symbol of a value just after a transition.

        For a variable: in implicit resets, memory updates and costs at events. For a derivative (`der`): in implicit
        resets and costs at events.
        """
        rate = self.rate_name(variable)
        if rate is not None:
            return self.posts.setdefault(f"der({rate})", ca.MX.sym(f"post(der({rate}))", self.declarations[rate].size))
        declared = self.lookup(variable, "post()")
        if declared.kind not in ("differential", "algebraic"):
            raise ModelError(
                f"post() needs a differential or algebraic variable; '{declared.name}' is {declared.noun}."
            )
        return self.posts.setdefault(declared.name, ca.MX.sym(f"post({declared.name})", declared.size))

    def pre(self, variable: ca.MX | str) -> ca.MX:
        """Return the symbol of a value just before a transition: the symbol of a variable or derivative."""
        rate = self.rate_name(variable)
        return self.lookup(variable, "pre()").symbol if rate is None else self.rates[rate]

    def rate_name(self, symbol: Any) -> str | None:
        """Return the name of the variable whose derivative a symbol is, or None."""
        if not isinstance(symbol, ca.MX):
            return None
        return next((name for name, rate in self.rates.items() if rate.__hash__() == symbol.__hash__()), None)

    def _input(self, name: str) -> ca.MX:
        """The expression that stands for a signal in statements."""
        return self.signals[name][0]

    def _input_rate(self, name: str) -> ca.MX:
        """The expression that stands for the rate of a signal."""
        return self.signals[name][1]

    def _signal_name(self, variable: Any) -> str | None:
        """The name of the signal that an expression is, or None."""
        if not isinstance(variable, ca.MX):
            return None
        return next((n for n in self.signals if self._input(n).__hash__() == variable.__hash__()), None)

    # -- lookups ------------------------------------------------------------------------------------

    def lookup(self, variable: Any, where: str) -> Declaration:
        """Return the declaration of a symbol or name."""
        if isinstance(variable, str):
            if variable in self.declarations:
                return self.declarations[variable]
        elif isinstance(variable, ca.MX) and variable.is_symbolic():
            found = self.declarations.get(variable.name())
            if found is not None and found.symbol.__hash__() == variable.__hash__():
                return found
        name = self._signal_name(variable)
        if name is not None:
            raise ModelError(f"{where}: '{name}' is a signal, an input from data, and not a variable.")
        known = ", ".join(self.declarations) or "none"
        raise ModelError(f"{where}: {variable} is not declared in model '{self.name}'.", remedy=f"Declared: {known}.")

    def of_kind(self, kind: Kind) -> list[Declaration]:
        """Return the declarations of one kind, in order."""
        return [d for d in self.declarations.values() if d.kind == kind]

    def assignments(
        self, values: Any, where: str, kinds: tuple[Kind, ...], rows: int | None = None, *, rest: Rest = "none"
    ) -> dict[str, ca.MX]:
        """Return a mapping of variable to expression, keyed by name; None gives an empty mapping.

        A key may name entries of a vector. With `rows`, each value is a matrix with a row for each of several times.

        Parameters
        ----------
        rest : {"none", "kept", "open"}
            Entries that are not given: refused, as they are, or left open, in which case the given ones are keyed by
            their labels.
        """
        values = {} if values is None else labelled(where, values)
        if not isinstance(values, Mapping):
            raise ModelError(f"{where} must be a mapping of variable to expression, got {type(values).__name__}.")
        found: dict[str, ca.MX] = {}
        pieces: dict[str, dict[int, ca.MX]] = {}
        for key, value in values.items():
            part = chosen(self.declarations, key)
            declared = self.lookup(key, where) if part is None else part[0]
            declared.require(kinds, where)
            own = pieces.get(declared.name, {})
            if declared.name in found or (own and part is None) or any(i in own for i in (part or (0, ()))[1]):
                raise ModelError(f"{where}: '{declared.name}' is given twice.")
            what, size = f"{where}, '{declared.name}'", declared.size if part is None else len(part[1])
            if rows is None:
                value = expression(what, entries(what, declared.name, size, value), size)
            else:
                value = in_rows(what, value, rows, size)
            if part is None:
                found[declared.name] = value
            else:
                columns = ca.vertsplit(value) if rows is None else ca.horzsplit(value)
                pieces.setdefault(declared.name, {}).update(zip(part[1], columns, strict=True))
        for name, given in pieces.items():
            declared = self.declarations[name]
            if rest == "open" and len(given) < declared.size:
                found |= {f"{name}[{i}]": value for i, value in sorted(given.items())}
                continue
            kept = (lambda i, v=declared.symbol: ca.repmat(v[i], rows or 1, 1)) if rest == "kept" else None
            found[name] = assembled(where, declared, given, kept)
        return found

    def _declare(self, name: str, kind: Kind, size: int, unit: str, description: str, **more: Any) -> ca.MX:
        checked_name(kind, name)
        if name in self.declarations or name == "t":
            raise ModelError(f"The name '{name}' is taken.", remedy="Names are unique among all symbols; 't' is time.")
        size = positive_size(name, size)
        vector = self.declarations.get(name.rpartition("[")[0]) if name.endswith("]") else None
        labels = (f"{name}[{i}]" for i in range(size if size > 1 else 0))
        if (vector is not None and vector.size > 1) or any(label in self.declarations for label in labels):
            raise ModelError(
                f"The name '{name}' is taken: an entry of a vector has the same one.",
                remedy="Entries of a vector v are called v[0], v[1], ... in calls and results.",
            )
        symbol = ca.MX.sym(name, size)
        self.declarations[name] = Declaration(name, kind, size, symbol, unit=unit, description=description, **more)
        return symbol


def _is_symbolic(values: Any) -> bool:
    """Whether a value is an expression, or a list with one."""
    return isinstance(values, ca.MX) or (
        isinstance(values, list | tuple) and any(isinstance(value, ca.MX) for value in values)
    )
