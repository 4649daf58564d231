"""Equations of motion as integrators of index 3 use them: one step of the scheme, and its derivatives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.codegen.kernels import Kernel


@dataclass(frozen=True, eq=False)
class MotionEquations:
    """One step of an index-3 scheme with projections, for a mode with n coordinates and m constraints.

    The unknowns of a step are ``Y = (q, mu, v, sigma, a, kappa)`` with ``mu = beta h^2 lambda``, its start is
    ``s = (q, v, a, b)`` with the auxiliary acceleration b of the generalised-alpha rule (a for the other rules), and
    its rule ``c = (h, beta, gamma, alpha_m, alpha_f)``. The kernels have the inputs (t, c, s, Y, m, p), with t at the
    end of the step; Y is cut where noted.

    Attributes
    ----------
    newton : Kernel
        Y = (q, mu) -> residuals of the equations of motion, times beta h^2, and of the constraints; derivative by Y.
    velocities : Kernel
        Y = (q, mu) -> matrix and right-hand side of the projection: ``S (v, sigma) = r``.
    accelerations : Kernel
        Y = (q, mu, v) -> right-hand side of the projection: ``S (a, kappa) = r``.
    linearised : Kernel
        The derivatives of all equations by Y, s, p and m.
    """

    q: NDArray[np.intp]  # places in x
    v: NDArray[np.intp]
    a: NDArray[np.intp]
    multipliers: NDArray[np.intp]
    newton: Kernel
    velocities: Kernel
    accelerations: Kernel
    linearised: Kernel
    newmark: tuple[float, float]
    spectral_radius: float
    labels: tuple[str, ...]  # of the equations of motion and the constraints
