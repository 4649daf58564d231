"""Bind the compiled driver to the functions of a set of equations, and run its loops."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.crossings import Turn
from dae_hybrid.numerics.factor_structure import Indices
from dae_hybrid.port.integrator import Equations

from .backend import raise_first
from .driver import (
    BLOCKS,
    COUNTERS,
    FUNCTIONS,
    GLANCES,
    HISTORY,
    OPTIONAL,
    ROWS_FULL,
    SENSITIVITY_ERROR,
    TURN,
    BackwardRun,
    Context,
    ExplicitStep,
    Run,
    Sparse,
    address,
    api,
    loops,
    python_api,
)
from .library import load

RECORD = {"nothing": 0, "steps": 1, "dense": 2}
#: row width above which rows are not copied
WIDE = 10_000
#: limit on the bytes of a path; a longer path is dropped, and the adjoint integrates its segment again
LARGEST_PATH = 2**28
#: largest row width of a path
WIDEST_PATH = 100_000
#: upper bound on a reported sum of errors
LARGEST_ERROR = 1e18


def short_vectors() -> dict[str, int]:
    """Operations that are faster on short vectors, with bitwise equal results: SUNDIALS' name -> address."""
    return _replacements("dh_take_combination", {"N_VLinearCombination_Serial": "dh_combination"})


def _replacements(take: str, others: dict[str, str]) -> dict[str, int]:
    """Operations of the driver by SUNDIALS' names; the driver receives the originals as fallbacks."""
    library = loops()
    getattr(library, take)(*(ctypes.c_void_p(address(load(), name)) for name in others))
    return {name: address(library, other) for name, other in others.items()}


