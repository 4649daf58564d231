"""Native transitions of large modes."""

from __future__ import annotations

from functools import cache
from typing import Any

import growing
import numpy as np
import pytest

import dae_hybrid as dh

OPTIONS: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-13}
SPAN = (0, 2.2)


@cache
def rod(n: int, kind: str) -> dh.HybridSystem:
    return growing.rod(n, elements=kind == "elements", probe=kind == "probe").build()


def differenced(system: dh.HybridSystem, name: str, step: float) -> float:
    """Central difference of the functional, by Richardson's extrapolation."""
    nominal = system.nominal[system.parameters[name]][0]

    def value(moved: float) -> float:
        run = dh.simulate(system, SPAN, parameters={name: nominal + moved}, **OPTIONS)
        return float(np.ravel(run.functionals["G"])[0])

    whole, half = ((value(h) - value(-h)) / (2 * h) for h in (step, step / 2))
    return (4 * half - whole) / 3


@pytest.mark.native
@pytest.mark.parametrize("kind", ["vectors", "elements", "probe"])
@pytest.mark.parametrize("n", [60, pytest.param(300, marks=pytest.mark.campaign)])
def test_forward_is_adjoint_is_finite_differences(n: int, kind: str) -> None:
    system = rod(n, kind)
    expected = [differenced(system, name, 2e-3) for name in system.parameters.names]
    scale, times = np.abs(expected).max(), []
    for native_events in (True, False):
        options = {**OPTIONS, "native_events": native_events}
        fsa, asa = dh.forward_sensitivity(system, SPAN, **options), dh.adjoint_gradient(system, SPAN, "G", **options)
        for run in (fsa.trajectory, asa.trajectory):
            assert len(run.events) > 2
            assert run.statistics["native_events"] == native_events * len(run.events)
        for found in (fsa.gradient["G"], asa.gradient):
            np.testing.assert_allclose(np.ravel(found), expected, rtol=1e-5, atol=1e-6 * scale)
        times.append(fsa.event_time_sensitivity)
    np.testing.assert_allclose(*times, rtol=1e-6, atol=1e-8)


@pytest.mark.native
def test_derivatives_of_the_jump_have_few_entries() -> None:
    """Their number grows with that of the states, not with its square."""
    n = 150
    for kind in ("vectors", "elements"):
        graph = rod(n, kind).graph
        entries = [link.tangent.function.nnz_out(1) for links in graph.links for link in links if link]
        assert max(entries) <= 4 * n
