"""`HybridModel`: declare modes, transitions, initial conditions and functionals. No numerics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import casadi as ca

from dae_hybrid.errors import ModelError
from dae_hybrid.numeric_input import shown
from dae_hybrid.progress import Report, StageReport
from dae_hybrid.statement.declarations import Initial, Mode, SharedEquations
from dae_hybrid.statement.expressions import (
    EquationRows,
    checked_name,
    equation_rows,
    expression,
    items,
    labelled,
    matrix,
)
from dae_hybrid.statement.functionals import Functionals
from dae_hybrid.statement.mass import mass_statement
from dae_hybrid.statement.transitions import ALL, SAME
from dae_hybrid.statement.vector_entries import chosen
from dae_hybrid.tables import counted

if TYPE_CHECKING:
    from dae_hybrid.system.system import HybridSystem


@dataclass(repr=False)
class HybridModel(Functionals):
    """A hybrid DAE system in symbolic form.

    Declare symbols (`parameter`, `differential`, `algebraic`, `memory`, `signal`, `table`), combine them into CasADi
    expressions, give each mode its equations, declare the transitions between modes, and call `build`.

    Examples
    --------
    A ball that bounces:

    >>> import dae_hybrid as dh
    >>> m = dh.HybridModel("ball")
    >>> g, e = m.parameter("g", 9.81), m.parameter("e", 0.8)
    >>> y, v = m.differential("y"), m.differential("v")
    >>> flight = m.mode("flight", ode={y: v, v: -g})
    >>> bounce = m.transition(flight, flight, guard=y, direction="falling", reset={v: -e * v})
    >>> m.initial(flight, {y: 1.0, v: 0.0})
    >>> m.functional("height", terminal=y)
    >>> sol = dh.simulate(m.build(), (0, 1), rtol=1e-10)
    >>> len(sol.events), round(sol.functionals["height"], 6)
    (1, 0.468004)
    """

    inputs: dict[str, tuple[ca.MX, ca.MX]] = field(default_factory=dict, init=False)  # symbols of signals and rates
    shared: dict[str, SharedEquations] = field(default_factory=dict, init=False)
    start: Initial | None = field(default=None, init=False)

    def _input(self, name: str) -> ca.MX:
        """The symbol of a signal."""
        return self._symbols_of(name)[0]

    def _input_rate(self, name: str) -> ca.MX:
        """The symbol of the rate of a signal, or zero."""
        return self._symbols_of(name)[1]

    def _symbols_of(self, name: str) -> tuple[ca.MX, ca.MX]:
        if name not in self.inputs:
            rate = self.signals[name][1]
            symbol = rate if rate.is_constant() else ca.MX.sym(f"der({name})")
            self.inputs[name] = (ca.MX.sym(name), symbol)
        return self.inputs[name]

    def __repr__(self) -> str:
        parts = (
            (self.modes, "mode"), (self.transitions, "transition"), (self.of_kind("parameter"), "parameter"),
            (self.functionals, "functional"),
        )  # fmt: skip
        return f"<HybridModel '{self.name}': {', '.join(counted(len(own), what) for own, what in parts)}>"

    # -- modes --------------------------------------------------------------------------------------

    def mode(
        self,
        name: str,
        *,
        ode: Mapping[Any, Any] | None = None,
        residual: Sequence[Any] | ca.MX | None = None,
        algebraic: Sequence[Any] | ca.MX | None = None,
        constraint: Sequence[Any] | ca.MX | None = None,
        mass: Any = None,
        rhs: Sequence[Any] | ca.MX | None = None,
        variables: Sequence[Any] | None = None,
    ) -> Mode:
        """Declare a mode by its equations. The forms may be combined.

        A mode may have algebraic equations only, or none: it then waits for an event or a time.

        Parameters
        ----------
        name : str
            Name of the mode, unique in the model.
        ode : mapping of variable to expression
            ``y' = f(y, z, m, p, t)``.
        residual : sequence of expressions
            ``0 = F(y', y, z, m, p, t)`` with derivatives `der(y)` (Serban and Recuero 2019, eq. 1). The matrix
            [F_y' | F_z] must be nonsingular (index 0 or 1). The derivatives of its variables become outputs named
            ``der(y)``.
        algebraic : sequence of expressions
            ``0 = k(y, z, m, p, t)`` with k_z nonsingular: Hessenberg index 1 (eq. 22).
        constraint : sequence of expressions
            ``0 = k(y, z1, m, p, t)`` without multipliers: Hessenberg index 2 (eq. 15). z1 are algebraic variables that
            other equations determine from y; the total derivative of k by y times f_z must be nonsingular. Equations of
            `residual` and `algebraic` that contain neither derivatives nor algebraic variables are constraints, too. In
            mode, reset and initial equations, ``("rod", e)`` in place of an expression e names the equation in error
            messages.
        mass, rhs : matrix expression (n, n) or its diagonal (n,), and sequence of expressions
            ``M y' = f`` with M(y, z, m, p, t), which may be singular. `build` finds the index: combinations of rates
            that M determines are states, the other variables are algebraic. See docs/formulations.md.
        variables : sequence of variables, optional
            The differential variables of `mass` in the order of its columns. By default all of the model, in order of
            declaration, that `ode` does not name.

        Raises
        ------
        ModelError
            The name is taken, or an argument is not an expression of this model. `build` checks that equations and
            variables match.
        """
        checked_name("mode", name)
        if name in self.modes:
            raise ModelError(f"Mode '{name}' is declared twice.")
        if name in (ALL, SAME):
            raise ModelError(f"A mode cannot be called '{name}', a word of transition().", remedy="Take another name.")
        mode = self._equations(f"mode '{name}'", name, ode, residual, algebraic, constraint)
        mass_part = mass_statement(self, name, mass, rhs, variables, tuple(mode.ode))
        mode = mode if mass_part is None else replace(mode, mass=mass_part)
        self.modes[name] = mode
        return mode

    def equations(
        self,
        name: str,
        *,
        modes: Literal["all"] | Sequence[Mode | str] = "all",
        ode: Mapping[Any, Any] | None = None,
        residual: Sequence[Any] | ca.MX | None = None,
        algebraic: Sequence[Any] | ca.MX | None = None,
        constraint: Sequence[Any] | ca.MX | None = None,
    ) -> None:
        """State equations that several modes share, besides their own.

        Parameters
        ----------
        name : str
            Name of the equations, in error messages and model files.
        modes : {"all"} or sequence of Mode or str
            The modes that have them; ``"all"`` includes modes that are declared later.
        ode, residual, algebraic, constraint
            As in `mode`.

        Raises
        ------
        ModelError
            The name is taken, or an argument is not of this model. `build` refuses a rate that is given twice.

        Examples
        --------
        >>> import dae_hybrid as dh
        >>> m = dh.HybridModel("tank")
        >>> h, T = m.differential("h"), m.differential("T")
        >>> fill, drain = m.mode("fill", ode={h: 1.0}), m.mode("drain", ode={h: -0.5})
        >>> m.equations("heat", ode={T: m.active("fill") - T})
        >>> full = m.transition(fill, drain, guard=h > 1)
        >>> m.initial(fill, {h: 0.0, T: 0.0})
        >>> round(float(dh.simulate(m.build(), (0, 2), rtol=1e-9)(2)["T"]), 6)
        0.232544
        """
        checked_name("group of equations", name)
        if name in self.shared:
            raise ModelError(f"Equations '{name}' are stated twice.")
        given = () if isinstance(modes, str) and modes == ALL else self._sources(modes)
        stated = self._equations(f"equations '{name}'", name, ode, residual, algebraic, constraint)
        self.shared[name] = SharedEquations(tuple(mode.name for mode in given), stated)

    def _equations(self, where: str, name: str, ode: Any, residual: Any, algebraic: Any, constraint: Any) -> Mode:
        given = (("residual", residual), ("algebraic", algebraic), ("constraint", constraint))
        rows = [equation_rows(f"{kind} equation of {where}:", equations) for kind, equations in given]
        labels = tuple(label for own in rows for label in own.labels)
        implicit, closing, kept = (own.equations for own in rows)
        return Mode(name, self.assignments(ode, f"ode of {where}", ("differential",)), implicit, closing, kept, labels)

    # -- start --------------------------------------------------------------------------------------

    def initial(
        self,
        mode: Mode | str,
        values: Mapping[Any, Any] | Sequence[Any] | None = None,
        *,
        equations: Sequence[Any] | ca.MX | None = None,
        guess: Mapping[Any, Any] | None = None,
        project: Sequence[Any] | None = None,
        metric: Any = None,
    ) -> None:
        """Declare the initial mode and the initial conditions.

        Parameters
        ----------
        mode : Mode or str
            The initial mode.
        values : mapping of variable to expression in parameters, or sequence of equations
            Initial values of differential variables, or of entries of vectors (``v[3:]``). Missing ones follow from
            `equations` and, in index 2, from the constraints; algebraic variables follow from the mode's equations.
        equations : sequence of expressions, optional
            ``0 = T0(y', y, z, p, t)`` at the initial time (Serban and Recuero 2019, eq. 2), such as ``der(y)`` for a
            steady state. They may also be given as a sequence in `values`.
        guess : mapping of variable to expression in parameters, optional
            Initial guess of Newton's method; 0 for differential variables, the declared guess for algebraic ones.
        project : sequence of variables, optional
            Move these differential variables from their `values` to the nearest point that satisfies `equations` and
            the constraints, for values that were measured or published with few digits; the others are held fixed.
        metric : number, vector or matrix expression in parameters, optional
            Defines "nearest" for `project`; identity by default.

        Raises
        ------
        ModelError
            It is called twice, an argument is not of this model, or `project` names a variable without a value.
        """
        if self.start is not None:
            raise ModelError("initial() is called twice.", remedy="A model has one initial mode.")
        values = labelled("initial()", values)
        if values is not None and not isinstance(values, Mapping):
            if equations is not None:
                raise ModelError("initial() got equations twice.", remedy="Give values as a mapping.")
            values, equations = None, values
        starts: dict[str, ca.MX] = {}
        for key, value in items("guess of initial()", guess):
            rate = self.rate_name(key)
            declared = self.lookup(key if rate is None else rate, "guess of initial()")
            starts[declared.name if rate is None else f"der({rate})"] = expression(
                f"guess of '{declared.name}'", value, declared.size
            )
        every = self.assignments(values, "initial()", ("differential",), rest="open")
        given = {name: value for name, value in every.items() if name in self.declarations}
        partly = {label: value for label, value in every.items() if label not in given}
        moved = tuple(self.lookup(v, "project of initial()") for v in project or ())
        lost = [d.name for d in moved if d.name not in given]
        if lost or len(set(moved)) < len(moved):
            raise ModelError(
                f"project of initial() names {', '.join(lost) or 'a variable twice'}"
                f"{', which has no value to be moved from' if lost else ''}.",
                variables=lost,
                remedy="Name differential variables, once each, that have a value in the first argument.",
            )
        if metric is not None and not moved:
            raise ModelError("initial() has a metric= without project=.")
        self.start = Initial(
            self._mode(mode, "initial mode"),
            given,
            *self._with_entries(partly, equation_rows("initial equation", equations), starts),
            moved,
            None if metric is None else matrix("metric of initial()", metric),
        )

    def _with_entries(
        self, partly: Mapping[str, ca.MX], rows: EquationRows, guess: dict[str, ca.MX]
    ) -> tuple[ca.MX, tuple[str, ...], dict[str, ca.MX]]:
        """Initial equations, their labels and guesses, with values of some entries of vectors as further equations."""
        equations, labels = [rows.equations], list(rows.labels)
        for label, value in partly.items():
            declared, (entry,) = chosen(self.declarations, label) or (None, (0,))
            if declared is None:
                raise AssertionError("the label of an entry")
            equations.append(declared.symbol[entry] - value)
            labels.append(f"initial value of {label}")
            start = ca.vertsplit(guess.get(declared.name, ca.MX.zeros(declared.size)))
            start[entry] = value
            guess[declared.name] = ca.vertcat(*start)
        return ca.vertcat(*equations), tuple(labels), guess

    # -- functionals ----------------------------------------------------------------------------------

    # -- build ------------------------------------------------------------------------------------------

    def build(
        self,
        *,
        native: bool | Literal["later"] = True,
        eliminate: bool = True,
        index2: Literal["reduced", "direct"] = "reduced",
        kinks: Literal["integrate", "events"] = "integrate",
        relations: Literal["slide", "cross"] = "slide",
        progress: Report = False,
    ) -> HybridSystem:
        """Check the model, differentiate it and compile it.

        Parameters
        ----------
        native : {True, False, "later"}
            Compile to machine code (default). False interprets the same functions. ``"later"`` compiles in the
            background: runs are interpreted until compilation is complete; `HybridSystem.wait` blocks until then.
            A run keeps the engine with which it began, and its `diagnostics` say where it was interpreted. A failure
            in the background is reported as a `CompilerWarning` when the next run begins.
        progress : bool or callable
            True writes each part and its duration to stderr. A callable receives them as
            ``progress(part, seconds)``. Compilation in the background is not included.
        eliminate : bool
            Substitute algebraic variables that their equations give explicitly (default), so that the mode is
            integrated as an ODE. False integrates the DAE as stated. Results have the same form.
        index2 : {"reduced", "direct"}
            Integrate modes of index 2 with the constraint replaced by its time derivative, and keep them on the
            constraint by projection (default); or integrate them as stated, which is fragile at tight tolerances.
        kinks : {"integrate", "events"}
            Functions that are continuous with a discontinuous derivative, such as ``fabs``, ``fmin``, ``fmax`` and
            linear tables in equations and integrands, are integrated across under error control (default), or become
            events like other relations; those of functions of time, parameters and memory always do. Events make
            gradients of explicit methods more accurate by orders of magnitude. Do not use them for quantities that
            rest at their kink.
        relations : {"slide", "cross"}
            Where both sides of a relation in the equations, such as ``sign(v)`` of friction, drive the state to the
            surface on which it switches, the motion slides along it in the sense of Filippov (default), or ends in a
            `ChatteringError`.

        Returns
        -------
        HybridSystem
            The compiled system, for `simulate`, `forward_sensitivity` and `adjoint_gradient`.

        Raises
        ------
        ModelError
            The declarations are incomplete or inconsistent; the message names the declaration at fault.
        FormulationError
            A mode's equations are not square, or have an index above 2.
        """
        from dae_hybrid.compile.pipeline import build_system

        if not isinstance(native, bool) and not (isinstance(native, str) and native == "later"):
            raise ModelError(f"native must be True, False or 'later', got {shown(native)}.")
        if not isinstance(eliminate, bool):
            raise ModelError(f"eliminate must be True or False, got {shown(eliminate)}.")
        if not isinstance(progress, bool) and not callable(progress):
            raise ModelError(f"progress must be True, False or a function, got {shown(progress)}.")
        if not isinstance(index2, str) or index2 not in ("reduced", "direct"):
            raise ModelError(f"index2 must be 'reduced' or 'direct', got {index2!r}.")
        if not isinstance(kinks, str) or kinks not in ("integrate", "events"):
            raise ModelError(f"kinks must be 'integrate' or 'events', got {kinks!r}.")
        if not isinstance(relations, str) or relations not in ("slide", "cross"):
            raise ModelError(f"relations must be 'slide' or 'cross', got {relations!r}.")
        with StageReport(f"build '{self.name}'", progress) as parts:
            return build_system(
                self, native=native, eliminate=eliminate, direct=index2 == "direct", kinks=kinks == "events",
                slides=relations == "slide", parts=parts,
            )  # fmt: skip

    # -- files ------------------------------------------------------------------------------------------

    def to_text(self, form: Literal["toml", "json"] = "toml") -> str:
        """Return the text of a model file, in the format of docs/model_files.md.

        `from_text` restores the model with the same operations in the same order, so that its results are the same to
        the last bit. Expressions that CasADi simplifies when it reads them, such as ``x + 0`` left by a substitution,
        are written in simplified form.

        Parameters
        ----------
        form : {"toml", "json"}

        Raises
        ------
        UnsupportedError
            The model calls code that is not an expression, such as a callback or a shared library, or uses an
            operation that the grammar lacks; the message names it.

        Examples
        --------
        >>> import dae_hybrid as dh
        >>> m = dh.HybridModel("decay")
        >>> k, x = m.parameter("k", 2.0), m.differential("x")
        >>> m.initial(m.mode("run", ode={x: -k * x}), {x: 1.0})
        >>> print(m.to_text(), end="")
        dae_hybrid = 1
        name = "decay"
        <BLANKLINE>
        [parameters]
        k = 2.0
        <BLANKLINE>
        [variables]
        x = {}
        <BLANKLINE>
        [modes.run]
        ode = {x = "-(k * x)"}
        <BLANKLINE>
        [initial]
        mode = "run"
        values = {x = 1.0}
        """
        from dae_hybrid.modelfile.files import to_text

        return to_text(self, form)

    @staticmethod
    def from_text(text: str, form: Literal["toml", "json"] = "toml") -> HybridModel:
        """Return the model that a text states. Nothing in the text is executed, and no other file is read.

        Parameters
        ----------
        text : str
            A document in the format of docs/model_files.md.
        form : {"toml", "json"}

        Raises
        ------
        ModelFileError
            The text is not such a document; the message begins with the line and the column.

        Examples
        --------
        >>> import dae_hybrid as dh
        >>> m = dh.HybridModel.from_text('''
        ... [parameters]
        ... k = {value = 2.0, unit = "1/s"}
        ... [variables]
        ... x = {}
        ... [modes.run]
        ... ode = {x = "-k * x"}
        ... [initial]
        ... mode = "run"
        ... values = {x = 1}
        ... ''')
        >>> round(float(dh.simulate(m.build(), (0, 1), rtol=1e-10)(1.0)["x"]), 6)
        0.135335
        """
        from dae_hybrid.modelfile.files import read_text

        return read_text(text, form).model

    def to_file(self, path: str | Path, *, data: Literal["inline", "csv"] = "inline") -> Path:
        """Write a model file and return its path; see `to_text`.

        Parameters
        ----------
        path : str or Path
            A file named ``*.toml`` or ``*.json``; missing folders are created.
        data : {"inline", "csv"}
            Write the data of signals and of series of measurements into the file (default), or those of more than 20
            rows into CSV files beside it.

        Raises
        ------
        UnsupportedError
            See `to_text`.
        ModelFileError
            The file has another ending.
        OSError
            The file cannot be written.
        """
        from dae_hybrid.modelfile.files import to_file

        return to_file(self, path, data)

    @staticmethod
    def from_file(path: str | Path, *, data: bool = True) -> HybridModel:
        """Read a model file; see `from_text`.

        Parameters
        ----------
        path : str or Path
            A file named ``*.toml`` or ``*.json``.
        data : bool
            Whether the file may refer to CSV files, which must be in its folder or below. False refuses them.

        Raises
        ------
        ModelFileError
            The file is not a model file; the message begins with its name, the line and the column.
        OSError
            The file cannot be read.
        """
        from dae_hybrid.modelfile.files import read_file

        return read_file(path, data=data).model
