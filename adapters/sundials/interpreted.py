"""The driver without a compiler: the callbacks of `callbacks.c` and the step loop of `steps.c`, in Python.

It gives the same results, more slowly. An exception in a callback must never cross a C frame: it is kept, SUNDIALS is
told to stop, and the first exception is raised to the caller unchanged.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, c_double, c_int, c_void_p
from typing import Any

import numpy as np

from dae_hybrid.cancellation import raise_if_cancelled
from dae_hybrid.codegen.kernels import Kernel
from dae_hybrid.numerics.arrays import SMALLEST_NORMAL, Array
from dae_hybrid.numerics.matrices import Matrix, column, compacted, dense, hstack, vstack
from dae_hybrid.port.integrator import Equations
from dae_hybrid.port.replay import Interpolant

from .backend import raise_first
from .driver import BLOCKS, COUNTERS, FUNCTIONS
from .header import CONSTANTS
from .interpreted_linear import IDENTITIES, SIGNATURES, TYPES, LinearCallbacks, Singular
from .interpreted_loop import BackwardLoop as BackwardLoop
from .interpreted_loop import ForwardLoop as ForwardLoop
from .library import load
from .signal_handlers import caught

RECOVERABLE, FATAL, SOLVES, CONVERGED, POLISH, NEGLIGIBLE, LESS_EXACT = (
    CONSTANTS[name] for name in ("RECOVERABLE", "FATAL", "SOLVES", "CONVERGED", "POLISH", "NEGLIGIBLE", "LESS_EXACT")
)

# argument types of callbacks: t time, c factor of x', v vector, V array of vectors, m matrix, o guard values,
# i number of directions, _ ignored
_SIGNATURES = {
    "cv_rhs": "tvv_",
    "cv_jac": "tv_m____",
    "cv_root": "tvo_",
    "cv_sens": "itv_VV___",
    "cv_rhs_b": "tvv_",
    "cv_jac_b": "tv_m____",
    "cv_quad_b": "tvv_",
    "ida_res": "tvvv_",
    "ida_jac": "tcvv_m____",
    "ida_root": "tvvo_",
    "ida_weights": "vv_",
    "ida_sens": "itvv_VVV____",
    "ida_res_b": "tvvv_",
    "ida_jac_b": "tcvv_m____",
    "ida_quad_b": "tvvv_",
    **SIGNATURES,
}
_TYPES: dict[str, Any] = {"t": c_double, "c": c_double, "o": POINTER(c_double), "i": c_int, **TYPES}


class _Recoverable(Exception):
    """The solver may retry with a smaller step."""


class _Fatal(Exception):
    """The solver must stop."""


class EquationCallbacks(LinearCallbacks):
    """Interface of `compiled.EquationCallbacks`, with kernels evaluated in Python."""

    def __init__(
        self, equations: Equations, family: str, n_integrals: int, n_directions: int, wrt: tuple[int, ...]
    ) -> None:
        del family
        e = equations
        self.size = e.n + n_integrals
        self.equations = e
        matrices = {"jacobian": range(2), "linearised": range(2, 8)}
        self.kernels = {
            name: Kernel(compacted(e.functions[name].function), matrices.get(name, ())) for name in FUNCTIONS
        }
        self.parameters, self.memory = np.zeros(e.n_parameters), np.zeros(e.n_memory)
        self.parameter_directions = np.zeros((n_directions, e.n_parameters))
        self.memory_directions = np.zeros((n_directions, e.n_memory))
        self.zero_band, self.leaving_sign = np.zeros(e.n_guards), np.zeros(e.n_guards)
        self.root_calls, self._at_start = 0, np.ones(e.n_guards)
        self._returned: int | None = None
        self.wrt = list(wrt)
        self.weights = np.zeros(len(wrt) + e.n_memory)
        self.n_directions = n_directions
        self.calls = dict.fromkeys(COUNTERS, 0)
        rows = np.arange(self.size)
        self._mass = ((rows < e.n_differential) | (rows >= e.n)).astype(float)
        self._point: tuple[float, Array, list[Array]] | None = None
        self._where: tuple[float, Array] | None = None
        self._pending: BaseException | None = None
        self._callbacks: dict[str, Any] = {}
        self._library = load()

    user_data: int | None = None
    origin = earliest = 0.0  # time where an adjoint's clock is zero, and the end of the adjoint

    def set_path(self, path: Array, component: int) -> None:
        """Set the path that the adjoint follows, and its component."""
        self._path: Any = Interpolant(path.copy(), self.equations.n)
        self._last = float(path[-1, 0])
        self._component = component
        self.reset()

    def set_clocks(self, end: float | None) -> None:
        """Let the clock be zero at the end of a segment, or (None) at its start; see `set_clocks` in steps.c."""
        ends, steps = self._path.rows[:, 0], self._path.rows[:, 1]
        if end is None:
            ends[:] = np.cumsum(steps)
        else:
            ends[:] = np.cumsum(np.concatenate(([self._last - end], -steps[:0:-1])))[::-1]
        self._where = None

    def leave(self) -> None:
        """Release the path, which may be large."""
        self._path = None

    def set_directions(self, directions: Array) -> None:
        """Set parameter directions, (n_directions, n_parameters)."""
        self.parameter_directions[:] = directions

    def reset(self) -> None:
        """Invalidate the cached linearisation."""
        self._point = self._where = None

    def row(self, clock: float) -> tuple[int, float]:
        """Index of the step of the path that contains a time, and the time since the step's start."""
        i = int(self._path.row(clock))
        return i, clock - self.start_of(i)

    def start_of(self, i: int) -> float:
        """Where a step of the path starts on the clock."""
        return float(self._path.rows[i, 0] - self._path.rows[i, 1])

    def counters(self) -> dict[str, int]:
        """Numbers of calls so far."""
        return dict(self.calls) if self.linear is None else self.calls | self.linear.counters()

    def take_returned(self) -> int | None:
        """Return and clear the guard that returned through zero within one step of leaving it, if any."""
        index, self._returned = self._returned, None
        return index

    @property
    def has_failed(self) -> bool:
        """Whether a callback raised an exception."""
        return self._pending is not None

    def raise_pending(self) -> None:
        """Raise the first exception of a callback."""
        raise_first(self)

    def take_pending(self) -> BaseException | None:
        """See `SolverModel.take_pending`."""
        of_linear = None if self.linear is None else self.linear.take_pending()
        pending, self._pending = self._pending, None
        return pending if of_linear is None else of_linear

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Run native work with signal handlers enabled; their exceptions are raised at the end."""
        try:
            with caught(self._keep):
                yield
        finally:
            self.raise_pending()

    def _keep(self, error: BaseException) -> bool:
        if self._pending is not None:
            return False
        self._pending = error
        return True

    # -- evaluation -----------------------------------------------------------------------------------

    def evaluate(self, name: str, t: float, x: Array) -> list[Array]:
        """Evaluate a model function."""
        n = self.equations.n
        return self.kernels[name](t, x[:n], self.memory, self.parameters)

    def _checked(self, *values: Matrix) -> None:
        if not all(np.all(np.isfinite(v if isinstance(v, np.ndarray) else v.data)) for v in values):
            self.calls["not_finite"] += 1
            raise _Recoverable

    def _flow(self, t: float, x: Array) -> Array:
        self.calls["flow_calls"] += 1
        values = np.concatenate(self.evaluate("flow", t, x))[: self.size]
        self._checked(values)
        return values

    def _linearised(self, t: float, x: Array) -> dict[str, Array]:
        if self._point is None or self._point[0] != t or not np.array_equal(self._point[1], x):
            self.calls["linearised_calls"] += 1
            blocks = self.evaluate("linearised", t, x)[2:]
            self._point = None
            self._checked(*blocks)
            self._point = (t, x.copy(), blocks)
        return dict(zip(BLOCKS, self._point[2], strict=True))

    # -- the right-hand sides; see callbacks.c for the equations ---------------------------------------------

    def _directional(self, t: float, x: Array, s: list[Array]) -> list[Array]:
        b = self._linearised(t, x)
        by_x, by_p, by_m = (vstack((b[f"f_{v}"], b[f"g_{v}"].T))[: self.size] for v in "xpm")
        n, pairs = self.equations.n, zip(s, self.parameter_directions, self.memory_directions, strict=True)
        return [by_x @ si[:n] + by_p @ dp + by_m @ dm for si, dp, dm in pairs]

    def _followed(self, clock: float) -> dict[str, Array]:
        """The linearisation at a time of the path, with consistent algebraic variables."""
        t = max(self.origin + clock, self.earliest)
        if self._where is not None and self._where[0] == clock:
            return self._linearised(t, self._where[1])
        x = self._path(np.array([clock]))[0]
        if self.equations.n > self.equations.n_differential:
            for _ in range(SOLVES):
                x, _, correction = self.evaluate("complete", t, x)
                self._checked(x)
                if np.all(correction <= CONVERGED):
                    break
            else:
                raise _Recoverable
        self._where = (clock, x)
        return self._linearised(t, x)

    def adjoint(self, t: float, lam: Array) -> Array:
        """F_x^T lambda + g_x^T at a time of the path."""
        b = self._followed(t)
        return np.asarray(b["f_x"].T @ lam[: self.equations.n] + column(b["g_x"], self._component))

    def guide(self, t: float, lam: Array) -> float:
        """Weighted sum of the integrands that determines the order of the backward pass; see callbacks.c."""
        return float(self.weights @ self._adjoint_quadrature(t, lam))

    def _adjoint_jacobian(self, t: float, sign: float, cj: float, out: Array) -> None:
        b, n, ny = self._followed(t), self.equations.n, self.equations.n_differential
        out[:] = 0.0
        out[:n, :n] = sign * dense(b["f_x"]).T
        out[n, :n] = self._guide_row(b)
        out[range(ny), range(ny)] += cj
        out[n, n] -= cj

    def _guide_row(self, blocks: dict[str, Matrix]) -> Array:
        return np.asarray(-hstack((blocks["f_p"][:, self.wrt], blocks["f_m"])) @ self.weights)

    def _forward_blocks(self, t: float, x: Array) -> tuple[Matrix, Array]:
        self.calls["jacobian_calls"] += 1
        by_x, integrands_by_x = self.evaluate("jacobian", t, x)
        self._checked(by_x)
        return by_x, dense(integrands_by_x.T)[: self.size - self.equations.n]

    def _backward_blocks(self, t: float) -> tuple[Matrix, Array]:
        b = self._followed(t)
        return b["f_x"], self._guide_row(b)[None, :]

    def _adjoint_quadrature(self, t: float, lam: Array) -> Array:
        b, j = self._followed(t), self._component
        lam = lam[: self.equations.n]
        by_p, by_m = b["f_p"].T @ lam + column(b["g_p"], j), b["f_m"].T @ lam + column(b["g_m"], j)
        return -np.concatenate((by_p[self.wrt], by_m))

    def _guards(self, t: float, x: Array) -> Array:
        self.calls["guard_calls"] += 1
        values = self.evaluate("guards", t, x)[0]
        if not np.all(np.isfinite(values)):
            self.calls["not_finite"] += 1
            raise _Fatal
        inside = (self.zero_band > 0) & (np.abs(values) <= self.zero_band)
        back = (self.zero_band > 0) & ~inside & (values * self.leaving_sign < 0)
        if back.any():  # within one step; `_look` decides
            self._returned = int(np.flatnonzero(back)[0])
        self.zero_band[~inside & ~back] = 0.0
        values[inside | back] = 0.0
        return values

    def _roots(self, t: float, x: Array) -> Array:
        """Values passed to SUNDIALS' root finding; see `root_values` in callbacks.c."""
        call, self.root_calls = self.root_calls, self.root_calls + 1
        if call != 1 or not np.any(self._at_start == 0):
            values = self._guards(t, x)
            if call == 0:
                self._at_start = values.copy()
            return values
        return self._at_start

    # -- callbacks --------------------------------------------------------------------------------------

    def callback(self, name: str) -> int:
        """Address of a callback for SUNDIALS."""
        if name in IDENTITIES:
            self._callbacks.setdefault(name, self.constant(name))
        if name not in self._callbacks:
            signature = _SIGNATURES[name]
            prototype = CFUNCTYPE(c_int, *(_TYPES.get(letter, c_void_p) for letter in signature))
            self._callbacks[name] = prototype(self._trampoline(getattr(self, f"_{name}"), signature))
        address = ctypes.cast(self._callbacks[name], c_void_p).value
        if address is None:
            raise AssertionError(name)
        return address

    def norms(self) -> dict[str, int]:
        """See `steered` in callbacks.c."""
        found = {}
        for name, count in (("N_VWrmsNorm_Serial", 2), ("N_VWrmsNormMask_Serial", 3)):
            self._callbacks[name] = CFUNCTYPE(c_double, *count * [c_void_p])(
                self._steered(getattr(self._library, name))
            )
            found[name] = ctypes.cast(self._callbacks[name], c_void_p).value or 0
        return found

    _norms, _at_order = 0, 0.0

    def _steered(self, norm: Callable[..., float]) -> Callable[..., float]:
        def steered(*vectors: int) -> float:
            found, self._norms = norm(*vectors), self._norms + 1
            if self._norms == 2:
                self._at_order = found
            if not 3 <= self._norms <= 4 or self._at_order > NEGLIGIBLE:
                return found
            return max(found, LESS_EXACT ** (self._norms - 2) * max(self._at_order, SMALLEST_NORMAL))

        return steered

    def _trampoline(self, function: Callable[..., None], signature: str) -> Callable[..., int]:
        e = self.equations

        def call(*raw: Any) -> int:
            if self._pending is not None:  # SUNDIALS may call again before it gives up
                return FATAL
            try:
                raise_if_cancelled()
                arguments = [
                    self._view(letter, v, e) for letter, v in zip(signature, raw, strict=True) if letter not in "_i."
                ]
                with np.errstate(all="ignore"):  # non-finite values are checked afterwards
                    function(*arguments)
            except (_Recoverable, Singular):
                return RECOVERABLE
            except _Fatal:
                return FATAL
            except BaseException as error:
                self._pending = error
                return FATAL
            return 0

        return call

    def _view(self, letter: str, value: Any, e: Equations) -> Any:
        if letter in "tckf":
            return value
        if letter == "o":
            return np.ctypeslib.as_array(value, (e.n_guards,))
        if letter == "m":
            address, n = self._library.SUNDenseMatrix_Data(value), self._library.SUNDenseMatrix_Rows(value)
            return np.ctypeslib.as_array(ctypes.cast(address, POINTER(c_double)), (n, n)).T
        if letter == "V":
            return [self.vector(v) for v in ctypes.cast(value, POINTER(c_void_p))[: self.n_directions]]
        return self.vector(value)

    def vector(self, handle: int) -> Array:
        """A SUNDIALS vector as an array."""
        length = self._library.N_VGetLength(handle)
        return np.ctypeslib.as_array(
            ctypes.cast(self._library.N_VGetArrayPointer(handle), POINTER(c_double)), (length,)
        )

    def _cv_rhs(self, t: float, x: Array, out: Array) -> None:
        out[:] = self._flow(t, x)

    def _cv_jac(self, t: float, x: Array, out: Array) -> None:
        self._ida_jac(t, 0.0, x, None, out)

    def _cv_root(self, t: float, x: Array, out: Array) -> None:
        out[:] = self._roots(t, x)

    def _cv_sens(self, t: float, x: Array, s: list[Array], out: list[Array]) -> None:
        for target, value in zip(out, self._directional(t, x, s), strict=True):
            target[:] = value

    def _cv_rhs_b(self, t: float, lam: Array, out: Array) -> None:
        n = self.equations.n
        out[:n], out[n] = -self.adjoint(t, lam), self.guide(t, lam)

    def _cv_jac_b(self, t: float, _lam: Array, out: Array) -> None:
        self._adjoint_jacobian(t, -1.0, 0.0, out)

    def _cv_quad_b(self, t: float, lam: Array, out: Array) -> None:
        out[:] = self._adjoint_quadrature(t, lam)

    def _ida_res(self, t: float, x: Array, xdot: Array, out: Array) -> None:
        self._norms = 0
        out[:] = self._flow(t, x) - self._mass * xdot

    def _ida_jac(self, t: float, cj: float, x: Array, xdot: Array | None, out: Array) -> None:
        by_x, rows = self._forward_blocks(t, x)
        self._measure_spread(by_x)
        out[:] = -cj * np.diag(self._mass)
        out[:, : self.equations.n] += np.vstack((dense(by_x), rows))

    def _ida_root(self, t: float, x: Array, xdot: Array, out: Array) -> None:
        out[:] = self._roots(t, x)

    def _ida_sens(self, t: float, x: Array, xdot: Array, s: list[Array], sdot: list[Array], out: list[Array]) -> None:
        for target, value, rate in zip(out, self._directional(t, x, s), sdot, strict=True):
            target[:] = value - self._mass * rate

    def _ida_res_b(self, t: float, lam: Array, rate: Array, out: Array) -> None:
        n = self.equations.n
        out[:n] = self.adjoint(t, lam) + self._mass[:n] * rate[:n]
        out[n] = self.guide(t, lam) - rate[n]

    def _ida_jac_b(self, t: float, cj: float, _lam: Array, _rate: Array, out: Array) -> None:
        self._adjoint_jacobian(t, 1.0, cj, out)

    def _ida_quad_b(self, t: float, lam: Array, _rate: Array, out: Array) -> None:
        out[:] = self._adjoint_quadrature(t, lam)
