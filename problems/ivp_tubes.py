"""The water tube system of the Test Set for IVP Solvers; see `ivp_test_set`."""

from __future__ import annotations

from typing import Any

import numpy as np

import dae_hybrid as dh

#: start and end node of each tube
TUBES = (
    (1, 2), (2, 3), (2, 6), (3, 4), (3, 5), (4, 5), (5, 10), (6, 5), (7, 4), (7, 8), (8, 5), (8, 10), (9, 8), (11, 9),
    (11, 12), (12, 7), (12, 8), (13, 11),
)  # fmt: skip
#: nodes with a tank, and nodes without one, where the flows sum to zero
TANKS, JUNCTIONS = (5, 8), (1, 2, 3, 4, 6, 7, 9, 10, 11, 12, 13)
#: the root of Colebrook's equation at the Reynolds number at which the flow becomes turbulent
LAMINAR = 0.47519404529185289807e-1


def water_tubes() -> dh.HybridModel:
    """Eighteen tubes between thirteen nodes (Sudarko 1993): index 2, and each tube is laminar or turbulent.

    The resistance of a tube jumps where its flow becomes turbulent; the test set leaves the jump to the integrator.
    Here it is a transition, and a memory per tube stores the regime. Units: m^3/s, Pa, s.
    """
    m = dh.HybridModel("water tubes")
    viscosity, roughness, area_of_tank = m.parameter("nu", 1.31e-6), m.parameter("k", 2e-4), m.parameter("b", 200.0)
    gravity, density, critical, length, diameter = 9.8, 1e3, 2.3e3, 1e3, 1.0
    area = np.pi * diameter**2 / 4
    count, hours = len(TUBES), m.time / 3600
    flow, tank = m.differential("phi", size=count), m.differential("p_tank", size=len(TANKS))
    pressure = m.algebraic("p", size=len(JUNCTIONS), guess=109_800.0)
    friction = m.algebraic("lambda", size=count, guess=LAMINAR)
    turbulent = m.memory("turbulent", size=count, initial=np.zeros(count))
    at = {node: tank[i] for i, node in enumerate(TANKS)} | {node: pressure[i] for i, node in enumerate(JUNCTIONS)}
    # inflow and outflow
    net: dict[int, Any] = dict.fromkeys(at, 0.0)
    net[1] = (1 - np.cos(np.exp(-hours) - 1)) / 200
    net[13] = (1 - np.cos(np.exp(-hours) - 1)) / 80
    net[10] = -(hours**2) * (3 * hours**2 - 92 * hours + 720) / 1e6
    rates, colebrook, reynolds = [], [], []
    for i, (first, last) in enumerate(TUBES):
        net[first], net[last] = net[first] - flow[i], net[last] + flow[i]
        reynolds.append(np.fabs(flow[i]) * diameter / (viscosity * area))
        rough = turbulent[i] * reynolds[i] + (1 - turbulent[i]) * critical
        root = np.sqrt(friction[i])
        colebrook.append(1 / root - 1.74 + 2 * np.log10(2 * roughness / diameter + 18.7 / (rough * root)))
        drawn = friction[i] * density * length * flow[i] ** 2 / (area**2 * diameter)
        sheared = 32 * viscosity * density * length * flow[i] / (area * diameter**2)
        drop = at[first] - at[last] - turbulent[i] * drawn - (1 - turbulent[i]) * sheared
        rates.append(drop * area / (density * length))
    run = m.mode(
        "run",
        ode={flow: rates, tank: [net[node] * density * gravity / area_of_tank for node in TANKS]},
        algebraic=colebrook,
        constraint=[net[node] for node in JUNCTIONS],
    )
    for i, unit in enumerate(np.eye(count)):
        excess = reynolds[i] - critical
        m.transition(run, run, guard=excess, direction="rising", memory={turbulent: turbulent + unit})
        m.transition(run, run, guard=excess, direction="falling", memory={turbulent: turbulent - unit})
    m.initial(run, {flow: np.zeros(count), tank: np.full(len(TANKS), 109_800.0)})
    m.functional("G", terminal=tank[0])
    return m
