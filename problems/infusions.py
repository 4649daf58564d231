"""A drug given as a bolus and by infusions: two compartments, fitted to published data.

Two case studies of Gabrielsson and Weiner (2016), with one subject each: a bolus with an infusion of 26 minutes (PK13),
and three infusions in a row (PK39). The drug enters the plasma at the rate R(t), is eliminated with the clearance Cl,
and exchanges with the tissue; amounts and volumes are per body weight:

    plasma' = R - Cl c - Cld (c - d),    tissue' = Cld (c - d),    c = plasma / Vc,    d = tissue / Vt.

The concentrations c and d are algebraic variables. The rate R is memory, which time events change where an infusion
starts or ends; a bolus is a reset of the plasma, or its initial value if it is given at t = 0. Several measurements
coincide with such an event, where the concentration is continuous.

**Fit.** Vc, Vt, Cl and Cld, from the values of `Study.start`, by the concentrations of `data`. `published` contains the
estimates in the tutorials of Pumas for the two studies. They are those of maximum likelihood with a standard deviation
of the measurements that depends on the concentration: a + b c (PK13) or s sqrt(c) (PK39), with a, b or s estimated, too
(see ``reference/infusions/README.md``). The functional "deviance" is this criterion, twice the negative log-likelihood
without its constant,

    deviance = sum (y - c)^2 / v + log(v),    v the variance,

and "misfit" is the sum of squares. `estimates` contains the minimum of both, and of the sum of squares with the weights
1 / y, to 11 digits by the closed form. The criteria have different minima: least squares with equal weights leads to a
Vt that is 17 % larger in PK13.

The gradients of both functionals are sums of costs at measurement times in the sense of Serban and Recuero (2019), with
transitions at fixed times between them; `reference` contains them from the closed form.

References
----------
J. Gabrielsson, D. Weiner, Pharmacokinetic and Pharmacodynamic Data Analysis: Concepts and Applications, 5th edition,
Swedish Pharmaceutical Press, 2016.

R. Serban and A. Recuero, Sensitivity Analysis for Hybrid Systems and Systems with Memory, technical report
TR-2019-01, Simulation-Based Engineering Lab, University of Wisconsin-Madison, 2019.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import dae_hybrid as dh
from dae_hybrid.problems._reference import FOLDER, Array, Exact, complex_step, read_json, read_table

DATA = FOLDER / "infusions"


@dataclass(frozen=True)
class Study:
    """Doses, and the parameters to be estimated.

    Attributes
    ----------
    boluses : tuple of (time, amount)
    infusions : tuple of (start, end, amount)
        Amounts in micrograms per kilogram.
    start : mapping of str to float
        Initial guess of Vc, Vt (l/kg), Cl and Cld (l/kg per unit of time).
    error : mapping of str to float
        Initial guess of the parameters of the standard deviation: a and b of a + b c, or s of s sqrt(c).
    end : float
        End of the run, after the last measurement.
    time : str
        Unit of time.
    """

    boluses: tuple[tuple[float, float], ...]
    infusions: tuple[tuple[float, float, float], ...]
    start: Mapping[str, float]
    error: Mapping[str, float]
    end: float
    time: str

    def deviation(self, conc: Any, error: Any) -> Any:
        """Standard deviation of a measurement, with the values `error` of the parameters of that name."""
        if len(self.error) == 2:
            return error[0] + error[1] * conc
        return error[0] * np.sqrt(conc)


STUDIES = {
    "bolus_and_infusion": Study(
        boluses=((0.0, 400.0),),
        infusions=((0.0, 26.0, 800.0),),
        start={"Vc": 3.0, "Vt": 2.0, "Cl": 0.4, "Cld": 0.2},
        error={"a": 0.1, "b": 0.1},
        end=160.0,
        time="min",
    ),
    "three_infusions": Study(
        boluses=(),
        infusions=((0.0, 0.25, 26.9), (0.25, 8.0, 139.0), (8.0, 24.0, 138.95)),
        start={"Vc": 0.4, "Vt": 2.0, "Cl": 0.5, "Cld": 0.8},
        error={"s": 0.3},
        end=72.0,
        time="h",
    ),
}

#: minutes, for the study of `system`
t_span = (0.0, STUDIES["bolus_and_infusion"].end)

#: estimates as printed in the tutorials of Pumas, by study
published = {
    "bolus_and_infusion": {"Vc": "2.8946", "Vt": "2.18368", "Cl": "0.344708", "Cld": "0.178392", "a": "0.0571079"},
    "three_infusions": {"Vc": "0.320672", "Vt": "2.12265", "Cl": "0.417793", "Cld": "0.903188"},
}


def data(study: str = "bolus_and_infusion") -> dict[str, Array]:
    """The measurements of a study.

    Parameters
    ----------
    study : {"bolus_and_infusion", "three_infusions"}

    Returns
    -------
    dict of ndarray, each of shape (19,) or (24,)
        Columns "time" (minutes or hours, see `Study.time`) and "conc" (micrograms per litre).

    Raises
    ------
    ParameterError
        There is no such study.

    Examples
    --------
    >>> from dae_hybrid.problems import infusions
    >>> infusions.data("three_infusions")["conc"][:3]
    array([53.21, 25.67, 24.59])
    """
    if study not in STUDIES:
        raise dh.ParameterError(f"There is no study {study!r}; there are {', '.join(STUDIES)}.")
    return dict(read_table(DATA / f"{study}.csv", "Gabrielsson and Weiner (2016)").columns)


@cache
def estimates() -> dict[str, Any]:
    """Estimates by the closed form: study, criterion, then parameter, "objective", and "errors" in least squares.

    The criteria are "equal weights", "weights 1/conc" and "likelihood".
    """
    return dict(read_json(DATA / "estimates.json"))


def model(study: str | Study = "bolus_and_infusion") -> dh.HybridModel:
    """The declaration.

    Parameters
    ----------
    study : str or Study
        A study of `STUDIES`, whose data make the functionals; or doses, without functionals.
    """
    m = dh.HybridModel("infusions")
    case = STUDIES[study] if isinstance(study, str) else study
    Vc = m.parameter("Vc", case.start["Vc"], unit="l/kg", description="volume of the plasma")
    Vt = m.parameter("Vt", case.start["Vt"], unit="l/kg", description="volume of the tissue")
    Cl = m.parameter("Cl", case.start["Cl"], unit=f"l/kg/{case.time}", description="clearance")
    Cld = m.parameter("Cld", case.start["Cld"], unit=f"l/kg/{case.time}", description="exchange with the tissue")
    error = [m.parameter(name, value, description="standard deviation") for name, value in case.error.items()]
    plasma, tissue = m.differential("plasma", unit="ug/kg"), m.differential("tissue", unit="ug/kg")
    c, d = m.algebraic("conc", unit="ug/l"), m.algebraic("conc_tissue", unit="ug/l")
    rate = m.memory("rate", unit=f"ug/kg/{case.time}", initial=_rate(case, 0.0), description="rate of infusion")

    exchange = Cld * (c - d)
    run = m.mode(
        "run",
        ode={plasma: rate - Cl * c - exchange, tissue: exchange},
        algebraic=[plasma - Vc * c, tissue - Vt * d],
    )
    for time in sorted({t for start, end, _ in case.infusions for t in (start, end)} - {0.0}):
        m.transition(run, run, at=time, memory={rate: _rate(case, time)}, name=f"rate at {time:g}")
    for time, amount in case.boluses:
        if time > 0:
            m.transition(run, run, at=time, reset={plasma: plasma + amount}, name=f"bolus at {time:g}")
    m.initial(run, {plasma: sum(amount for time, amount in case.boluses if time == 0), tissue: 0.0})
    if isinstance(study, str):
        measured = data(study)
        squares, variance = (c - measured["conc"]) ** 2, case.deviation(c, error) ** 2
        m.functional("misfit", at_times=[(measured["time"], squares)])
        m.functional("deviance", at_times=[(measured["time"], squares / variance + np.log(variance))])
    return m


def _rate(case: Study, time: float) -> float:
    """Rate of infusion just after a time."""
    return sum(amount / (end - start) for start, end, amount in case.infusions if start <= time < end)


@cache
def system(study: str = "bolus_and_infusion") -> dh.HybridSystem:
    """The built model of a study."""
    return model(study).build()


def concentration(p: Any, t: Any, case: Study) -> Any:
    """The closed form: two exponentials for every bolus and every infusion.

    Parameters
    ----------
    p : sequence of 4 numbers
        Vc, Vt, Cl and Cld; they may be complex.
    t : ndarray
        Times since the first dose.
    case : Study
        The doses.
    """
    Vc, Vt, Cl, Cld = p
    k21, total = Cld / Vt, (Cl + Cld) / Vc + Cld / Vt
    root = np.sqrt(total**2 - 4 * k21 * Cl / Vc)
    conc = np.zeros_like(t)
    for decay, other in (((total + root) / 2, (total - root) / 2), ((total - root) / 2, (total + root) / 2)):
        weight = (decay - k21) / (decay - other) / Vc
        for time, amount in case.boluses:
            conc = conc + np.where(t >= time, amount * weight * np.exp(-decay * np.maximum(t - time, 0)), 0)
        for start, end, amount in case.infusions:
            since, after = np.maximum(t - start, 0), np.maximum(t - end, 0)
            conc = conc + amount / (end - start) * weight / decay * (np.exp(-decay * after) - np.exp(-decay * since))
    return conc


def costs(p: Any, study: str) -> dict[str, Any]:
    """Both functionals by the closed form; p continues with the parameters of the standard deviation."""
    case, measured = STUDIES[study], data(study)
    c = concentration(p[:4], measured["time"], case)
    squares, variance = (c - measured["conc"]) ** 2, case.deviation(c, p[4:]) ** 2
    return {"misfit": np.sum(squares), "deviance": np.sum(squares / variance + np.log(variance))}


@cache
def reference() -> Exact:
    """Both functionals of the bolus with an infusion at the initial guess, with gradients, from the closed form."""
    case = STUDIES["bolus_and_infusion"]
    p = np.array([*case.start.values(), *case.error.values()])
    return Exact(
        values=costs(p, "bolus_and_infusion"),
        gradients=complex_step(lambda q: costs(q, "bolus_and_infusion"), p),
        event_times=np.array([26.0]),
        event_time_sensitivity=np.zeros((1, p.size)),
        final={"conc": float(concentration(p[:4], np.array(t_span[1]), case))},
        source="closed form, complex steps",
        accuracy=1e-13,
    )