class EquationCallbacks:
    """The context of one set of equations, with the arrays it points to.

    The arrays are shared with C: values written to them are seen by the callbacks.
    """

    def __init__(
        self, equations: Equations, family: str, n_integrals: int, n_directions: int, wrt: tuple[int, ...]
    ) -> None:
        e = equations
        self.equations = e
        sizes = np.max([f.work_sizes for f in e.compiled.values()], axis=0)
        self._work = [
            np.zeros(max(int(s), 8), dtype) for s, dtype in zip(sizes, (np.intp, np.intp, np.int64, float), strict=True)
        ]
        self.parameters, self.memory = np.zeros(e.n_parameters), np.zeros(e.n_memory)
        self.parameter_directions = np.zeros((n_directions, e.n_parameters))
        self.memory_directions = np.zeros((n_directions, e.n_memory))
        none = np.zeros(0, dtype=np.int64)
        self._moved = _compressed(np.zeros(n_directions + 1, dtype=np.int64), none, np.zeros(0))
        self.zero_band, self.leaving_sign = np.zeros(e.n_guards), np.zeros(e.n_guards)
        self.wrt = np.array(wrt, dtype=np.int64)
        self.weights, self._integrands = np.zeros(len(wrt) + e.n_memory), np.zeros(len(wrt) + e.n_memory)
        self._scratch = [np.zeros(e.n), np.zeros(e.n_parameters), np.zeros(4 * e.n), np.zeros(2 * e.n)]
        self._latest = np.zeros(e.n_guards)
        self._held = np.zeros(e.compiled["constants"].function.size1_out(0) if "constants" in e.compiled else 0)
        taped = "tape" in e.compiled
        n_tape = e.compiled["tape"].function.size1_out(2) if taped else 0  # none if all is linear
        n_product, self._parts = _parts(e.compiled["pullback"].function) if taped else (0, np.zeros((0, 4), np.int64))
        others = e.n_parameters + e.n_memory
        lengths = {"recorded": n_tape, "product": n_product, "by_parameters": others, "selected": e.functionals.size}
        self._products = {name: np.zeros(size if taped else 0) for name, size in lengths.items()}
        self._products["vector"] = np.zeros(2 * e.n + others)
        n_off = e.compiled["sketch"].function.numel_out(1) if "sketch" in e.compiled else 0
        self._weighed = off, weights = np.zeros(n_off), np.zeros(n_off * e.n_guards if "weigh" in e.compiled else 0)
        self._patterns: list[Any] = []
        blocks = {name: self._sparse("linearised", 2 + i) for i, name in enumerate(BLOCKS)}
        solves = family == "ARKode" and e.implicit
        functions = {name: e.compiled[name].address for name in (*FUNCTIONS, *OPTIONAL) if name in e.compiled}
        if solves:
            functions["flow"] = e.compiled["reduced"].address
        # keep a reference: concurrent first calls may create several tables, of which `api` caches one
        self._tables = api(family), python_api()
        self.context = Context(
            api=ctypes.addressof(self._tables[0]),
            python=ctypes.addressof(self._tables[1]),
            **functions, solves=solves,
            held=self._held.ctypes.data,
            **{name: array.ctypes.data for name, array in zip(("arg", "res", "iw", "w"), self._work, strict=True)},
            n=e.n, n_differential=e.n_differential, n_functionals=e.functionals.size, n_integrals=n_integrals,
            n_memory=e.n_memory, n_parameters=e.n_parameters, n_guards=e.n_guards, n_directions=n_directions,
            n_wrt=len(wrt),
            parameters=self.parameters.ctypes.data, memory=self.memory.ctypes.data,
            numbers=e.numbers.ctypes.data if e.numbers.size else None,
            parameter_directions=self.parameter_directions.ctypes.data,
            memory_directions=self.memory_directions.ctypes.data,
            moved=Sparse(*(array.ctypes.data for array in self._moved)), wrt=self.wrt.ctypes.data,
            weights=self.weights.ctypes.data, integrands=self._integrands.ctypes.data,
            state_jacobian=self._sparse("jacobian", 0), integrand_jacobian=self._sparse("jacobian", 1), **blocks,
            n_tape=n_tape, n_product=n_product, n_parts=len(self._parts), parts=self._parts.ctypes.data,
            **{name: array.ctypes.data for name, array in self._products.items()},
            n_poles=e.n_singularities, n_off=n_off, off=off.ctypes.data, guard_weights=weights.ctypes.data,
            settled=self._scratch[3].ctypes.data,
            zero_band=self.zero_band.ctypes.data, leaving_sign=self.leaving_sign.ctypes.data,
            latest=self._latest.ctypes.data, point=self._scratch[0].ctypes.data,
            parameter_gradient=self._scratch[1].ctypes.data, interpolated=self._scratch[2].ctypes.data,
        )  # fmt: skip

    def _sparse(self, function: str, output: int) -> Sparse:
        column, row = self.equations.functions[function].pattern(output)
        arrays = _compressed(column, row, np.zeros(max(row.size, 1)))
        self._patterns.append(arrays)
        return Sparse(*(array.ctypes.data for array in arrays))

    @property
    def uses_products(self) -> bool:
        """Whether the adjoint of explicit steps uses vector-Jacobian products without forming the Jacobian."""
        return bool(self.context.pullback) and not self.context.solves

    _spread: tuple[Array, Array] | None = None

    def test(self, absolute: Array, rtol: float) -> None:
        """Set the tolerances of the states."""
        self.context.absolute, self.context.rtol = absolute.ctypes.data, rtol

    def weigh(self, absolute: Array, rtol: float) -> None:
        """Set the inputs of the error weights of implicit equations; see `dh_ida_weights`."""
        e, c = self.equations, self.context
        ny, nz = e.n_differential, e.n - e.n_differential
        self.test(absolute, rtol)
        if self._spread is None:
            sizes = (nz * ny, nz * e.n) if self.linear is None else (nz, 2 * absolute.size + ny)
            self._spread = np.zeros(sizes[0]), np.zeros(sizes[1])
            c.spread, c.spread_work = (array.ctypes.data for array in self._spread)

    def share(self, parameters: Array) -> None:
        """Use an external array of parameters."""
        self.parameters, self.context.parameters = parameters, parameters.ctypes.data

    def forget_errors(self) -> None:
        """Reset the sum of the sensitivities' errors."""
        self.context.sensitivity_error = 0.0

    def leave_out(self, memory: int | None, absolute: Array, rtol: float) -> None:
        """Accumulate the errors of sensitivities excluded from the error test; `absolute` is (d, n + n_integrals).

        None for sensitivities that are included.
        """
        c = self.context
        c.memory_of = memory
        self._left_out = absolute.copy(), np.zeros(absolute.size)
        c.sensitivity_absolute, c.predicted = (own.ctypes.data for own in self._left_out)
        c.sensitivity_rtol = rtol

    def set_directions(self, directions: Array) -> None:
        """Set parameter directions, (n_directions, n_parameters)."""
        if np.array_equal(directions, self.parameter_directions):
            return
        self.parameter_directions[:] = directions
        of, row = np.nonzero(self.parameter_directions)
        column = np.concatenate(([0], np.cumsum(np.bincount(of, minlength=len(directions)))), dtype=np.int64)
        self._moved = _compressed(column, row.astype(np.int64), self.parameter_directions[of, row])
        self.context.moved = Sparse(*(array.ctypes.data for array in self._moved))

    def reset(self) -> None:
        """Invalidate caches; required when parameters, memory or directions change."""
        self.context.point_valid = self.context.interpolated_valid = self.context.held_valid = 0

    def callback(self, name: str) -> int:
        """Address of a callback for SUNDIALS."""
        return address(loops(), f"dh_{name}")

    def norms(self) -> dict[str, int]:
        """Norms of the states for which the order also suits sensitivities: SUNDIALS' name -> address."""
        others = {"N_VWrmsNorm_Serial": "dh_norm", "N_VWrmsNormMask_Serial": "dh_masked_norm"}
        return _replacements("dh_take_norms", others)

    linear: Any = None  # a `LinearSystem`, unless Newton's matrix is SUNDIALS' dense one

    def use(self, linear: Any) -> None:
        """Set the linear system used by `linear.c`."""
        self.linear, linear.struct.model = linear, self.user_data
        self.context.linear = ctypes.addressof(linear.struct)

    together: Any = None  # a `Staggered`, where SUNDIALS does not go from one direction to the next

    def solve_together(self, together: Any) -> None:
        """Set the arrays used by `staggered.c`."""
        self.together, self.context.together = together, ctypes.addressof(together.struct)

    @property
    def user_data(self) -> int:
        """The user data of forward callbacks."""
        return ctypes.addressof(self.context)

    def set_path(self, path: Array, component: int) -> None:
        """Set the path that the adjoint follows, and its component."""
        c = self.context
        self._path: Array | None = path
        c.path, (c.path_rows, c.path_width), c.component = path.ctypes.data, path.shape, component
        c.path_row = c.path_rows - 1
        self._clocks = np.empty(len(path))
        c.clocks = self._clocks.ctypes.data
        self.reset()

    def leave(self) -> None:
        """Release the path, which may be large."""
        self._path, self.context.path = None, None

    def raise_pending(self) -> None:
        """Raise the exception that stopped native work: of a signal handler, a factorisation or a cancellation."""
        raise_first(self)

    def take_pending(self) -> BaseException | None:
        """See `SolverModel.take_pending`."""
        systems = (self.linear, None if self.together is None else self.together.system)
        pending = [system.take_pending() for system in systems if system is not None]
        if self.context.raised:
            error: BaseException = ctypes.cast(self.context.raised, ctypes.py_object).value
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(error))  # the reference held by model.c
            self.context.raised = None
            pending.append(error)
        return next((error for error in pending if error is not None), None)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Run native work with signals enabled; exceptions of handlers are raised at the end."""
        try:
            with nullcontext() if self.linear is None else self.linear.interruptible():
                yield
        finally:
            self.raise_pending()

    def take_returned(self) -> int | None:
        """Return and clear the guard that returned through zero within one step of leaving it, if any."""
        index, self.context.returned = self.context.returned - 1, 0
        return index if index >= 0 else None

    def counters(self) -> dict[str, int]:
        """Numbers of calls so far."""
        own = {name: int(getattr(self.context, name)) for name in COUNTERS}
        if self.context.memory_of:
            own[SENSITIVITY_ERROR] = math.ceil(min(self.context.sensitivity_error, LARGEST_ERROR))
        return own if self.linear is None else own | self.linear.counters()


def _parts(pullback: Any) -> tuple[int, Indices]:
    """Number of outputs of a compiled `pullback`, and the integers of a `PART` for each part of the derivatives by p.

    After the derivatives by x and m, each column output is a part, or with the following row the factors of one.
    """
    shapes = [pullback.size_out(i) for i in range(pullback.n_out())]
    place, begin, parts = shapes[0][0] + shapes[1][0], 0, list[tuple[int, int, int, int]]()
    for (rows, columns), (following, row) in zip(shapes[2:], [*shapes[3:], (0, 0)], strict=True):
        if columns > 1:  # the row of an outer product
            continue
        outer = row if following == 1 and row > 1 else 0
        parts.append((begin, rows, outer, place))
        begin, place = begin + rows * max(outer, 1), place + rows + outer
    return place, np.array(parts, dtype=np.int64).reshape(-1, 4)


def _compressed(column: Indices, row: Indices, value: Array) -> tuple[Indices, Indices, Indices, Array]:
    """The arrays of a `Sparse`: column pointers, and the row, column and value of each entry."""
    return column, row, np.repeat(np.arange(column.size - 1), np.diff(column)), value


class _Loop:
    """Base of the compiled loops: the struct that holds their state."""

    run: Run | BackwardRun

    @property
    def t(self) -> float:
        """Current time."""
        return float(self.run.t)

    @property
    def steps(self) -> int:
        """Steps since `begin`."""
        return int(self.run.steps)


class ForwardLoop(_Loop):
    """The compiled step loop on one solver memory."""

    run: Run

    def take_turns(self) -> list[Turn]:
        """Return and clear the near misses of guards recorded so far."""
        count, self.run.n_turns = self.run.n_turns, 0
        return [Turn(int(self.run.turns[k]), *self.run.turns[k + 1 : k + 3]) for k in range(0, count * TURN, TURN)]

    def __init__(self, model: EquationCallbacks, step: ExplicitStep | None = None, **handles: Any) -> None:
        e = model.equations
        self.model = model
        self._handles, self._step = handles, step  # objects referenced by the struct
        pointers = {k: ctypes.addressof(v) if isinstance(v, ctypes.Array) else v for k, v in handles.items()}
        self.completed = np.zeros(3 * e.n)
        self._guard_values = np.zeros(2 * max(e.n_guards, 1))
        self._roots = np.zeros(max(e.n_guards, 1), dtype=np.int32)
        self._glances, self._band = np.zeros(2 * GLANCES * e.n_guards), np.zeros(e.n_guards)
        self._history, self._noise = np.zeros(HISTORY * e.n_guards), np.zeros(e.n_guards)
        self._pace = np.zeros(2 * e.n_guards)
        self._directions = np.array(e.directions, dtype=np.int32)
        self._n_guards = e.n_guards
        self.run = Run(
            model=model.user_data,
            completed=self.completed.ctypes.data,
            guard_values=self._guard_values.ctypes.data,
            roots=self._roots.ctypes.data,
            glances=self._glances.ctypes.data,
            history=self._history.ctypes.data,
            band=self._band.ctypes.data,
            noise=self._noise.ctypes.data,
            pace=self._pace.ctypes.data,
            directions=self._directions.ctypes.data,
            resolution=e.resolution,
            n_singularities=e.n_singularities,
            implicit=int(e.implicit and step is None),
            step=None if step is None else ctypes.addressof(step),
            **pointers,
        )
        self._library = loops()
        self._buffer, self._path = np.zeros(0), np.zeros(0)
        self._given: Array | None = None  # rows that were handed out

    def prepare(
        self, t_stop: float, until: float, record: str, t_eval: Array | None, closed_end: bool, width: int, order: int,
        path_width: int,
    ) -> None:  # fmt: skip
        """Set the quantities to record; with a `path_width` also the path."""
        run = self.run
        run.width, run.n_rows, run.next_eval, run.n_path, run.path_width = width, 0, 0, 0, path_width
        self._given = None
        self._make_room(2 if t_eval is None else t_eval.size + 2)
        self._make_path(2)
        run.t_stop, run.until, run.record, run.closed_end, run.dense_order = (
            t_stop, until, RECORD[record], closed_end, order,
        )  # fmt: skip
        self._t_eval = t_eval
        run.n_eval, run.t_eval = (0, None) if t_eval is None else (t_eval.size, t_eval.ctypes.data)

    def begin(self, t0: float, first_step: float = 0.0) -> int:
        """Restart the solver from its vectors; return SUNDIALS' code."""
        run = self.run
        run.t, run.first_step, run.next_step = t0, first_step, 0.0
        return int(self._library.dh_begin(run))

    def advance(self, budget: int) -> int:
        """Take at most `budget` steps; return SUNDIALS' code, or PAUSED."""
        run = self.run
        taken = run.steps
        run.budget = budget
        status = int(self._library.dh_advance(run))
        while status == ROWS_FULL:
            self.enlarge()
            run.budget = budget - (run.steps - taken)
            status = int(self._library.dh_advance(run))
        return status

    def enlarge(self) -> None:
        """Double the capacity for rows."""
        run = self.run
        if run.n_rows + 2 > run.capacity:
            self._make_room(2 * run.n_rows + 256 if run.width < WIDE else run.n_rows * 5 // 4 + 16)
        if run.path_width and run.n_path + 2 > run.path_capacity:
            self._make_path(2 * run.n_path + 64)

    def _make_room(self, rows: int) -> None:
        """Provide capacity for rows, keeping those recorded."""
        run = self.run
        if rows * run.width > self._buffer.size:
            kept = run.n_rows * run.width
            if run.width < WIDE:
                larger = np.empty(rows * run.width)
                larger[:kept] = self._buffer[:kept]
                self._buffer = larger
            else:  # realloc moves pages; a copy would need twice the memory
                self._buffer.resize(rows * run.width, refcheck=False)
            run.rows = self._buffer.ctypes.data
        run.capacity = self._buffer.size // run.width

    def _make_path(self, rows: int) -> None:
        """Provide capacity for the path."""
        run = self.run
        if not run.path_width:
            run.path = None
            return
        if 8 * rows * run.path_width > LARGEST_PATH:
            run.path, run.path_width, run.n_path = None, 0, 0
            return
        if rows * run.path_width > self._path.size:
            kept = run.n_path * run.path_width
            larger = np.empty(rows * run.path_width)
            larger[:kept] = self._path[:kept]
            self._path = larger
        run.path, run.path_capacity = self._path.ctypes.data, self._path.size // run.path_width

    def stop(self) -> int:
        """End the segment where it was paused."""
        return int(self._library.dh_stop(self.run))

    def move_to(self, t: float) -> None:
        """Set the current time to one within the last step."""
        self.run.t = t

    @property
    def failures(self) -> tuple[int, int]:
        """Numbers of failed error tests and failed Newton iterations in this segment."""
        return self.run.error_test_failures, self.run.newton_failures

    @property
    def next_step(self) -> float:
        """Next step size proposed by an explicit method; 0 for others."""
        return float(self.run.next_step)

    @property
    def loose(self) -> float:
        """Largest relative residual of algebraic variables, relative to them and to the rates."""
        return float(self.run.loose)

    @property
    def crossing(self) -> tuple[int, float, float]:
        """Index of the guard that crossed, its value and its rate."""
        i = self.run.root
        return i, float(self._guard_values[i]), float(self._guard_values[self._n_guards + i])

    def rows(self, first: int = 0) -> Array:
        """Return a copy of the recorded rows; ownership of wide rows is transferred instead."""
        count, width = self.run.n_rows, self.run.width
        if width >= WIDE:
            if self._given is None:
                given, self._buffer, self.run.capacity = self._buffer, np.zeros(0), 0
                given.resize(count * width, refcheck=False)
                self._given = given.reshape(count, width)
            return self._given[first:]
        return self._buffer[first * width : count * width].reshape(count - first, width).copy()

    def path(self, first: int = 0) -> Array | None:
        """Return a copy of the path, or None if it was not kept."""
        count, width = self.run.n_path, self.run.path_width
        return self._path[first * width : count * width].reshape(count - first, width).copy() if width else None


class BackwardLoop(_Loop):
    """The compiled loop of an adjoint on one solver memory; see `dh_back` in steps.c."""

    run: BackwardRun

    def __init__(self, model: EquationCallbacks, **handles: Any) -> None:
        self._library, self._n = loops(), model.equations.n
        self.run = BackwardRun(model=model.user_data, implicit=int(model.equations.implicit), **handles)

    def begin(self, t: float, t_stop: float, max_step: float, longest: Array, t_eval: Array) -> int:
        """Start the solver at t from its vectors; return SUNDIALS' code."""
        run, self.samples = self.run, np.zeros((t_eval.size, self._n))
        self._kept = (longest, t_eval)
        run.t, run.t_stop, run.max_step = t, t_stop, max_step
        run.longest, run.samples = longest.ctypes.data, self.samples.ctypes.data
        run.t_eval, run.n_eval = t_eval.ctypes.data, t_eval.size
        return int(self._library.dh_begin_back(run))

    def advance(self, budget: int) -> int:
        """Take at most `budget` steps; return SUNDIALS' code, or PAUSED."""
        self.run.budget = budget
        return int(self._library.dh_back(self.run))
