"""Newton's matrix of large systems without a compiler: `linear.c` in Python."""

from __future__ import annotations

from ctypes import CFUNCTYPE, POINTER, c_double, c_int, c_void_p
from typing import Any

import numpy as np

from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.matrices import Matrix, dense, entries
from dae_hybrid.port.integrator import Equations

from .header import CONSTANTS

#: further argument types of callbacks, see interpreted.py: k whether the Jacobian is kept, f whether it is fresh,
#: . ignored number
SIGNATURES = {
    "solver_setup": "__",
    "solver_solve": "__vv.",
    "cv_system": "tv__kfc____",
    "cv_product_setup": "tv__",
    "cv_product": "vv.____",
    "cv_precondition": "tv_kfc_",
    "cv_preconditioned": ".__vv..i_",
    "ida_system": "tcv_______",
    "ida_product_setup": "tv__c_",
    "ida_product": ".___vvc___",
    "ida_precondition": "tv__c_",
    "ida_preconditioned": ".___vv.._",
}
PROBES, COARSEST = CONSTANTS["PROBES"], CONSTANTS["COARSEST"]
TYPES: dict[str, Any] = {"k": c_int, "f": POINTER(c_int), ".": c_double}
IDENTITIES = {"matrix_id": 10, "matrix_zero": 0, "solver_type": 0, "solver_id": 18}


class Singular(Exception):
    """The matrix is singular: the solver may retry with a smaller step."""


