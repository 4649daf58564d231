"""Compiled steps, forwards with direct sensitivities and backwards: the struct `motion_run` of native/steps.c."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.adapters.ali3p.control import (
    LAST_STEP_SHARE,
    LEAST_CHANGE,
    MOST_CHANGE,
    SAFETY,
    Walk,
)
from dae_hybrid.adapters.ali3p.scheme import (
    CONVERGED_SHARE,
    MAX_ITERATIONS,
    ROUNDINGS,
    SHORT_SHARE,
    MotionStep,
    Scheme,
)
from dae_hybrid.cancellation import raise_if_cancelled
from dae_hybrid.codegen import sparse_lu
from dae_hybrid.codegen.c_declarations import declarations
from dae_hybrid.codegen.compiler import compile_source
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.crossings import INTERIOR_POSITION, RETAINED_SHARE
from dae_hybrid.numerics.factor_structure import Indices, Pattern, Structure, sparse_structure
from dae_hybrid.port.segment_rules import cached

if TYPE_CHECKING:
    from dae_hybrid.adapters.ali3p.backward import Sweep
    from dae_hybrid.adapters.ali3p.segment import MotionSegment

#: largest number of unknowns of a dense matrix
MAX_DENSE = 40
#: room for entries of sparse factors, in multiples of those without pivoting
ROOM = 2
#: Newton's method keeps the factors of an iterate whose correction is below this share of the positions
HELD_SHARE = 1e-6
#: largest change of a determinant within a step, as a share of its value
DETERMINANT_CHANGE = 0.25
#: the rates of a guard are not evaluated if it would take this many steps to reach zero at its largest speed so far
FAR_STEPS = 50.0
#: limits on a single call, between which Python handles signals: steps, and bytes of their results
MOST_STEPS, MOST_BYTES = 1024, 1 << 22

_SHARED: Mapping[str, float] = {
    "LAST_STEP_SHARE": LAST_STEP_SHARE, "LEAST_CHANGE": LEAST_CHANGE, "MOST_CHANGE": MOST_CHANGE, "SAFETY": SAFETY,
    "CONVERGED_SHARE": CONVERGED_SHARE, "MAX_ITERATIONS": MAX_ITERATIONS, "ROUNDINGS": ROUNDINGS,
    "SHORT_SHARE": SHORT_SHARE, "HELD_SHARE": HELD_SHARE, "DETERMINANT_CHANGE": DETERMINANT_CHANGE,
    "INTERIOR_POSITION": INTERIOR_POSITION, "FAR_STEPS": FAR_STEPS, "RETAINED_SHARE": RETAINED_SHARE,
}  # fmt: skip


def source() -> str:
    """Return the C text of the steps, which is the same for all models."""
    text = files("dae_hybrid.adapters.ali3p").joinpath("native", "steps.c").read_text()
    return "\n".join((sparse_lu.source(), *(f"#define {name} {value!r}" for name, value in _SHARED.items()), text))


CONSTANTS, STRUCTS = declarations(source())
NEWTON, PROJECTION, RECURSION, LEFT, LANES = (
    CONSTANTS[name] for name in ("NEWTON", "PROJECTION", "RECURSION", "LEFT", "LANES")
)
Run: Any = STRUCTS["motion_run"]
#: functions and outputs of the matrices that are factorised; the last one in part
MATRICES = (("newton", 1), ("velocities", 2), ("linearised", 0))


@cache
def _library() -> ctypes.CDLL | None:
    """The compiled steps; None without a working compiler."""
    library = compile_source(source())
    if library is not None:
        for function in (library.dh_motion_steps, library.dh_motion_back):
            function.argtypes, function.restype = [ctypes.POINTER(Run), ctypes.c_longlong], ctypes.c_int
    return library


class _Matrix(NamedTuple):
    """A matrix that is factorised: its storage, and the places in it of the entries of an output, -1 outside."""

    structure: Structure
    places: Indices


def _matrix(pattern: tuple[Indices, Indices], first: int = 0) -> _Matrix:
    """The block on the diagonal of an output that consists of its rows and columns from `first` on."""
    pointers, rows = pattern
    columns = np.repeat(np.arange(len(pointers) - 1), np.diff(pointers))
    inside = (rows >= first) & (columns >= first)
    n, row, column = len(pointers) - 1 - first, rows[inside] - first, columns[inside] - first
    none = np.zeros(0, dtype=np.int64)
    structure = Structure("dense", n, row + n * column, none, none, none, size=n * n)
    if n > MAX_DENSE:
        structure = sparse_structure(Pattern.of(n, row, column, 0))[0]
    places = np.full(rows.size, -1, dtype=np.int64)
    places[inside] = structure.place
    return _Matrix(structure, places)


def _matrices(scheme: Scheme) -> tuple[_Matrix, ...]:
    """The matrices of Newton's method, of the projections and of the rates of twists."""
    code = scheme.motion.compiled

    def make() -> tuple[_Matrix, ...]:
        tangent, change, coupling = (code[name].pattern(i) for name, i in MATRICES)
        return _matrix(tangent), _matrix(change), _matrix(coupling, scheme.at["A1"].start)

    found: tuple[_Matrix, ...] = cached(scheme.equations, ("ali3p", "matrices"), make)
    return found


