"""Solutions by ode15s in the names of the model, and the truth at the same places."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dae_hybrid.problems._ode15s import rows
from dae_hybrid.problems._reference import Array, Measured, Reference, Table
from dae_hybrid.report.external_solution import ExternalSolution, Samples, SolutionRows

PARAMETERS = ("ka", "kb", "alpha", "beta")
#: sources of the functional and its gradient
WAYS = ("simulation", "forward", "adjoint")

#: largest allowed errors of our results at the tolerances of the problem modules; four times the measured ones
OWN_ODE = {"x": 1.5e-8, "s": 2e-8, "t": 2.5e-9, "dt_dp": 1e-12}
OWN_EM = {"u": 3e-9, "v": 5e-9, "z": 3e-8, "t": 2e-9}
#: the same for sensitivities and dt/dp, relative to the largest entry of each column
OWN_EM_RELATIVE = 8e-8
#: the same for functionals, relative; for the gradient of 5.1 absolute
OWN_ODE_VALUE, OWN_ODE_GRADIENT = 5e-10, 5e-9
OWN_EM_VALUE, OWN_EM_GRADIENT = 2e-8, 2e-7


# -- section 5.1 --------------------------------------------------------------------------------------


def closed_form(events: Table, t: Array) -> dict[str, Array]:
    """x, dx/dp and mode of the hybrid ODE at times, by its closed form between the exact events.

    Parameters
    ----------
    events : Table
        Columns t, x and s_plus of `hybrid_ode.reference().events`.
    """
    mode = np.searchsorted(events["t"], t, side="right")
    start, x, s = (np.concatenate(([0.0], events[name]))[mode] for name in ("t", "x", "s_plus"))
    above = mode % 2
    limit, decay = np.where(above, 5.0, 4.0), np.exp(-np.where(above, 2.0, 1.0) * (t - start))
    return {"x": limit + (x - limit) * decay, "dx/dp": s * decay, "mode": 1.0 + above}


def hybrid_ode_witness(reference: Reference) -> ExternalSolution:
    """The solution of section 5.1, with the truth at every row."""
    measured, exact = reference.ode15s, reference.events
    t, where = measured.trajectory["t"], rows(measured.trajectory)
    truth = closed_form(exact, t)
    sides = {"x": ("x", "x"), "dx/dp": ("s_minus", "s_plus")}
    for name, (before, after) in sides.items():
        truth[name][where.before], truth[name][where.after] = exact[before], exact[after]
    truth["mode"][where.before], truth["mode"][where.after] = (1, 2, 1), (2, 1, 2)
    trajectory = measured.trajectory.take({"x": "x", "dx/dp": "s", "mode": "mode"})
    allowed = {"x": OWN_ODE["x"], "dx/dp": OWN_ODE["s"], "t": OWN_ODE["t"], "dt/dp": OWN_ODE["dt_dp"]}
    events = measured.events.take(
        {"t": "t_i", "x": "x", "dt/dp": "dt_dp", "mode before": "mode_from", "mode after": "mode_to"}
    )
    modes = {"mode before": truth["mode"][where.before], "mode after": truth["mode"][where.after]}
    true_events = {**exact.take({"t": "t", "x": "x", "dt/dp": "dtdp"}).columns, **modes}
    of_functional = {"G": OWN_ODE_VALUE * reference.value, "dG/dp": OWN_ODE_GRADIENT}
    return ExternalSolution(
        source=measured.source,
        truth=reference.source,
        modes={"below": 1.0, "above": 2.0},
        t=t,
        rows=where,
        samples={
            "trajectory": _along(t, where, trajectory, truth, allowed),
            "events": _at_events(events, true_events, {"x": trajectory.accuracy["x"]}, allowed),
            "functional": _functional(reference, measured, ("p",), of_functional),
        },
        bare={"events": _at_events(Table({"t": measured.located}, measured.source), true_events, {}, {})},
    )


# -- section 5.2 --------------------------------------------------------------------------------------

_SENSITIVITIES = {f"d{name}/d{p}": f"d{name}_d{p}" for name in "uvz" for p in PARAMETERS}
_STATES = {"u": "u", "v": "v", "z": "z", "mode": "mode"}
_EVENTS = {
    "t": "t_i", "u": "u", "v": "v", "z": "z", **{f"dt/d{p}": f"dt_d{p}" for p in PARAMETERS},
    "mode before": "mode_from", "mode after": "mode_to",
}  # fmt: skip


def em_hysteresis_witness(reference: Reference) -> ExternalSolution:
    """The solution of section 5.2, with the truth at 20 times and, without sensitivities, at the events."""
    measured = reference.ode15s
    return ExternalSolution(
        source=measured.source,
        truth=reference.source,
        modes={"loading": 1.0, "unloading": -1.0},
        t=measured.trajectory["t"],
        rows=rows(measured.trajectory),
        samples=_em_samples(reference, measured),
        bare=_em_samples(reference, reference.bare) if reference.bare else {},
    )


def _em_samples(reference: Reference, measured: Measured) -> dict[str, Samples]:
    t, where = measured.trajectory["t"], rows(measured.trajectory)
    states, sensitivities = measured.trajectory.take(_STATES), measured.sensitivities.take(_SENSITIVITIES)
    both = Table({**states.columns, **sensitivities.columns}, "", {**states.accuracy, **sensitivities.accuracy})
    events = measured.events.take(_EVENTS)
    allowed = OWN_EM | _relative(both) | _relative(events)
    gradient = {f"dG/d{p}": OWN_EM_GRADIENT * abs(d) for p, d in zip(PARAMETERS, reference.gradient, strict=True)}
    # the accuracy of the velocity at events is recorded with the trajectory only
    recorded = {"v": states.accuracy["v"]} if "v" in states.accuracy else {}
    return {
        "trajectory": _along(t, where, both, _em_truth(reference, t, where), allowed),
        "events": _at_events(events, reference.events.take(_EVENTS).columns, recorded, allowed),
        "functional": _functional(reference, measured, PARAMETERS, {"G": OWN_EM_VALUE * reference.value, **gradient}),
    }


def _relative(table: Table) -> dict[str, float]:
    return {name: OWN_EM_RELATIVE * float(np.abs(v).max()) for name, v in table.columns.items() if "/d" in name}


def _em_truth(reference: Reference, t: Array, where: SolutionRows) -> dict[str, Array]:
    known, events = reference.states.take(_STATES | _SENSITIVITIES), reference.events
    distance = np.abs(t[:, None] - reference.states["t"])
    at, row = np.nonzero(distance < 1e-9)
    truth = {name: np.full(t.size, np.nan) for name in known.columns}
    for name, values in truth.items():
        values[at] = known[name][row]
    for name in ("u", "v", "z"):
        truth[name][where.before] = truth[name][where.after] = events[name]
    truth["mode"][where.before], truth["mode"][where.after] = events["mode_from"], events["mode_to"]
    return truth


# -- both ---------------------------------------------------------------------------------------------


def _exact_modes(values: Mapping[str, Array]) -> dict[str, float]:
    return {name: 0.0 for name in values if name.startswith("mode")}


def _along(
    t: Array, where: SolutionRows, table: Table, truth: Mapping[str, Array], allowed: Mapping[str, float]
) -> Samples:
    places = [f"t = {time:g}" for time in t]
    for side, indices in (("before", where.before), ("after", where.after)):
        for i, row in enumerate(indices, 1):
            places[row] = f"event {i}, {side}"
    modes = _exact_modes(table.columns)
    return Samples(tuple(places), t, table.columns, truth, {**table.accuracy, **modes}, {**allowed, **modes})


def _at_events(
    table: Table, truth: Mapping[str, Array], recorded: Mapping[str, float], allowed: Mapping[str, float]
) -> Samples:
    unknown, modes = np.full(len(table), np.nan), _exact_modes(table.columns)
    return Samples(
        places=tuple(f"event {i}" for i in range(1, len(table) + 1)),
        t=table["t"],
        values=table.columns,
        truth={name: truth.get(name, unknown) for name in table.columns},
        recorded={**recorded, **table.accuracy, **modes},
        allowed={**allowed, **modes},
    )


def _functional(
    reference: Reference, measured: Measured, parameters: tuple[str, ...], allowed: Mapping[str, float]
) -> Samples:
    gradients = np.array([np.nan, 1.0, 1.0])  # a simulation has no gradient
    names = [f"dG/d{p}" for p in parameters]
    values = {name: d * gradients for name, d in zip(names, measured.gradient, strict=True)}
    truth = {name: d * gradients for name, d in zip(names, reference.gradient, strict=True)}
    accuracies = {"G": measured.value_accuracy, **dict(zip(names, measured.gradient_accuracy, strict=True))}
    return Samples(
        places=WAYS,
        t=np.full(len(WAYS), np.nan),
        values={"G": np.full(len(WAYS), measured.value), **values},
        truth={"G": np.full(len(WAYS), reference.value), **truth},
        recorded={name: float(accuracy) for name, accuracy in accuracies.items() if np.isfinite(accuracy)},
        allowed=allowed,
    )
