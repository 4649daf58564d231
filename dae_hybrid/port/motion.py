"""Equations of motion as integrators of index 3 use them: one step of the scheme, and its derivatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from dae_hybrid.codegen.kernels import Kernel, NativeFunction
from dae_hybrid.numerics.matrices import compacted

#: number of outputs of a function that are columns, not matrices; 1 for others
COLUMNS = {"velocities": 2, "accelerations": 3, "linearised": 0}


def unknowns(n: int, m: int, k: int) -> dict[str, int]:
    """The unknowns of a step, in order, and their sizes, for n coordinates, m constraints, k poses; see below."""
    first = {"q": n, "mu": m, "X": k, "U0": k, "A0": k, "R": k}
    second, third = {"v": n, "sigma": m, "U": k, "W": k}, {"a": n, "kappa": m, "A": k, "K": k}
    return first | second | third | {"A1": k}


@dataclass(frozen=True, eq=False)
class MotionEquations:
    """One step of an index-3 scheme with projections, for a mode with n coordinates and m constraints.

    The start of a step is ``s = (q, v, a, b)`` with the auxiliary acceleration b of the generalised-alpha rule (a for
    the other rules), and its rule ``c = (h, beta, gamma, alpha_m, alpha_f)``. Its unknowns Y are those of `unknowns`:

    * ``q, mu, X, U0, A0, R`` with ``mu = beta h^2 lambda``, from Newton's method. A large tree of bodies has inner
      variables: poses X, twists U0 (times h), their rates A0 and wrenches R (both times beta h^2);
    * ``v, sigma, U, W``, the projected velocities with multipliers and inner variables;
    * ``a, kappa, A, K, A1``, the same of the accelerations, and the rates of twists that belong to a before.

    The functions of a step have the inputs (t, c, s, Y, m, p), with t at the end of the step; Y is cut where noted.

    Attributes
    ----------
    functions : mapping
        ``newton``, Y to R -> residuals of the equations of motion, times beta h^2, of the constraints, and of the inner
        variables; derivative by Y. ``velocities``, Y to R -> r and y of the projection, and its matrix S: the projected
        values are ``y + S^-1 r``. ``accelerations``, Y to W -> r, y and A1. ``linearised``, Y -> the derivatives of all
        equations by Y, apart from those two matrices, by s, p and m. With inputs (t, x, m, p): ``integrand`` -> g;
        ``integrand_slopes`` -> g and, transposed, g_x, g_p and g_m. Matrices are sparse.
    compiled : mapping
        The same as machine code, with ``guards`` and ``rates``; empty without a compiler.
    inner : tuple of arrays
        Places in x of poses, twists, their rates and wrenches.
    """

    q: NDArray[np.intp]  # places in x
    v: NDArray[np.intp]
    a: NDArray[np.intp]
    multipliers: NDArray[np.intp]
    inner: tuple[NDArray[np.intp], ...]
    functions: Mapping[str, ca.Function]
    newmark: tuple[float, float]
    spectral_radius: float
    labels: tuple[str, ...]  # of the rows of `newton`
    compiled: Mapping[str, NativeFunction] = field(default_factory=dict, repr=False)
    _kernels: dict[str, Kernel] = field(default_factory=dict, repr=False, init=False)

    @property
    def slopes(self) -> tuple[tuple[NDArray[np.intp], NDArray[np.intp]], ...]:
        """Places in x of variables and of their rates of change."""
        poses, twists, rates, _ = self.inner
        return (self.q, self.v), (self.v, self.a), (poses, twists), (twists, rates)

    def kernel(self, name: str) -> Kernel:
        """A function as a kernel, with small matrices dense; created once."""
        if name not in self._kernels:
            function = self.functions[name]
            self._kernels[name] = Kernel(compacted(function), range(COLUMNS.get(name, 1), function.n_out()))
        return self._kernels[name]


def with_code(motion: MotionEquations, compiled: Mapping[str, NativeFunction]) -> MotionEquations:
    """Return the equations with machine code, if all functions have been compiled."""
    return replace(motion, compiled=compiled if all(f.address is not None for f in compiled.values()) else {})