class LinearCallbacks:
    """Callbacks of `interpreted.EquationCallbacks` for a `LinearSystem`, `linear`."""

    equations: Equations
    size: int
    linear: Any = None
    _jacobian: Matrix  # F_x, and the rows below it
    _rows: Array
    _mass: Array

    def use(self, linear: Any) -> None:
        """Set the linear system of the callbacks."""
        self.linear = linear
        pointers, rows = self.equations.functions["jacobian"].pattern(0)
        self._places = rows, np.repeat(np.arange(self.equations.n), np.diff(pointers))

    def constant(self, name: str) -> Any:
        """Return a C function that returns a constant."""
        return CFUNCTYPE(c_int, c_void_p)(lambda _: IDENTITIES[name])

    # -- error weights, see `dh_ida_weights` in callbacks.c ---------------------------------------------------

    _weighing: tuple[Array, float] | None = None  # absolute and relative tolerances
    _spread: Array | None = None  # (n_z, n_y) if dense, else (n_z,)
    _perturbations: Array  # tolerances of y at the latest Jacobian

    def weigh(self, absolute: Array, rtol: float) -> None:
        """Set the inputs of the error weights of implicit equations."""
        self._weighing = absolute, rtol

    def forget_spread(self) -> None:
        """Reset the weights: those of a segment must not depend on the previous one."""
        self._spread = None

    def _tolerances(self, x: Array) -> Array:
        if self._weighing is None:
            raise AssertionError("no tolerances")
        absolute, rtol = self._weighing
        return absolute + rtol * np.abs(x)

    def _measure_spread(self, by_x: Matrix) -> None:
        ny = self.equations.n_differential
        if self._weighing is None:
            return
        rows = dense(by_x)[ny:]
        try:
            spread = np.abs(np.linalg.solve(rows[:, ny:], rows[:, :ny]))
        except np.linalg.LinAlgError:
            return
        if np.isfinite(spread).all():
            self._spread = spread

    def _probe(self) -> None:
        e, s = self.equations, self.linear.struct
        if self._weighing is None:
            return
        tolerances = self._perturbations
        solves, spread, bits = s.solves, np.zeros(e.n - e.n_differential), 1
        for _ in range(PROBES):
            b, found = np.zeros(self.size), np.zeros(self.size)
            for j, tolerance in enumerate(tolerances):
                bits = (bits * 6364136223846793005 + 1442695040888963407) % 2**64
                b[j] = s.corner * (tolerance if bits >> 63 else -tolerance)
            self._substitute(found, b)
            spread += np.abs(found[e.n_differential : e.n])
        self._spread, s.solves = spread, solves

    def _ida_weights(self, x: Array, weights: Array) -> None:
        ny, n = self.equations.n_differential, self.equations.n
        tolerances = self._tolerances(x)
        if self._spread is not None:
            reach = self._spread @ tolerances[:ny] if self.linear is None else self._spread
            bound = tolerances[ny:n] * (COARSEST / self._weighing[1] if self._weighing is not None else 1.0)
            tolerances[ny:n] = np.maximum(tolerances[ny:n], np.minimum(reach, bound))
        weights[:] = 1 / tolerances

    # provided by interpreted.Model
    def _forward_blocks(self, t: float, x: Array) -> tuple[Matrix, Array]:
        raise NotImplementedError

    def _backward_blocks(self, t: float) -> tuple[Matrix, Array]:
        raise NotImplementedError

    @property
    def _backward(self) -> bool:
        return bool(self.linear.struct.backward)

    def _keep_jacobian(self, t: float, x: Array) -> None:
        self._jacobian, self._rows = self._backward_blocks(t) if self._backward else self._forward_blocks(t, x)

    def _assemble(self, scale: float, shift: float, row_scale: float, corner: float) -> None:
        linear, structure = self.linear, self.linear.structure
        linear.matrix[:] = 0.0
        jacobian = self._jacobian[self._places] if isinstance(self._jacobian, np.ndarray) else entries(self._jacobian)
        linear.matrix[structure.place] = scale * jacobian
        linear.matrix[structure.diagonal[: self.equations.n_differential]] += shift
        linear.struct.row_scale, linear.struct.corner = row_scale, corner

    def _assemble_explicit(self, gamma: float) -> None:
        self._assemble(gamma if self._backward else -gamma, 1.0, -gamma, 1.0)

    def _assemble_implicit(self, cj: float) -> None:
        self._assemble(1.0, cj if self._backward else -cj, 1.0, -cj)

    def _solver_setup(self) -> None:
        s, linear = self.linear.struct, self.linear
        linear.struct.setups += 1
        if linear.superlu is not None:
            flag = linear.superlu.factor()
        else:
            lib = linear.library
            flag = lib.SUNDlsMat_bandGBTRF(s.columns, s.n, s.upper, s.lower, s.stored, s.pivots)
        if flag:
            raise Singular
        self._probe()

    def _substitute(self, x: Array, b: Array) -> None:
        s, linear, n = self.linear.struct, self.linear, self.equations.n
        linear.struct.solves += 1
        linear.right[:] = b[linear.structure.equations]
        if linear.superlu is not None:
            if linear.superlu.solve():
                raise Singular
        else:
            lib = linear.library
            lib.SUNDlsMat_bandGBTRS(s.columns, s.n, s.stored, s.lower, s.pivots, s.right)
        behind = b[n:].copy()
        x[linear.structure.order] = linear.right
        x[n:] = (behind - s.row_scale * (self._rows @ x[:n])) / s.corner

    def _multiply(self, v: Array, out: Array) -> None:
        n = self.equations.n
        matrix = self._jacobian.T if self._backward else self._jacobian
        out[:n], out[n:] = matrix @ v[:n], self._rows @ v[:n]

    # -- callbacks --------------------------------------------------------------------------------------

    def _solver_solve(self, x: Array, b: Array) -> None:
        self._substitute(x, b)

    def _cv_system(self, t: float, y: Array, kept: int, fresh: Any, gamma: float) -> None:
        fresh[0] = int(not kept)
        if not kept:
            self._keep_jacobian(t, y)
        self._assemble_explicit(gamma)

    def _cv_product_setup(self, t: float, y: Array) -> None:
        self._keep_jacobian(t, y)

    def _cv_product(self, v: Array, out: Array) -> None:
        self._multiply(v, out)
        if self._backward:
            out[: self.equations.n] *= -1.0

    def _cv_precondition(self, t: float, y: Array, kept: int, fresh: Any, gamma: float) -> None:
        self._cv_system(t, y, kept, fresh, gamma)
        self._solver_setup()

    def _cv_preconditioned(self, r: Array, z: Array) -> None:
        self._substitute(z, r)

    def _ida_system(self, t: float, cj: float, x: Array) -> None:
        self._keep_jacobian(t, x)
        if self._weighing is not None:
            self._perturbations = self._tolerances(x)[: self.equations.n_differential]
        self._assemble_implicit(cj)

    def _ida_product_setup(self, t: float, x: Array, cj: float) -> None:
        self._keep_jacobian(t, x)

    def _ida_product(self, v: Array, out: Array, cj: float) -> None:
        self._multiply(v, out)
        ny, n = self.equations.n_differential, self.equations.n
        out[:ny] += (cj if self._backward else -cj) * v[:ny]
        out[n:] -= cj * v[n:]

    def _ida_precondition(self, t: float, x: Array, cj: float) -> None:
        self._ida_system(t, cj, x)
        self._solver_setup()

    def _ida_preconditioned(self, r: Array, z: Array) -> None:
        self._substitute(z, r)
