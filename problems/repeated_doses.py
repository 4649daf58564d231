"""A drug taken once a day for ten days: one compartment with absorption and a lag, fitted to published data.

Case study PK04 of Gabrielsson and Weiner (2016): one subject, ten oral doses of 352.3 micrograms, and the plasma
concentration on the first and on the last day. A dose reaches the gut after the lag, is absorbed at the rate ka and
eliminated at the rate k:

    gut' = -ka gut,    body' = ka gut - k body,    conc = body / V,    gut+ = gut- + dose at t = 24 i + lag.

The doses are time events, and their times depend on the parameter "lag": the concentration is continuous at them, and
its derivative with respect to the lag is that of the saltation at every dose. The volume V is relative to the part of
the dose that is absorbed. With no lag the best ka and k are equal, a double root; with a lag there are two equivalent
minima, as the concentration does not change if ka and k are exchanged and V is divided by ka / k.

**Fit.** V, ka, k and lag, from `START`, by the concentrations of `data`, with equal weights. `estimates` contains the
minimum with standard errors, from the closed form. With a lag of 0.5 or 1 a dose coincides with a measurement, whose
derivative is then one-sided, and refused. `published` contains the values in the tutorial of Pumas for this
case study, with two or three digits. They lie within one standard error of the estimates, but no criterion was found
whose minimum rounds to them (``reference/repeated_doses/README.md``).

The functional "misfit" is the sum of squared residuals. Transitions at times that depend on parameters are those of
Serban and Recuero (2019); `reference` contains the gradient from the closed form.

References
----------
J. Gabrielsson, D. Weiner, Pharmacokinetic and Pharmacodynamic Data Analysis: Concepts and Applications, 5th edition,
Swedish Pharmaceutical Press, 2016.

R. Serban and A. Recuero, Sensitivity Analysis for Hybrid Systems and Systems with Memory, technical report
TR-2019-01, Simulation-Based Engineering Lab, University of Wisconsin-Madison, 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

import dae_hybrid as dh
from dae_hybrid.problems._reference import FOLDER, Array, Exact, Table, complex_step, read_table

DATA = FOLDER / "repeated_doses"

#: hours and micrograms
DOSES = tuple((24.0 * day, 352.3) for day in range(10))

#: initial guess; V in litres, ka and k in 1/h, lag in h. With a lag of 0.5 a dose would coincide with a measurement.
START = {"V": 70.0, "ka": 0.25, "k": 0.1, "lag": 0.6}

#: hours
t_span = (0.0, 240.0)

#: as printed in the tutorial of Pumas
published = {"V": "64.9", "ka": "0.20", "k": "0.12", "lag": "0.70"}


@cache
def data() -> dict[str, Array]:
    """The measurements.

    Returns
    -------
    dict of ndarray, each of shape (26,)
        Columns "time" (h) and "conc" (micrograms per litre).
    """
    return dict(read_table(DATA / "repeated_doses.csv", "Gabrielsson and Weiner (2016)").columns)


@cache
def estimates() -> Table:
    """Least-squares estimates by the closed form, in one row.

    Columns: V, ka, k, lag, their standard errors se_V, se_ka, se_k and se_lag, the residual standard error sigma, the
    sum of squares rss, and the degrees of freedom df.
    """
    return read_table(DATA / "estimates.csv", "Gauss-Newton and Newton's method on the closed form")


def model(doses: Sequence[tuple[float, float]] = DOSES) -> dh.HybridModel:
    """The declaration.

    Parameters
    ----------
    doses : sequence of (time, amount)
        In hours and micrograms.
    """
    m = dh.HybridModel("repeated_doses")
    V = m.parameter("V", START["V"], unit="l", description="volume per absorbed part of the dose")
    ka = m.parameter("ka", START["ka"], unit="1/h", description="rate of absorption")
    k = m.parameter("k", START["k"], unit="1/h", description="rate of elimination")
    lag = m.parameter("lag", START["lag"], unit="h", description="from a dose to its absorption")
    gut, body = m.differential("gut", unit="ug"), m.differential("body", unit="ug")
    conc = m.algebraic("conc", unit="ug/l")

    run = m.mode("run", ode={gut: -ka * gut, body: ka * gut - k * body}, algebraic=[V * conc - body])
    for time, amount in doses:
        m.transition(run, run, at=time + lag, reset={gut: gut + amount}, name=f"dose at {time:g}")
    m.initial(run, {gut: 0.0, body: 0.0})
    measured = data()
    m.functional("misfit", at_times=[(measured["time"], (conc - measured["conc"]) ** 2)])
    return m


@cache
def system() -> dh.HybridSystem:
    """The built model."""
    return model().build()


def concentration(p: Any, t: Any) -> Any:
    """The closed form for `DOSES`.

    Parameters
    ----------
    p : sequence of 4 numbers
        V, ka, k and lag; they may be complex.
    t : ndarray
        Hours since the first dose.
    """
    V, ka, k, lag = p
    conc = np.zeros_like(t)
    for time, amount in DOSES:
        since = t - time - lag
        since = np.where(since.real > 0, since, 0)
        conc = conc + amount / V * ka / (ka - k) * (np.exp(-k * since) - np.exp(-ka * since))
    return conc


@cache
def reference() -> Exact:
    """The misfit at `START`, its gradient, and the events, from the closed form."""
    measured, p = data(), np.array(list(START.values()))

    def costs(q: Any) -> dict[str, Any]:
        return {"misfit": np.sum((concentration(q, measured["time"]) - measured["conc"]) ** 2)}

    return Exact(
        values=costs(p),
        gradients=complex_step(costs, p),
        event_times=np.array([time + START["lag"] for time, _ in DOSES]),
        event_time_sensitivity=np.tile([0.0, 0.0, 0.0, 1.0], (len(DOSES), 1)),
        final={"conc": float(concentration(p, np.array(t_span[1])))},
        source="closed form, complex steps",
        accuracy=1e-13,
    )
