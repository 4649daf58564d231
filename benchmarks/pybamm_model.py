"""A cell that PyBaMM has stated and discretised, as a `HybridModel`: one mode for all steps of a charging protocol.

PyBaMM's equations are expressions of CasADi. The cell is taken with its voltage under control, where one algebraic
equation sets the current: in its place stands one that holds the current or the voltage, as memory says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import casadi as ca
import numpy as np
import pybamm
from scipy.sparse import eye_array

import dae_hybrid as dh

CURRENT, CAPACITY = "Current variable [A]", "Nominal cell capacity [A.h]"
#: the integral of |I|, on which nothing depends: at rest its rate has no derivative by the current
UNUSED = "Throughput capacity [A.h]"
#: quantities that steps hold and are ended by
REPORTED = {"voltage": "Voltage [V]", "current": "Current [A]"}
#: larger than any distance of a quantity that ends a step from its limit [V, A, s]
FAR = {"voltage": 100.0, "current": 1e4, "time": 1e9}


@dataclass(frozen=True)
class Step:
    """A step of a protocol: the quantity that it holds, and the limit that ends it.

    Currents are in A and positive in discharge, voltages in V, and times in s from the beginning of the step.
    """

    name: str
    hold: Literal["current", "voltage"]
    value: float
    until: Literal["voltage", "current", "time"]
    limit: float
    direction: Literal["rising", "falling"] = "rising"


def model_from_pybamm(
    model: Any, parameter_values: Any, names: Mapping[str, str], steps: Sequence[Step], cycles: int
) -> tuple[dh.HybridModel, dict[str, ca.MX]]:
    """A cell that runs the steps in cycles.

    Parameters
    ----------
    model : pybamm.BaseModel
        With the option ``{"operating mode": "voltage"}``.
    parameter_values : pybamm.ParameterValues
    names : mapping of str to str
        PyBaMM's parameters that become parameters of the model, and how these are called.
    steps : sequence of Step
        Of one cycle; the last one is ended by time. Their values and limits are parameters, ``<step>_value`` and
        ``<step>_limit``.
    cycles : int
        The run ends after so many; the parameter ``cycles``.

    Returns
    -------
    HybridModel
        With the variables ``y`` and ``z``, in PyBaMM's scaled units: its differential and its algebraic variables.
    mapping of str to MX
        ``"voltage"`` [V], ``"current"`` [A].

    Raises
    ------
    ValueError
        The model has no equation for the current, or a mass matrix, or the last step is not ended by time.

    Examples
    --------
    A rest and a discharge, once::

        cell = pybamm.lithium_ion.SPMe({"operating mode": "voltage"})
        values = pybamm.ParameterValues("Chen2020")
        steps = [Step("rest", "current", 0.0, "time", 60.0), Step("discharge", "current", 5.0, "time", 600.0)]
        m, reported = model_from_pybamm(cell, values, {"Cation transference number": "t_plus"}, steps, 1)
    """
    nominal = {key: float(parameter_values[key]) for key in names}
    values = parameter_values.copy()
    values.update({"Voltage function [V]": 0.0, **dict.fromkeys(names, "[input]")}, check_already_exists=False)
    simulation = pybamm.Simulation(model, parameter_values=values)
    simulation.build()
    cell = simulation.built_model
    n, n_z = cell.len_rhs, cell.len_alg
    place = [part[0].start - n for variable, part in cell.y_slices.items() if variable.name == CURRENT]
    if (cell.mass_matrix.entries[:n, :n] - eye_array(n)).count_nonzero():
        raise ValueError("The mass matrix of the model is not the identity.")
    if not place or steps[-1].until != "time":
        raise ValueError('Expected a model with {"operating mode": "voltage"}, and a last step that is ended by time.')

    m = dh.HybridModel(model.name)
    inputs = {key: m.parameter(name, nominal[key]) for key, name in names.items()}
    start = cell.concatenated_initial_conditions.evaluate(inputs=nominal).ravel()
    unused = [part[0].start for variable, part in cell.y_slices.items() if variable.name == UNUSED]
    kept = [i for i in range(n) if i not in unused]
    y, z = m.differential("y", size=len(kept)), m.algebraic("z", size=n_z, guess=start[n:])
    whole, absent = ca.MX(n, 1), ca.MX.sym("absent")
    whole[kept], whole[unused] = y, absent
    state = ca.vertcat(whole, z)

    def lowered(symbol: Any) -> ca.MX:
        return with_smooth_signs(symbol.to_casadi(m.time, state, inputs=inputs))

    found = [without(lowered(cell.concatenated_rhs), unused), lowered(cell.concatenated_algebraic)]
    found += [lowered(cell.get_processed_variable(name)) for name in REPORTED.values()]
    if ca.jacobian_sparsity(ca.veccat(*found), absent).nnz():
        raise ValueError(f"The equations depend on '{UNUSED}'.")
    rates, equations, *values_reported = ca.substitute(found, [absent], [ca.MX(1, 1)])
    reported = dict(zip(REPORTED, values_reported, strict=True))
    others = [i for i in range(n_z) if i != place[0]]

    # one mode for all steps, so that the cell is differentiated and compiled once: memory says which step it is in
    settings = [m.parameter(f"{step.name}_value", step.value) for step in steps]
    limits = [m.parameter(f"{step.name}_limit", step.limit) for step in steps]
    holds = [float(step.hold == "voltage") for step in steps]
    at, left = m.memory("step", initial=0.0), m.memory("left", initial=m.parameter("cycles", float(cycles)) - 1)
    begun, setting = m.memory("begun", initial=0.0), m.memory("setting", initial=settings[0])
    by_voltage = m.memory("by_voltage", initial=holds[0])
    capacity = float(values[CAPACITY])  # by which PyBaMM scales its own equation
    off = {key: value - setting for key, value in reported.items()}
    control = by_voltage * off["voltage"] + (1 - by_voltage) * off["current"] / capacity
    cell_mode = m.mode("cell", ode={y: rates}, algebraic=[ca.vertcat(equations[others, 0], control)])
    quantities = {**{key: dh.smooth(value) for key, value in reported.items()}, "time": m.time - begun}
    for i, step in enumerate(steps):
        sign = 1 if step.direction == "rising" else -1
        far, k = FAR[step.until], (i + 1) % len(steps)
        guard = sign * (quantities[step.until] - limits[i]) - far * (at - i) ** 2
        update = {at: k, begun: m.time, setting: settings[k], by_voltage: holds[k]}
        if not k:
            m.transition(cell_mode, None, guard=guard - far * left**2, direction="rising", name="end")
            guard, update = guard - far * dh.smooth(left < 0.5), update | {left: left - 1}
        m.transition(cell_mode, cell_mode, guard=guard, direction="rising", memory=update, name=f"end of {step.name}")
    m.initial(cell_mode, {y: lowered(cell.concatenated_initial_conditions)[kept]})
    return m, reported


def without(column: ca.MX, rows: Sequence[int]) -> ca.MX:
    """A column that is put together of parts, without those that are these rows."""
    if not rows:
        return column
    parts = [column.dep(i) for i in range(column.n_dep())]
    ends = np.cumsum([part.numel() for part in parts])
    return ca.vertcat(*(part for part, end in zip(parts, ends, strict=True) if part.numel() > 1 or end - 1 not in rows))


def with_smooth_signs(expression: ca.MX) -> ca.MX:
    """An expression in which comparisons with zero are no events.

    PyBaMM compares exchange current densities with zero, to divide by them; they are positive.
    """
    function = ca.Function("f", ca.symvar(expression), [expression])
    found = [k for k in range(function.n_instructions()) if function.instruction_id(k) == ca.OP_LE]
    nodes = [node for node in map(function.instruction_MX, found) if node.dep(0).is_zero()]
    return ca.graph_substitute(expression, nodes, [dh.smooth(node) for node in nodes]) if nodes else expression
