"""A hybrid ODE with two modes, in which hidden discontinuities cause wrong sensitivities.

The state x relaxes towards 4 or towards 5, depending on the side of a threshold on which a cubic of x lies:

    x' = 4 - x      while  x^3 - 5 x^2 + 7 x <= p,
    x' = 10 - 2 x   otherwise,           x(0) = 0,  p = 2.9,  0 <= t <= 5.

The cubic is not monotonic, so x crosses the threshold three times: up at x = 0.787, down at x = 1.238, up
at x = 2.974. The state is continuous there, but its sensitivity s = dx/dp jumps, because the time of the
crossing depends on p (SR eq. 40, 41):

    s+ + x'+ dt/dp = s- + x'- dt/dp.

Between crossings neither equation contains p: without the jumps, the sensitivity equations give s = 0 at all
times. The functional is G, the integral of x, and dG/dp = -2.31195.

The problem was posed by Galan, Feehery and Barton (1999) and Tolsma and Barton (2002); it is section 5.1 of
Serban and Recuero (2019), "SR", whose figures 2 and 3 `figures` draws.

References
----------
R. Serban and A. Recuero, Sensitivity Analysis for Hybrid Systems and Systems with Memory, technical report
TR-2019-01, Simulation-Based Engineering Lab, University of Wisconsin-Madison, 2019.

S. Galan, W. F. Feehery, P. I. Barton, Parametric sensitivity functions for hybrid discrete/continuous
systems, Applied Numerical Mathematics 31(1), 17-47, 1999.

J. E. Tolsma, P. I. Barton, Hidden discontinuities and parametric sensitivity calculations, SIAM Journal on
Scientific Computing 23(6), 1861-1874, 2002.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

import dae_hybrid as dh
from dae_hybrid.problems._ode15s import DATA, read_hybrid_ode
from dae_hybrid.problems._reference import Reference, Table, read_json
from dae_hybrid.problems._witness import hybrid_ode_witness
from dae_hybrid.report.external_solution import ExternalSolution

if TYPE_CHECKING:
    from dae_hybrid.report.reproduce import Reproduction

#: the interval of the paper
t_span = (0.0, 5.0)

#: tolerances at which the paper's results are reproduced
tolerances = {"rtol": 1e-10, "atol": 1e-12}

#: relative step of finite differences: small, because two of the crossings vanish at p = 3
difference_step = 1e-3


def model() -> dh.HybridModel:
    """The declaration (SR eq. 39)."""
    m = dh.HybridModel("hybrid_ode")
    p = m.parameter("p", 2.9, description="threshold")
    x = m.differential("x")

    below = m.mode("below", ode={x: 4 - x})
    above = m.mode("above", ode={x: 10 - 2 * x})
    threshold = x**3 - 5 * x**2 + 7 * x - p
    m.transition(below, above, guard=threshold, direction="rising")
    m.transition(above, below, guard=threshold, direction="falling")

    m.initial(below, {x: 0.0})
    m.functional("G", integrand=x)
    return m


@cache
def system() -> dh.HybridSystem:
    """The built model."""
    return model().build()


@cache
def reference() -> Reference:
    """Exact values, and those of ode15s; ``reference/serban_recuero/README.md`` describes their origin.

    The columns of ``events`` are t, x, xdot_minus, xdot_plus, s_minus, s_plus, dtdp, lambda_minus and
    lambda_plus; lambda is that of SR eq. 43, which is minus dG/dx.
    """
    exact = read_json(DATA / "ref51_exact.json")
    source = "closed form, evaluated with 60 digits"
    events = Table(_columns(exact["events"]), source)
    return Reference(
        functional="G",
        value=float(exact["G"]),
        gradient=np.array([float(exact["dG"])]),
        event_times=events["t"],
        event_time_sensitivity=events["dtdp"][:, None],
        events=events,
        states=Table(_columns(exact["states"]), source),
        source=source,
        accuracy=1e-25,
        printed={"forward": ("-2.31195",), "adjoint": ("-2.31195",)},  # SR section 5.1; it does not print G
        ode15s=read_hybrid_ode(),
    )


def _columns(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def witness(reference: Reference) -> ExternalSolution:
    """The solution by ode15s, with the truth at every row."""
    return hybrid_ode_witness(reference)


def figures(result: Reproduction) -> Iterator[tuple[str, str, Any]]:
    """Yield figures 2 and 3 of SR: stem of the file, caption, matplotlib Figure."""
    from dae_hybrid.problems._hybrid_ode_figures import draw

    yield from draw(result.forward, result.adjoint)