@dataclass(frozen=True, eq=False)
class Stretch:
    """Steps taken in compiled code: a row for each, with t, h, s at its start, its unknowns and x at its end."""

    rows: Array

    @property
    def size(self) -> int:
        """Bytes of the steps."""
        return self.rows.nbytes

    def steps(self, scheme: Scheme) -> list[MotionStep]:
        """The steps one by one."""
        found = []
        for row in self.rows:
            start, unknowns, x = np.split(row[2:], np.cumsum((4 * scheme.n, scheme.at.size)))
            found.append(MotionStep(row[0], row[1], row[1], start, unknowns, scheme.end(unknowns, start), x))
        return found


class CompiledSteps:
    """The compiled steps of one segment, and the arrays that they share with C."""

    @classmethod
    def of(cls, walk: Walk, n_directions: int, *, monitored: bool) -> CompiledSteps | None:
        """The steps of a walk; None if the functions of the model are not compiled.

        With `monitored`, the steps stop before one within which a guard may become zero.
        """
        if not walk.scheme.motion.compiled or (library := _library()) is None:
            return None
        if any(m.structure.kind == "sparse" and not m.structure.room for m in _matrices(walk.scheme)):
            return None  # factors are nearly full
        return cls(walk, library, n_directions, monitored=monitored)

    def __init__(self, walk: Walk, library: ctypes.CDLL, n_directions: int, *, monitored: bool) -> None:
        self.walk, self._library = walk, library
        scheme = walk.scheme
        e, at, code, n, d = scheme.equations, scheme.at, scheme.motion.compiled, scheme.n, n_directions
        self._arrays: dict[str, Any] = {}
        self._n_integrals = k = e.functionals.size if e.integrates else 0
        self._own = e.n_guards - e.n_singularities
        self._sizes = (n, d, e.n, at.size)
        guards, groups = e.n_guards if monitored else 0, -(-d // LANES)
        self.run = Run(
            **{name: f.address for name, f in code.items()},
            n=n, n_x=e.n, n_p=e.n_parameters, n_m=e.n_memory, n_unknowns=at.size, n_integrals=k, n_guards=guards,
            n_directions=d, n_groups=groups, n_own=self._own, v_first=at["v"].start, a_first=at["a"].start,
            t0=walk.task.t0, end=walk.end, longest=walk.longest, shortest=walk.shortest, controlled=walk.controlled,
            cut=walk.controlled and walk.end < walk.task.t_stop,
            rtol=walk.options.rtol, resolution=e.resolution,
        )  # fmt: skip
        self.run.rule[1:] = scheme.rule
        sizes = np.max([f.work_sizes for f in code.values()], axis=0)
        for name, size, kind in zip(("arg", "res", "iw", "w"), sizes, (np.intp, np.intp, np.int64, float), strict=True):
            self._share(name, np.zeros(max(int(size), 8), kind))
        self._share("memory", scheme.memory)
        self._share("parameters", scheme.p)
        self._share("absolute", walk.options.absolute(e.variables))
        for name, length in {
            "start": 4 * n, "unknowns": at.size, "x": e.n, "new_start": 4 * n, "new_x": e.n, "g": k, "integrals": k,
            "guard": guards, "seen": 2 * guards, "inside": 3 * guards + e.n,
            "speed": guards, "range": guards, "rate": guards, "largest": guards,
            "work": LANES * at.size + e.n + k * (1 + d + LANES),
        }.items():  # fmt: skip
            self._share(name, np.zeros(length))
        for name, length in {
            "ds": 4 * n, "dx": e.n, "dp": e.n_parameters, "dm": e.n_memory, "new_ds": 4 * n, "new_dx": e.n, "dg": k,
            "of_integrals": k,
        }.items():  # fmt: skip
            self._share(name, np.zeros((groups, length, LANES)))
        self._set_matrices()
        self._set_places()

    def _set_matrices(self) -> None:
        """Set the outputs that are matrices, and the factors with the blocks that they belong to."""
        run, at, motion = self.run, self.walk.scheme.at, self.walk.scheme.motion
        outputs = dict(zip(("tangent", "projection", "by_unknowns"), MATRICES, strict=True))
        outputs |= {name: ("linearised", i) for i, name in enumerate(("by_start", "by_p", "by_m"), 1)}
        outputs |= {name: ("integrand_slopes", i) for i, name in enumerate(("g_x", "g_p", "g_m"), 1)}
        for name, (function, output) in outputs.items():
            pointers, rows = motion.compiled[function].pattern(output)
            values = self._arrays[name] = np.zeros(rows.size)
            addresses = (array.ctypes.data for array in (pointers, rows, values))
            setattr(run, name, STRUCTS["sparse"](*addresses, pointers.size - 1))
        for i, matrix in enumerate(_matrices(self.walk.scheme)):
            run.factors[i] = self._factors(f"factors {i}", matrix)
        ends = (0, at["v"].start, at["a"].start, at["A1"].start, at.size)
        (q, v), (_, a), (_, rates), (_, end) = (ends[i : i + 2] for i in range(4))
        for i, (first, last, factors) in enumerate(
            ((q, v, NEWTON), (v, a, PROJECTION), (rates, end, RECURSION), (a, rates, PROJECTION))
        ):
            run.blocks[i] = STRUCTS["block"](first, last - first, factors)

    def _factors(self, name: str, matrix: _Matrix) -> Any:
        """The struct `factorisation` of a matrix."""
        s = matrix.structure
        values, moved, pivots = np.zeros(s.size), np.zeros(s.n), np.zeros(s.n, dtype=np.int64)
        order, equations = (np.ascontiguousarray(a, dtype=np.int64) for a in (s.order, s.equations))
        addresses = (array.ctypes.data for array in (values, moved, pivots, order, equations))
        lu = None
        if s.pointers is not None and s.rows is not None:
            lu = sparse_lu.SparseFactors(s.pointers, s.rows, ROOM * s.room)
        self._arrays[name] = values, moved, pivots, order, equations, matrix.places, lu
        return STRUCTS["factorisation"](s.n, s.size, *addresses, matrix.places.ctypes.data, lu and lu.address)

    def _set_places(self) -> None:
        """Set the places of unknowns in x."""
        scheme, motion = self.walk.scheme, self.walk.scheme.motion
        poses, twists, rates, wrenches = motion.inner
        self._place("results", scheme.results)
        self._place("added", scheme.added)
        for name, places, unknown in (
            ("q", motion.q, "q"), ("v", motion.v, "v"), ("multipliers", motion.multipliers, "mu"),
            ("poses", poses, "X"), ("twists", twists, "U0"), ("rates_of_twists", rates, "A0"),
            ("wrenches", wrenches, "R"),
        ):  # fmt: skip
            self._place(name, [(places, unknown)])
        for name, parts in zip(("variable", "slope"), zip(*motion.slopes, strict=True), strict=True):
            self._share(name, np.concatenate(parts).astype(np.int64))
        self.run.n_slopes = self._arrays["slope"].size

    def _share(self, name: str, array: NDArray[Any]) -> None:
        self._arrays[name] = array = np.ascontiguousarray(array)
        setattr(self.run, name, array.ctypes.data)

    def _place(self, name: str, pairs: list[tuple[NDArray[np.intp], str]]) -> None:
        at = self.walk.scheme.at
        variables = np.concatenate([places for places, _ in pairs]).astype(np.int64)
        unknowns = np.concatenate([np.arange(at.size)[at[unknown]] for _, unknown in pairs]).astype(np.int64)
        self._arrays[name] = variables, unknowns
        setattr(self.run, name, STRUCTS["places"](variables.ctypes.data, unknowns.ctypes.data, variables.size))

    # -- forwards ---------------------------------------------------------------------------------------

    def forward(self, segment: MotionSegment) -> Array:
        """Take steps from the last point of a segment and move it there; return a row (t, x, dx) for each step."""
        a, monitor, scheme = self._arrays, segment.monitor, self.walk.scheme
        for name in ("ds", "dx", "dp", "dm"):
            self._set_lanes(name, getattr(segment, name))
        if self._n_integrals:
            a["g"][:], a["integrals"][:] = segment.g, segment.integrals
            self._set_lanes("dg", segment.dg)
            self._set_lanes("of_integrals", segment.of_integrals)
        guards, rates = monitor.latest
        a["guard"][:], a["rate"][:], a["largest"][:] = guards, np.abs(rates), np.abs(guards)
        a["speed"][:], a["range"][:] = monitor.pace.speed, monitor.pace.range
        _, d, n_x, _ = self._sizes
        rows = self._steps("rows", 1 + n_x * (1 + d))
        monitor.evaluations += self.run.guard_evaluations
        self.run.guard_evaluations = 0
        scheme.iterations += self.run.iterations
        scheme.factorisations += self.run.factorisations
        self.run.iterations = self.run.factorisations = 0
        if len(rows):
            segment.ds = self._lanes("ds")
            if self._n_integrals:
                segment.g, segment.integrals = a["g"].copy(), a["integrals"].copy()
                segment.dg, segment.of_integrals = self._lanes("dg"), self._lanes("of_integrals")
        return rows

    def _set_lanes(self, name: str, rows: Array) -> None:
        """Set an array by groups of directions from one row per direction."""
        for i, row in enumerate(rows):
            self._arrays[name][i // LANES, :, i % LANES] = row

    def _lanes(self, name: str) -> Array:
        """One row per direction."""
        _, d, *_ = self._sizes
        groups = self._arrays[name]
        return np.asarray(groups.swapaxes(1, 2).reshape(-1, groups.shape[1])[:d])

    def columns(self, rows: Array) -> tuple[Array, Array, Array]:
        """t (k), x (k, n_x) and dx (k, d, n_x) from rows."""
        _, d, n_x, _ = self._sizes
        return rows[:, 0], rows[:, 1 : 1 + n_x], rows[:, 1 + n_x :].reshape(len(rows), d, n_x)

    @property
    def pace(self) -> tuple[Array, Array]:
        """Speeds and ranges of the guards after the last steps."""
        return self._arrays["speed"].copy(), self._arrays["range"].copy()

    @property
    def largest_guards(self) -> Array:
        """Largest magnitudes of all guards in the last steps."""
        found: Array = self._arrays["largest"]
        return found

    def retake(self) -> Stretch | None:
        """Take steps for the adjoint; None if the next one is left to Python."""
        n, _, n_x, n_unknowns = self._sizes
        rows = self._steps("history", 2 + 4 * n + n_unknowns + n_x)
        return Stretch(rows) if len(rows) else None

    def _steps(self, name: str, width: int) -> Array:
        """Move the walk by compiled steps; return the rows that they write to the array of that name."""
        raise_if_cancelled()
        run, walk = self.run, self.walk
        most = max(0, min(MOST_STEPS, max(1, MOST_BYTES // (8 * width)), walk.budget - walk.count))
        rows = np.zeros((most, width))
        setattr(run, name, rows.ctypes.data)
        run.t, run.h, run.count = walk.t, walk.h, walk.count
        self._arrays["start"][:], self._arrays["x"][:] = walk.start, walk.x
        self._library.dh_motion_steps(ctypes.byref(run), most)
        setattr(run, name, None)
        taken, walk.h = run.count - walk.count, run.h
        walk.rejected += run.failures
        run.failures = 0
        if taken:
            walk.t, walk.count = run.t, run.count
            walk.start, walk.x = self._arrays["start"].copy(), self._arrays["x"].copy()
        return rows[:taken]

    # -- backwards --------------------------------------------------------------------------------------

    def backward(self, sweep: Sweep, stretch: Stretch) -> bool:
        """Go back over steps; return whether that was possible."""
        raise_if_cancelled()
        run, k = self.run, len(sweep.components)
        own = {name: np.array(getattr(sweep, name), order="C") for name in ("of_s", "of_p", "of_m")}
        components = np.array(sweep.components, dtype=np.int64)
        run.n_components, run.components, run.later = k, components.ctypes.data, sweep.later
        run.of_s, run.of_p, run.of_m = (array.ctypes.data for array in own.values())
        run.history = stretch.rows.ctypes.data
        flag = self._library.dh_motion_back(ctypes.byref(run), len(stretch.rows))
        run.history = None
        if flag == LEFT:
            return False
        sweep.of_s, sweep.of_p, sweep.of_m, sweep.later = *own.values(), run.later
        return True
