"""Reinforcing steel in a cyclic test: a material with memory beyond its last reversal.

Serban and Recuero (2019, section 6) name the law of Menegotto and Pinto as future work. Between two reversals the
stress is a curve from the last reversal (e_r, s_r) to an asymptote of slope b E through the yield point, in direction
xi = +1 in tension and -1 in compression:

    e* = (e - e_r) / (e_0 - e_r),    s = s_r + (s_0 - s_r) [b e* + (1 - b) e* / (1 + e*^R)^(1/R)],

where (e_0, s_0) is the intersection of the elastic line through the reversal with the asymptote. The exponent R
(Bauschinger effect) depends on the end e_m of the *previous* excursion in the same direction (Filippou, Popov and
Bertero 1983):

    R = R_0 - a_1 r / (a_2 + r),     r = |e_m - e_0| / e_y,     e_y = s_y / E.

The material therefore remembers the last reversal, the strain at the end of the last excursion in each direction, and
R. All of these are general memory, updated from old memory, values before the transition and parameters.

The strain is imposed: a cyclic protocol of growing amplitude, two cycles each, every amplitude 1.4 times the one before
(the sequence of FEMA 461), linear in between. It is a `signal`, whose values depend on the parameter "amplitude". The
guard of a reversal is the strain rate, which changes sign at a knot without passing through zero.

The costs are the dissipated energy, the integral of s de, and the misfit to a measured stress at times between the
reversals. The stress along a branch is explicit, so that `reference` is a quadrature, differentiated by complex steps.

References
----------
R. Serban and A. Recuero, Sensitivity Analysis for Hybrid Systems and Systems with Memory, technical report
TR-2019-01, Simulation-Based Engineering Lab, University of Wisconsin-Madison, 2019.

M. Menegotto, P. E. Pinto, Method of analysis for cyclically loaded R.C. plane frames, IABSE reports 13, 15-22, 1973.

F. C. Filippou, E. P. Popov, V. V. Bertero, Effects of bond deterioration on hysteretic behavior of reinforced concrete
joints, report UCB/EERC-83/19, University of California, Berkeley, 1983.

FEMA 461, Interim testing protocols for determining the seismic performance characteristics of structural and
nonstructural components, Federal Emergency Management Agency, 2007.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import dae_hybrid as dh
from dae_hybrid.problems._reference import Exact, complex_step

NOMINAL = {"E": 200.0, "sy": 0.4, "b": 0.02, "R0": 15.0, "a1": 12.0, "a2": 0.6, "amplitude": 0.0022}

#: amplitudes of the half-cycles in multiples of the first one
PROTOCOL = np.array([0.0, *(sign * 1.4**i for i in range(5) for sign in (1, -1, 1, -1)), 0.0])
KNOTS = np.arange(PROTOCOL.size, dtype=float)

#: one second per half-cycle
t_span = (0.0, float(KNOTS[-1]))

#: the "measured" stress at the middle of the half-cycles: the law with other parameters, rounded
MEASURED_AT = KNOTS[1:-1:3] + 0.45
MEASURED = np.array([-0.10, 0.08, -0.21, 0.15, -0.28, 0.19, -0.30])


def model() -> dh.HybridModel:
    """The declaration; stress in GPa."""
    m = dh.HybridModel("menegotto_pinto")
    E = m.parameter("E", NOMINAL["E"], unit="GPa", description="Young's modulus")
    sy = m.parameter("sy", NOMINAL["sy"], unit="GPa", description="yield stress")
    b = m.parameter("b", NOMINAL["b"], description="hardening ratio")
    R0 = m.parameter("R0", NOMINAL["R0"], description="exponent of the first branch")
    a1, a2 = m.parameter("a1", NOMINAL["a1"]), m.parameter("a2", NOMINAL["a2"])
    amplitude = m.parameter("amplitude", NOMINAL["amplitude"], description="strain of the first half-cycle")
    strain = m.signal("strain", KNOTS, amplitude * PROTOCOL)
    W = m.differential("W", unit="GPa", description="energy per volume")
    s = m.algebraic("s", unit="GPa", description="stress")
    e_r, s_r = m.memory("e_r", initial=0.0), m.memory("s_r", initial=0.0)  # last reversal
    e_max, e_min = m.memory("e_max", initial=sy / E), m.memory("e_min", initial=-sy / E)  # last excursions
    R = m.memory("R", initial=R0)

    def target(xi: int, e: Any, stress: Any) -> Any:
        """Strain e_0 where the elastic line through (e, stress) meets the asymptote of direction xi."""
        return (xi * sy * (1 - b) - stress + E * e) / (E * (1 - b))

    def branch(xi: int) -> Any:
        e_0 = target(xi, e_r, s_r)
        ratio = (strain - e_r) / (e_0 - e_r)
        # ratio**R; its derivative with respect to R would be 0 log(0) at a reversal
        power = np.exp(R * np.log(np.fmax(ratio, 1e-300)))
        return s_r + E * (e_0 - e_r) * (b * ratio + (1 - b) * ratio / (1 + power) ** (1 / R))

    def exponent(xi: int, excursion: Any) -> Any:
        r = np.fabs(excursion - target(xi, strain, s)) * E / sy
        return R0 - a1 * r / (a2 + r)

    rate = m.der(strain)
    tension = m.mode("tension", ode={W: s * rate}, algebraic=[s - branch(1)])
    compression = m.mode("compression", ode={W: s * rate}, algebraic=[s - branch(-1)])
    m.transition(
        tension, compression, guard=rate, direction="falling",
        memory={e_r: strain, s_r: s, e_max: strain, R: exponent(-1, e_min)},
    )  # fmt: skip
    m.transition(
        compression, tension, guard=rate, direction="rising",
        memory={e_r: strain, s_r: s, e_min: strain, R: exponent(1, e_max)},
    )  # fmt: skip
    m.initial(tension, {W: 0.0})
    m.functional("energy", terminal=W)
    m.functional("misfit", at_times={t: (s - d) ** 2 for t, d in zip(MEASURED_AT, MEASURED, strict=True)})
    return m


@cache
def system() -> dh.HybridSystem:
    """The built model."""
    return model().build()


def by_quadrature(p: Any) -> dict[str, Any]:
    """Costs from (E, sy, b, R0, a1, a2, amplitude), which may be complex: one Gauss rule per piece of a branch."""
    E, sy, b, R0, a1, a2, amplitude = p
    nodes, weights = np.polynomial.legendre.leggauss(60)
    e_r, s_r, R, extremes = 0.0 * E, 0.0 * E, R0, {1: sy / E, -1: -sy / E}
    energy, misfit = 0.0 * E, 0.0 * E
    for i, (start, end) in enumerate(zip(amplitude * PROTOCOL[:-1], amplitude * PROTOCOL[1:], strict=True)):
        xi = 1 if (end - start).real > 0 else -1
        e_0 = (xi * sy * (1 - b) - s_r + E * e_r) / (E * (1 - b))

        def stress(e: Any, e_r: Any = e_r, s_r: Any = s_r, R: Any = R, e_0: Any = e_0) -> Any:
            ratio = (e - e_r) / (e_0 - e_r)
            return s_r + E * (e_0 - e_r) * (b * ratio + (1 - b) * ratio / (1 + ratio**R) ** (1 / R))

        for piece in range(8):
            middle, half = start + (piece + 0.5) / 8 * (end - start), (end - start) / 16
            energy = energy + half * (weights @ stress(middle + half * nodes))
        for t, d in zip(MEASURED_AT, MEASURED, strict=True):
            if KNOTS[i] < t < KNOTS[i + 1]:
                misfit = misfit + (stress(start + (t - KNOTS[i]) * (end - start)) - d) ** 2
        # the reversal at the end of this branch
        e_r, s_r = end, stress(end)
        extremes[xi] = end
        e_0 = (-xi * sy * (1 - b) - s_r + E * e_r) / (E * (1 - b))
        r = (extremes[-xi] - e_0) * E / sy
        r = r if r.real > 0 else -r
        R = R0 - a1 * r / (a2 + r)
    return {"energy": energy, "misfit": misfit}


@cache
def reference() -> Exact:
    """Quadrature of the formula, differentiated by complex steps."""
    p = np.array(list(NOMINAL.values()))
    reversals = KNOTS[1:-1]
    return Exact(
        values={name: float(value) for name, value in by_quadrature(p).items()},
        gradients=complex_step(by_quadrature, p),
        event_times=reversals,
        event_time_sensitivity=np.zeros((reversals.size, p.size)),
        final={},
        source="Gauss quadrature of the formula, complex steps",
        accuracy=1e-12,
    )
