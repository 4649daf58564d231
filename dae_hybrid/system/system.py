"""The built system: immutable, with every function differentiated and ready to call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np
from numpy.typing import ArrayLike

from dae_hybrid.codegen.kernels import Kernel, NotPicklable, densified
from dae_hybrid.codegen.products import operations
from dae_hybrid.errors import OptionError, ParameterError
from dae_hybrid.layout import IDLE, Layout
from dae_hybrid.numeric_input import MAX_LABELS, as_mapping, in_order, listed, real_array
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.numerics.crossings import Turn
from dae_hybrid.numerics.matrices import Matrix, hstack
from dae_hybrid.options import Options
from dae_hybrid.port.integrator import Equations
from dae_hybrid.port.native_plan import TransitionGraph
from dae_hybrid.port.segment_rules import cached, kernel
from dae_hybrid.system.derivative_conditions import Conditions
from dae_hybrid.system.excess import Reached
from dae_hybrid.system.linearisation import TransitionLinearisation
from dae_hybrid.system.measurement import Measurement
from dae_hybrid.system.peaks import Decision, EventSide, Peak
from dae_hybrid.system.signals import SignalTable, derivatives
from dae_hybrid.system.transition_map import TransitionMap, schedule_state
from dae_hybrid.tables import align, counted, html

if TYPE_CHECKING:
    from dae_hybrid.conditions.branches import BranchTable
    from dae_hybrid.port.records import EventRecord, KnotRecord
    from dae_hybrid.system.initial import InitialMap
    from dae_hybrid.system.later import Later


#: rows completed per call, and limit on the numbers per call
ROWS, NUMBERS = 64, 10_000
#: numbers per batch when derivatives of rows are completed
ENTRIES = 1_000_000
#: tolerances by which an unprojected state may miss a constraint, which is the integrator's error
CONSTRAINT_SLACK = 2.0
#: roundings by which it may miss
ROUNDINGS = 256.0


@dataclass(frozen=True, eq=False)
class ModeSystem(NotPicklable):
    """One mode: its variables, the integrator's equations, and kernels evaluated at points.

    Kernels take ``(t, x, m, p)`` with ``x = (y, z)``; derivatives are with respect to ``u = (x, m, p, t)``.

    ============== ============================================================================
    entry          x', guards, their rates, and the scale of rounding of each guard
    closure        k and k_z of the algebraic equations
    closure_by_u   k_u
    landing        x, x' from (t, y, m, p), for eliminated algebraic variables
    invariants     k, k_u and the size of the terms of k: the constraints of index 2
    direction      D, see `numerics.algebraic`
    multipliers    lambda, mu, zeta and lambda' from (t, x, m, p, dG/dy, weights of the functionals)
    terminal       terminal values and their derivative by u
    adjoint_point  F_x and g_x
    flow_by_u      F_u
    ============== ============================================================================
    """

    name: str
    index: int
    differential: Layout
    algebraic: Layout
    equations: Equations
    guarded: tuple[int, ...]  # transitions with a state guard, in order of declaration
    timed: tuple[int, ...]  # transitions with a time trigger
    guess: Array  # initial guess of Newton's method for the algebraic variables
    kernels: Mapping[str, Kernel]
    formulation: str  # description for users
    explicit: ca.Function | None  # z as a function of (t, y, m, p), if eliminated
    solved: Callable[[], ca.Function]  # create the function (t, integrator's state, m, p) -> consistent x
    solved_by_w: Callable[[], ca.Function]  # create the function for its derivative by (y, m, p)
    invariants: tuple[str, ...]  # labels of the constraints on which the state is kept
    fragile: bool  # whether [F_y' | F_z] may become singular, judged by structure
    untaken: tuple[int, ...] = ()  # transitions without effect, of those that have a condition

    def not_finite(self, t: float, state: Array, m: Array, p: Array) -> tuple[list[str], list[int]]:
        """Names of rates, equations and integrands, and indices of guards, that are NaN or infinite at a state."""
        e = self.equations
        flow, gained = kernel(e, "flow")(t, state, m, p)
        names = [f"the rate of {name}" for name in self.differential.labels()]
        names += [f"equation {i} for {', '.join(self.algebraic.names)}" for i in range(len(flow) - len(names))]
        names += [f"the integrand of {name}" for name in e.functionals.labels()]
        bad = [name for name, value in zip(names, (*flow, *gained), strict=True) if not np.isfinite(value)]
        guards = kernel(e, "guards")(t, state, m, p)[0][: len(self.guarded)] if self.guarded else np.zeros(0)
        return bad, np.flatnonzero(~np.isfinite(guards)).tolist()

    def complete(self, t: float, state: Array, rate: Array, m: Array, p: Array) -> tuple[Array, Array]:
        """Return x and x' from the integrator's state and rates at the end of a segment."""
        if self.explicit is None:
            return state, rate
        x, xdot, _ = self.kernels["landing"](t, state, m, p)
        return x, xdot

    def landing_point(self, t: float, x: Array, m: Array, p: Array) -> tuple[Array, Array]:
        """Return x and x' that satisfy the equations and constraints to rounding, from a nearby x."""
        landed, rates, _ = self.kernels["landing"](t, x[: self.equations.n], m, p)
        return landed, rates

    def land_within(
        self, t: float, x: Array, m: Array, p: Array, options: Options, rates: Array | None = None
    ) -> Array | None:
        """Return x on the constraints to rounding, or None if x misses them by more than the integrator's error.

        Tolerances below rounding have no effect; `rates` of y before the transition give the rounding of the time.
        """
        ny, landed = self.differential.size, self.landing_point(t, x, m, p)[0]
        moved, allowed = np.abs(landed[:ny] - x[:ny]), options.allowed(self.differential, x[:ny])
        if np.all(moved <= CONSTRAINT_SLACK * allowed):
            return landed
        sizes = (
            np.abs(x[:ny])
            + np.abs(self.kernels["direction"](t, x, m, p)[0]) @ self.kernels["invariants"](t, x, m, p)[2]
        )
        if rates is not None:
            sizes = sizes + abs(t) * np.abs(rates)
        return landed if np.all(moved <= CONSTRAINT_SLACK * allowed + ROUNDINGS * EPS * sizes) else None

    @property
    def state_is_complete(self) -> bool:
        """Whether the integrator's state is x itself."""
        return not self.algebraic.size and not self.invariants

    @property
    def integrates_all(self) -> bool:
        """Whether the integrator's state is all of x, algebraic variables to tolerance, and on no constraints."""
        return self.explicit is None and not self.invariants

    def complete_rows(self, t: Array, states: Array, m: Array, p: Array) -> Array:
        """Return x (n_t, n) from states (n_t, .) of the integrator; the memory is (n_memory,) or (n_t, n_memory)."""
        if self.state_is_complete:
            return states
        found = np.zeros((t.size, self.variables.size))
        many, memory, done = (
            max(1, min(ROWS, NUMBERS // self.variables.size)),
            np.broadcast_to(m, (t.size, m.shape[-1])),
            0,
        )
        for size in dict.fromkeys((many, min(many, 8), 1)):
            solve = self._solver(size) if t.size - done >= size else None
            while solve is not None and t.size - done >= size:
                rows = slice(done, done + size)
                found[rows] = solve(t[rows], states[rows].ravel(), memory[rows].ravel(), p)[0].reshape(size, -1)
                done += size
        return found

    def _solver(self, count: int) -> Kernel:
        """`solved` for `count` rows at once."""

        def make() -> Kernel:
            function = densified(self.solved())
            with suppress(RuntimeError):  # functions that solve equations iteratively cannot be expanded
                function = function.expand()
            return Kernel(function.map("rows", "serial", count, [3], []))

        return cached(self.equations, ("rows", count), make)

    def complete_sensitivities(
        self, t: Array, states: Array, rows: Array, m: Array, dm: Array, p: Array, dp: Array
    ) -> Array:
        """Return derivatives of x, (n_t, d, n), from those of the integrator's state, (n_t, d, .).

        The memory and its derivatives (n_memory, d) hold for all rows, or have a leading axis of length n_t.
        """
        if self.state_is_complete:
            return rows
        n, ny = self.variables.size, self.differential.size
        if not len(t):
            return np.zeros((0, rows.shape[1], n))
        memory, nm = np.broadcast_to(m, (t.size, m.shape[-1])), m.shape[-1]
        found, some = np.zeros((t.size, rows.shape[1], n)), max(1, ENTRIES // (n * (ny + nm + p.size)))
        for first in range(0, t.size, some):
            part = slice(first, first + some)
            of_memory = np.broadcast_to(dm, (t.size, *dm.shape[-2:]))[part]
            by_w = np.asarray(self.solved_by_w()(t[None, part], states[part].T, memory[part].T, p))
            given = np.broadcast_to(dp, (len(of_memory), *dp.shape))
            moved = np.concatenate((np.swapaxes(rows[part, :, :ny], 1, 2), of_memory, given), axis=1)
            # not by einsum, which does not clear its result where a sum has no terms
            found[part] = np.swapaxes(np.swapaxes(by_w.reshape(n, len(of_memory), -1), 0, 1) @ moved, 1, 2)
        return found

    def onto_constraints(self, t: float, x: Array, m: Array, p: Array) -> tuple[Array, Array]:
        """Projection of dw = d(y, m) onto the constraints of index 2: dw - D (k_w dw + k_p dp).

        Returns D, with zero rows for the memory, (n_w, n_k), and (k_w, k_p), (n_k, n_w + n_p).
        """
        by_w = self.constraint_slopes(t, x, m, p)
        direction = np.zeros((self.differential.size + m.size, by_w.shape[0]))
        direction[: self.differential.size] = self.kernels["direction"](t, x, m, p)[0]
        return direction, by_w

    def constraint_slopes(self, t: float, x: Array, m: Array, p: Array) -> Matrix:
        """(k_w, k_p) of the constraints of index 2, (n_k, n_w + n_p)."""
        by_u = self.kernels["invariants"](t, x, m, p)[1]
        return hstack((by_u[:, : self.differential.size], by_u[:, self.variables.size : -1]))

    @cached_property
    def variables(self) -> Layout:
        """Layout of x = (y, z)."""
        return Layout(self.differential.blocks + self.algebraic.blocks)


@dataclass(frozen=True, eq=False)
class HybridSystem(NotPicklable):
    """A checked, differentiated and compiled model; created by `HybridModel.build`.

    Attributes
    ----------
    name : str
        Name of the model.
    parameters, memory, functionals : Layout
        Names and sizes, in order of declaration.
    nominal : ndarray, shape (n_parameters,)
        Nominal parameter values.
    modes : tuple of ModeSystem
        The modes, in order of declaration.
    transitions : tuple of TransitionMap
        The transitions, in order of declaration, with those made from bounds and relations.
    native : bool
        Whether a call made now uses functions compiled to machine code.

    A pickle contains the statement and the arguments of `build`; loading it builds the system again, with the compiled
    code of the cache if present.
    """

    name: str
    parameters: Layout
    memory: Layout
    functionals: Layout
    nominal: Array
    modes: tuple[ModeSystem, ...]
    transitions: tuple[TransitionMap, ...]
    graph: TransitionGraph
    initial: InitialMap
    signals: tuple[SignalTable, ...]
    measurements: tuple[Measurement, ...]
    compiled: bool
    branches: BranchTable  # relations that are not events
    assumed_smooth: tuple[str, ...]  # expressions whose relations do not become events
    note: str  # reason why the functions are not compiled
    frozen: Mapping[str, str | None]  # memory -> the variable it freezes, None for general memory
    labels: Mapping[str, str]  # name -> "name [unit]" or description, for plots
    units: Mapping[str, str]  # of the variables and parameters that have one
    descriptions: Mapping[str, str]  # likewise
    peaks: tuple[Peak, ...] = ()
    decision: Decision | None = None  # the places that decide the peaks of one run
    sides: tuple[EventSide, ...] = ()  # those of them that are sides of events
    hidden_blocks: int = 0  # number of parameters at the end that only their names refer to: initial values
    later: Later | None = None  # the pending compilation of ``native="later"``
    remake: Callable[[], tuple[Any, ...]] | None = field(default=None, repr=False)  # reduction of a pickle

    @property
    def hidden(self) -> int:
        """Number of parameters, counting entries, that arrays in order of declaration leave out."""
        blocks = self.parameters.blocks[len(self.parameters.blocks) - self.hidden_blocks :]
        return sum(size for _, size in blocks)

    def __reduce__(self) -> tuple[Any, ...]:
        return super().__reduce__() if self.remake is None else self.remake()

    @cached_property
    def n_stated(self) -> int:
        """Number of measurements that the model states; those of decided peaks follow."""
        decision = self.decision
        return len(self.measurements) - (0 if decision is None else sum(place.event < 0 for place in decision.followed))

    @cached_property
    def has_priorities(self) -> bool:
        """Whether a transition states a priority."""
        return any("priority" in transition.kernels for transition in self.transitions)

    @property
    def native(self) -> bool:
        """See the class attributes."""
        return self.current().compiled

    def current(self) -> HybridSystem:
        """Return the system that serves a call made now: the compiled one as soon as it is available.

        A failure of the compiler is reported here.
        """
        return self if self.later is None else self.later.current()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the background compilation of ``build(native="later")``.

        Parameters
        ----------
        timeout : float, optional
            Maximum time to wait, in seconds; no limit by default.

        Returns
        -------
        bool
            `native`: False if the compiler has failed, is still running, or was not requested.

        Raises
        ------
        OptionError
            `timeout` is not a nonnegative number of seconds.

        Examples
        --------
        >>> from dae_hybrid.problems import hybrid_ode
        >>> system = hybrid_ode.model().build(native="later")
        >>> system.wait()
        True
        """
        if timeout is not None and not (isinstance(timeout, int | float) and timeout >= 0):
            raise OptionError(f"timeout must be a number of seconds, zero or more, or None, got {timeout!r}.")
        if self.later is not None:
            self.later.wait(timeout)
        return self.native

    def parameter_vector(self, given: Mapping[str, ArrayLike] | ArrayLike | None) -> Array:
        """Return the nominal values, overridden by `given`.

        Parameters
        ----------
        given : mapping, labelled array or array, optional
            A mapping of names to values; ``"k[1]"`` is an entry of a vector, ``"K[0,1]"`` of a matrix. A pandas Series
            with an index of its own, a one-row DataFrame, an xarray DataArray with coordinates, a named tuple and a
            NumPy record are read as mappings, in any order. Anything else, including a Series with the default index,
            gives all values in order of declaration; those of a matrix follow each other by rows.

        Returns
        -------
        ndarray, shape (n_parameters,)
            Parameter values in order of declaration.

        Raises
        ------
        ParameterError
            A name is unknown or given twice, the length is wrong, or a value is not a finite real number.
        """
        values = self.nominal.copy()
        if given is None:
            return values
        try:
            given = as_mapping(given)
        except ValueError as reason:
            raise ParameterError(f"parameters of '{self.name}' {reason}.") from None
        if not isinstance(given, Mapping):
            shown = values.size - self.hidden
            if self.hidden and isinstance(given, np.ndarray) and given.size == values.size:
                shown = values.size
            values[:shown] = _numbers(f"parameters of '{self.name}'", given, self.parameters.labels()[:shown])
            return values
        seen = np.zeros(values.size, dtype=bool)
        for name, value in given.items():
            part = self._parameter_slice(name)
            labels = self.parameters.labels()[part]
            if seen[part].any():
                raise ParameterError(f"parameter {name!r} is given twice, as a whole and by its entries.")
            seen[part] = True
            values[part] = _numbers(f"parameter {name!r}", value, labels, self.parameters.shape(name))
        return values

    def _parameter_slice(self, name: object) -> slice:
        """Slice of a parameter, or of one of its entries, in the flat vector."""
        if isinstance(name, str) and (found := self.parameters.find(name)) is not None:
            return found
        position = "" if isinstance(name, str) else " To give all values by position, pass an array without labels."
        raise ParameterError(
            f"Unknown parameter {name!r}.",
            remedy=f"Parameters: {', '.join(self.parameters.names) or 'none'}.{position}",
        )

    def parameter_indices(self, wrt: Any) -> tuple[int, ...]:
        """Flat indices of the parameters, or entries of vectors, named by `wrt`; None means all."""
        if wrt is None:
            return tuple(range(self.parameters.size - self.hidden))
        try:
            names = [wrt] if isinstance(wrt, str) else [str(name) for name in wrt]
        except TypeError:
            raise ParameterError(f"wrt must be a name or names of parameters, got {wrt!r}.") from None
        if not names:
            raise ParameterError("wrt is empty.", remedy="Name at least one parameter, or leave wrt out for all.")
        indices: list[int] = []
        for name in names:
            try:
                part = self._parameter_slice(name)
            except ParameterError as error:
                raise ParameterError(f"wrt: unknown parameter {name!r}.", remedy=error.remedy) from None
            own = range(part.start, part.stop)
            if not set(own).isdisjoint(indices):
                raise ParameterError(f"wrt names '{name}' twice.")
            indices.extend(own)
        return tuple(indices)

    def functional_name(self, functional: str | None) -> str:
        """Check the name of a functional; None means the model's only functional."""
        names = self.functionals.names
        remedy = f"Functionals: {', '.join(names) or 'none'}."
        if functional is None:
            if len(names) != 1:
                raise ParameterError(f"Name the functional: model '{self.name}' has {len(names)}.", remedy=remedy)
            return names[0]
        if not isinstance(functional, str) or functional not in self.functionals:
            raise ParameterError(f"Unknown functional {functional!r}.", remedy=remedy)
        return functional

    def signal(self, name: str) -> SignalTable | None:
        """The signal of this name, or None."""
        return next((signal for signal in self.signals if signal.data.name == name), None)

    def knot_derivatives(self, knot: KnotRecord, p: Array) -> Array:
        """Derivatives of the memory entries written at a knot, (n_entries, n_parameters)."""
        return derivatives(self.signals, knot.intervals, p)

    def turns(self, found: list[tuple[Equations, Turn]]) -> tuple[tuple[int, Turn], ...]:
        """Group turns of transition guards by mode."""
        if not found:
            return ()
        by_equations = {id(mode.equations): mode for mode in self.modes}
        pairs = ((by_equations[id(e)], turn) for e, turn in found)
        return tuple((mode.index, turn) for mode, turn in pairs if turn.guard < len(mode.guarded))

    def linearise(self, event: EventRecord, p: Array, start: float, conditions: Conditions) -> TransitionLinearisation:
        """Linearise the transition of a record, in a run that started at `start`."""
        transition = self.transitions[event.index]
        source = self.modes[transition.source]
        target = None if transition.target is None else self.modes[transition.target]

        def reached() -> Reached:
            return self._reached(event, p, start)

        earlier = None if event.earlier is None else reached
        return transition.linearise(source, target, event, p, schedule_state(start, event.count), conditions, earlier)

    def _reached(self, event: EventRecord, p: Array, start: float) -> Reached:
        """Derivatives where an event fires, by (w-, p) before the first event of its instant."""
        if event.earlier is None:
            source = self.modes[self.transitions[event.index].source]
            n_w = source.differential.size + event.memory_minus.size
            return Reached(np.eye(n_w, n_w + p.size), None, event, source)
        before, tau, first, source = self._reached(event.earlier, p, start)
        directions = np.eye(p.size, before.shape[1], before.shape[1] - p.size)
        map_ = self.linearise(event.earlier, p, start, Conditions(strict=False))
        tau, after, _ = map_.forward(before, directions, tau)
        return Reached(after, tau, first, source)

    def describe(self) -> str:
        """Describe the modes, relations and derivative products of the built system as tables.

        Examples
        --------
        >>> from dae_hybrid.problems import ball_on_rope
        >>> print(ball_on_rope.system().describe())  # doctest: +NORMALIZE_WHITESPACE
        mode    formulation                       differential  algebraic  integrated as
        flight  Hessenberg index 1                x, y, vx, vy  z          ODE
        swing   Hessenberg index 2 (2 constraints) x, y, vx, vy  z, mu     ODE, reduced
        """
        tables = [self._modes_in_words()]
        products = [mode for mode in self.modes if "pullback" in mode.equations.compiled]
        if products:
            counts = [["mode", "directions by", "operations", "adjoint by", "operations", "of a Jacobian"]]
            for mode in products:
                compiled, whole = mode.equations.compiled, operations(mode.equations.functions["linearised"].function)
                forward = compiled.get("tangent")
                count = whole if forward is None else operations(forward.function)
                back = operations(compiled["pullback"].function)
                by = "Jacobian" if forward is None else "products"
                counts.append([mode.name, by, f"{count:,}", "products", f"{back:,}", f"{whole:,}"])
            tables.append(counts)
        lifted: dict[str, list[str]] = {}
        for transition in self.transitions:
            if transition.relation is not None and not transition.relation.is_exit:
                kind = "kink" if transition.is_kink else "event"
                slides = ", may slide" * (transition.relation.status is not None)
                own = lifted.setdefault(f"{kind}: {transition.relation.memory}{slides}", [])
                own += [name] if (name := self.modes[transition.source].name) not in own else []
        if lifted:
            tables.append([["relation", "in modes"], *([text, ", ".join(names)] for text, names in lifted.items())])
        if self.assumed_smooth:
            tables.append([["taken as smooth"], *([text] for text in self.assumed_smooth)])
        aligned = [align(table, left=range(5)) for table in tables]
        return "\n\n".join("\n".join(line.rstrip() for line in (head, *body)) for head, _, *body in aligned)

    def _modes_in_words(self) -> list[list[str]]:
        rows = [["mode", "formulation", "differential", "algebraic", "integrated as"]]
        for mode in self.modes:
            form = "ODE" if mode.equations.n == mode.differential.size else "DAE"
            if mode.invariants:
                form += ", direct" if mode.equations.index == 2 else ", reduced"
            names = (
                ", ".join(name for name in layout.names if name != IDLE)
                for layout in (mode.differential, mode.algebraic)
            )
            rows.append([mode.name, mode.formulation, *names, form])
        return rows

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes attached to every run of the system."""
        smooth = ", ".join(self.assumed_smooth)
        said = f"Taken as smooth, by dh.smooth: {smooth}. Derivatives are wrong where it jumps." if smooth else ""
        return tuple(note for note in (self.note, said) if note)

    def __repr__(self) -> str:
        return (
            f"<HybridSystem '{self.name}': {counted(len(self.modes), 'mode')}, "
            f"{counted(len(self.transitions), 'transition')}, {counted(self.parameters.size, 'parameter')}, "
            f"{'compiled' if self.native else 'interpreted'}>"
        )

    def _repr_html_(self) -> str:
        return html(repr(self), self._modes_in_words())


def check_built(system: object) -> HybridSystem:
    """Return the system that serves a call made now; raise an `OptionError` if `system` is not a built system."""
    if not isinstance(system, HybridSystem):
        raise OptionError(
            f"The first argument must be a built HybridSystem, got {type(system).__name__}.",
            remedy="Call build() on the model first.",
        )
    return system.current()


def _numbers(what: str, value: Any, labels: Sequence[str], shape: tuple[int, int] | None = None) -> Array:
    """Return finite numbers, one per label; those of a matrix row by row."""
    try:
        array = np.atleast_1d(real_array(in_order(value, labels)))
    except ValueError as reason:
        raise ParameterError(f"{what} {reason}.") from None
    if shape is not None and array.shape == shape:
        array = array.ravel()
    if array.shape != (len(labels),):
        raise ParameterError(
            f"{what}: {len(labels)} value{'s' * (len(labels) != 1)} needed{f' ({listed(labels)})' * bool(labels)}, got "
            f"shape {np.shape(value)}.",
            remedy=None if len(labels) == 1 else "To change only some parameters, pass a mapping of names to values.",
        )
    bad = np.flatnonzero(~np.isfinite(array)).tolist()
    if bad and len(labels) == 1:
        raise ParameterError(f"{what} must be finite, got {array[0]}.")
    if bad:
        found = ", ".join(f"'{labels[i]}' (index {i}) is {array[i]}" for i in bad[:MAX_LABELS])
        more = f", and {len(bad) - MAX_LABELS} more are not" if len(bad) > MAX_LABELS else ""
        raise ParameterError(f"{what}: values must be finite, but {found}{more}.")
    return array
