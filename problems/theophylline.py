"""Theophylline in twelve subjects: a first-order compartment model, fitted to published data.

Boeckmann, Sheiner and Beal (1994) publish the serum concentration of theophylline in twelve subjects, at eleven times
within 25 hours after an oral dose. The drug passes from the gut into the blood at the rate ka and is eliminated at the
rate ke; amounts are per body weight, like the dose D:

    gut' = -ka gut,    body' = ka gut - ke body,    conc = body / V,    gut(0) = D,    body(0) = 0,

with ke = exp(lKe), ka = exp(lKa) and the clearance exp(lCl) = ke V. This is the model ``SSfol`` of R, whose parameters
lKe, lKa and lCl are those of Pinheiro and Bates (2000, chapter 8). The concentration is an algebraic variable, and the
dose a parameter, so that one system serves all subjects. The closed form is

    conc = D exp(lKe + lKa - lCl) (exp(-ke t) - exp(-ka t)) / (ka - ke).

**Fit.** lKe, lKa and lCl of one subject, from `START`, by the concentrations of `data`, with equal weights. The
measurement at t = 0 (0.74 mg/l in subject 1) is part of the published fits, although the model is zero there.
`published` contains the estimates that R's packages *stats* and *nlme* print, and `estimates` those of every subject
and of all subjects pooled to 11 digits, from the closed form (``reference/theophylline/make_reference.py``). The pooled
fit has one set of parameters, and one experiment with its own dose for each subject.

The functional "misfit" is the sum of squared residuals of one subject. Its gradient is a sum of costs at measurement
times in the sense of Serban and Recuero (2019); `reference` contains it from the closed form.

References
----------
A. J. Boeckmann, L. B. Sheiner, S. L. Beal, NONMEM Users Guide, Part V, NONMEM Project Group, University of California,
San Francisco, 1994.

J. C. Pinheiro, D. M. Bates, Mixed-Effects Models in S and S-PLUS, Springer, 2000.

R. Serban and A. Recuero, Sensitivity Analysis for Hybrid Systems and Systems with Memory, technical report
TR-2019-01, Simulation-Based Engineering Lab, University of Wisconsin-Madison, 2019.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import dae_hybrid as dh
from dae_hybrid.problems._reference import FOLDER, Array, Exact, Table, complex_step, read_table

DATA = FOLDER / "theophylline"

#: subjects of the data
SUBJECTS = tuple(range(1, 13))

#: initial guess of the fits: the arguments of R's ``example(SSfol)``
START = {"lKe": -2.5, "lKa": 0.5, "lCl": -3.0}

#: hours; the last measurement of all subjects is at 24.65
t_span = (0.0, 25.0)

#: estimates as printed, by source and subject; `errors` are standard errors
published = {
    "stats": {
        1: {
            "lKe": "-2.9196", "lKa": "0.5752", "lCl": "-3.9159",
            "errors": ("0.1709", "0.1728", "0.1273"), "sigma": "0.732",
        },
    },
    "nlme": {
        1: {"lKe": "-2.92", "lKa": "0.575", "lCl": "-3.92"},
        2: {"lKe": "-2.29", "lKa": "0.664", "lCl": "-3.11"},
        3: {"lKe": "-2.51", "lKa": "0.898", "lCl": "-3.23"},
        4: {"lKe": "-2.44", "lKa": "0.158", "lCl": "-3.29"},
        5: {"lKe": "-2.43", "lKa": "0.386", "lCl": "-3.13"},
        6: {"lKe": "-2.31", "lKa": "0.152", "lCl": "-2.97"},
        7: {"lKe": "-2.28", "lKa": "-0.386", "lCl": "-2.96"},
        8: {"lKe": "-2.39", "lKa": "0.319", "lCl": "-3.07"},
        9: {"lKe": "-2.45", "lKa": "2.182", "lCl": "-3.42"},
        10: {"lKe": "-2.60", "lKa": "-0.363", "lCl": "-3.43"},
        11: {"lKe": "-2.32", "lKa": "1.348", "lCl": "-2.86"},
        12: {"lKe": "-2.25", "lKa": "-0.183", "lCl": "-3.17"},
    },
}  # fmt: skip


def data(subject: int | None = None) -> dict[str, Array]:
    """The measurements.

    Parameters
    ----------
    subject : int, optional
        1 to 12; by default all subjects.

    Returns
    -------
    dict of ndarray, each of shape (11,) or (132,)
        Columns "subject", "weight" (kg), "dose" (mg/kg), "time" (h) and "conc" (mg/l).

    Raises
    ------
    ParameterError
        There is no such subject.

    Examples
    --------
    >>> from dae_hybrid.problems import theophylline
    >>> measured = theophylline.data(1)
    >>> measured["dose"][0], measured["time"][:3], measured["conc"][:3]
    (np.float64(4.02), array([0.  , 0.25, 0.57]), array([0.74, 2.84, 6.57]))
    """
    columns = _table().columns
    chosen = np.ones(len(_table()), dtype=bool) if subject is None else columns["subject"] == subject
    if not chosen.any():
        raise dh.ParameterError(f"There is no subject {subject!r}; there are {SUBJECTS[0]} to {SUBJECTS[-1]}.")
    return {name: column[chosen] for name, column in columns.items()}


@cache
def _table() -> Table:
    return read_table(DATA / "theophylline.csv", "Boeckmann, Sheiner and Beal (1994)")


@cache
def estimates() -> Table:
    """Least-squares estimates by the closed form, one row per subject; subject 0 is the pooled fit.

    Columns: subject, lKe, lKa, lCl, their standard errors se_lKe, se_lKa and se_lCl, the residual standard error
    sigma, the sum of squares rss, and the degrees of freedom df.
    """
    return read_table(DATA / "estimates.csv", "Gauss-Newton and Newton's method on the closed form")


def model(subject: int = 1) -> dh.HybridModel:
    """The declaration.

    Parameters
    ----------
    subject : int
        The subject whose dose is the value of the parameter "dose", and whose data make the functional "misfit".
    """
    m = dh.HybridModel("theophylline")
    measured = data(subject)
    lKe = m.parameter("lKe", START["lKe"], description="logarithm of the elimination rate in 1/h")
    lKa = m.parameter("lKa", START["lKa"], description="logarithm of the absorption rate in 1/h")
    lCl = m.parameter("lCl", START["lCl"], description="logarithm of the clearance in l/(h kg)")
    dose = m.parameter("dose", measured["dose"][0], unit="mg/kg", description="oral dose")
    gut = m.differential("gut", unit="mg/kg", description="amount to be absorbed")
    body = m.differential("body", unit="mg/kg", description="amount in the body")
    conc = m.algebraic("conc", unit="mg/l", description="concentration in serum")

    absorbed = np.exp(lKa) * gut
    run = m.mode(
        "run",
        ode={gut: -absorbed, body: absorbed - np.exp(lKe) * body},
        algebraic=[conc - np.exp(lKe - lCl) * body],
    )
    m.initial(run, {gut: dose, body: 0.0})
    m.functional("misfit", at_times=[(measured["time"], (conc - measured["conc"]) ** 2)])
    return m


@cache
def system() -> dh.HybridSystem:
    """The built model, with the data of subject 1."""
    return model().build()


def concentration(p: Any, t: Any) -> Any:
    """The closed form.

    Parameters
    ----------
    p : sequence of 4 numbers
        lKe, lKa, lCl and the dose; they may be complex.
    t : ndarray
        Hours since the dose.
    """
    lKe, lKa, lCl, dose = p
    ke, ka = np.exp(lKe), np.exp(lKa)
    return dose * np.exp(lKe + lKa - lCl) * (np.exp(-ke * t) - np.exp(-ka * t)) / (ka - ke)


@cache
def reference() -> Exact:
    """The misfit of subject 1 at `START` and its gradient, from the closed form."""
    measured = data(1)
    p = np.array([*START.values(), measured["dose"][0]])

    def costs(q: Any) -> dict[str, Any]:
        return {"misfit": np.sum((concentration(q, measured["time"]) - measured["conc"]) ** 2)}

    return Exact(
        values=costs(p),
        gradients=complex_step(costs, p),
        event_times=np.zeros(0),
        event_time_sensitivity=np.zeros((0, p.size)),
        final={"conc": float(concentration(p, t_span[1]))},
        source="closed form, complex steps",
        accuracy=1e-13,
    )
