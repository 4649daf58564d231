"""An oscillator on a bar of hysteretic material: an index-1 DAE whose modes remember their initial point.

A mass on the free end of a bar is driven by the growing load f(t) = 0.5 t sin(2 pi t) over ten periods
(SR eq. 45):

    u' = v,    m v' = f(t) - A z,    0 = sigma(u, u*, z*, p) - z.

The stress z follows the exponential model (EM) of Vaiana et al.: away from the point (u*, z*) of the last
reversal it decays with the rate alpha to one of two limiting curves, the upper one while loading
(xi = sign(v) = 1), the lower one while unloading (xi = -1). Every zero of the velocity ends a mode and
stores a new (u*, z*): 19 reversals within [0, 10]. u, v and z are continuous at a reversal, and so are
their sensitivities; the adjoint variables are not. The functional is G, the integral of u^2.

**The stress, and a misprint.** SR print (eq. 46, and the equation below it)

    sigma = L(u) - xi (ka - kb)/alpha [exp(-alpha (xi u - xi ui + 2 u0)) - exp(-2 alpha u0)] + xi fbar,
    ui = u* + 2 xi u0 + (xi/alpha) ln{ xi alpha/(ka - kb)
             [-2 beta u* + sinh(beta u*) + kb u* + xi (ka - kb)/alpha exp(-2 alpha u0) + xi fbar - z*] }

with L(u) = -2 beta u + 2 sinh(beta u) + kb u, exp(-2 alpha u0) = delta/(ka - kb) and
fbar = (ka - kb)/(2 alpha) (1 - exp(-2 alpha u0)). With ``sinh`` in ui the stress jumps at a reversal unless
beta = 0; with ``2 sinh``, as in L, it is continuous, as the model requires. With this correction the
square bracket is L(u*) + c - z* with

    c = xi (ka - kb)/alpha exp(-2 alpha u0) + xi fbar = xi (ka - kb + delta)/(2 alpha),

the logarithm cancels against the exponential in front, exp(-alpha xi (u - ui) - 2 alpha u0) =
exp(-alpha xi (u - u*)) xi alpha/(ka - kb) (L(u*) + c - z*), and the short form used here remains,
with one exponential and no logarithm:

    sigma = L(u) + c - exp(-alpha xi (u - u*)) (L(u*) + c - z*).

At u = u* it gives z*: the memory is consistent by itself, for every z*, and z+ = z- closes it (SR eq. 24).

This is section 5.2 of Serban and Recuero (2019), "SR"; `figures` draws their figures 5 to 8.

References
----------
R. Serban and A. Recuero, Sensitivity Analysis for Hybrid Systems and Systems with Memory, technical report
TR-2019-01, Simulation-Based Engineering Lab, University of Wisconsin-Madison, 2019.

N. Vaiana, S. Sessa, F. Marmo, L. Rosati, A class of uniaxial phenomenological models for simulating
hysteretic phenomena in rate-independent mechanical systems and materials, Nonlinear Dynamics 93(3),
1647-1669, 2018.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

import dae_hybrid as dh
from dae_hybrid.problems._ode15s import DATA, read_em_hysteresis
from dae_hybrid.problems._reference import Reference, read_table
from dae_hybrid.problems._witness import em_hysteresis_witness
from dae_hybrid.report.external_solution import ExternalSolution

if TYPE_CHECKING:
    from dae_hybrid.report.reproduce import Reproduction

#: the interval of the paper
t_span = (0.0, 10.0)

#: tolerances at which the paper's results are reproduced
tolerances = {"rtol": 1e-10, "atol": 1e-14}

#: relative step of finite differences
difference_step = 1e-2

DELTA = 1e-20  # SR, below eq. 46
MASS = AREA = 1.0


def model() -> dh.HybridModel:
    """The declaration (SR eq. 45, 46)."""
    m = dh.HybridModel("em_hysteresis")
    t = m.time
    ka = m.parameter("ka", 32 * np.pi**2, description="initial tangent stiffness")
    kb = m.parameter("kb", np.pi**2, description="asymptotic tangent stiffness")
    alpha = m.parameter("alpha", 205.0, description="rate of the transition between the two")
    beta = m.parameter("beta", 0.0, description="hardening")
    u = m.differential("u", description="displacement")
    v = m.differential("v", description="velocity")
    z = m.algebraic("z", description="stress")
    u_star = m.memory("u_star", of=u, initial=0.0, description="displacement at the last reversal")
    z_star = m.memory("z_star", of=z, initial=0.0, description="stress at the last reversal")

    def limit(w: Any) -> Any:  # the limiting curve, but for the constant c
        return -2 * beta * w + 2 * np.sinh(beta * w) + kb * w

    def stress(xi: int) -> Any:
        c = xi * (ka - kb + DELTA) / (2 * alpha)
        return limit(u) + c - np.exp(-alpha * xi * (u - u_star)) * (limit(u_star) + c - z_star)

    force = 0.5 * t * np.sin(2 * np.pi * t)
    motion = {u: v, v: (force - AREA * z) / MASS}
    loading = m.mode("loading", ode=motion, algebraic=[stress(+1) - z])
    unloading = m.mode("unloading", ode=motion, algebraic=[stress(-1) - z])
    m.transition(loading, unloading, guard=v, direction="falling")
    m.transition(unloading, loading, guard=v, direction="rising")

    m.initial(loading, {u: 0.0, v: 0.0})
    m.functional("G", integrand=u**2)
    return m


def printed_stress(u: Any, u_star: Any, z_star: Any, xi: int, p: Any, *, misprint: bool = False) -> Any:
    """The stress in the long form of SR eq. 46, for comparison; the model has the short form.

    Parameters
    ----------
    u, u_star, z_star : float or ndarray
        Displacement; displacement and stress at the last reversal.
    xi : {1, -1}
        Loading or unloading.
    p : sequence of 4 floats
        ka, kb, alpha, beta.
    misprint : bool
        With sinh instead of 2 sinh in ui, as printed.
    """
    ka, kb, alpha, beta = p
    u0 = -np.log(DELTA / (ka - kb)) / (2 * alpha)
    fbar = (ka - kb) / (2 * alpha) * (1 - np.exp(-2 * alpha * u0))
    bracket = (
        -2 * beta * u_star
        + (1 if misprint else 2) * np.sinh(beta * u_star)
        + kb * u_star
        + (ka - kb) / alpha * xi * np.exp(-2 * alpha * u0)
        + xi * fbar
        - z_star
    )
    ui = u_star + 2 * xi * u0 + xi / alpha * np.log(xi * alpha / (ka - kb) * bracket)
    decay = np.exp(-alpha * (u * xi - ui * xi + 2 * u0)) - np.exp(-2 * alpha * u0)
    return -2 * beta * u + 2 * np.sinh(beta * u) + kb * u - xi * (ka - kb) / alpha * decay + xi * fbar


@cache
def system() -> dh.HybridSystem:
    """The built model."""
    return model().build()


@cache
def reference() -> Reference:
    """Values of 20 digits, and those of ode15s; ``reference/serban_recuero/README.md`` describes their origin.

    Columns of ``events``: i, t_i, u, v, z, mode_from, mode_to, dt_dka, dt_dkb, dt_dalpha, dt_dbeta. Columns of
    ``states``, at t = 0.5, 1, ..., 10: t, u, v, z, mode, du_dka, ..., dz_dbeta. The fourth component of
    every gradient is exactly zero, because beta enters through 2 sinh(beta u) - 2 beta u, of order beta^3.
    """
    source = "two programs, 128-bit extrapolation with dual numbers and 220-bit Taylor series, which agree to 20 digits"
    functional = (DATA / "ref52_highprec.csv").read_text(encoding="utf-8").splitlines()[-1].split(",")
    events = read_table(DATA / "ref52_events_highprec.csv", source)
    return Reference(
        functional="G",
        value=float(functional[1]),
        gradient=np.array([float(number) for number in functional[2:]]),
        event_times=events["t_i"],
        event_time_sensitivity=events.stack("dt_dka", "dt_dkb", "dt_dalpha", "dt_dbeta"),
        events=events,
        states=read_table(DATA / "ref52_states_highprec.csv", source),
        source=source,
        accuracy=1e-19,
        printed={
            "G": "0.04994",
            "finite_difference": ("-1.338e-5", "3.267e-3", "-1.534e-6", "-6.07e-9"),
            "forward": ("-1.337e-5", "3.266e-3", "-1.518e-6", "0"),
            "adjoint": ("-1.335e-5", "3.267e-3", "-1.540e-6", "0"),  # by Algorithm 1
        },
        ode15s=read_em_hysteresis(),
        bare=read_em_hysteresis(polished=False),
    )


def witness(reference: Reference) -> ExternalSolution:
    """The solution by ode15s, with the truth where 20 digits are known."""
    return em_hysteresis_witness(reference)


def figures(result: Reproduction) -> Iterator[tuple[str, str, Any]]:
    """Yield figures 5 to 8 of SR: stem of the file, caption, matplotlib Figure."""
    from dae_hybrid.problems._em_hysteresis_figures import draw

    yield from draw(result.forward, result.adjoint)
