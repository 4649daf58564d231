"""Native transitions of large modes."""

from __future__ import annotations

from functools import cache
from typing import Any

import growing
import numpy as np
import pytest

import dae_hybrid as dh

OPTIONS: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
SPAN = (0, 2.2)


@cache
def rod(n: int, *, elements: bool) -> dh.HybridSystem:
    return growing.rod(n, elements=elements).build()


@pytest.mark.native
@pytest.mark.parametrize(("n", "elements"), [(60, False), (60, True), (300, False), (300, True)])
def test_forward_is_adjoint_is_finite_differences(n: int, elements: bool) -> None:
    system = rod(n, elements=elements)
    fsa, asa = dh.forward_sensitivity(system, SPAN, **OPTIONS), dh.adjoint_gradient(system, SPAN, "G", **OPTIONS)
    events = len(fsa.trajectory.events)
    assert events > 2
    for run in (fsa.trajectory, asa.trajectory):
        assert run.statistics["native_events"] == events
    python = {**OPTIONS, "native_events": False}
    forward, adjoint = (
        dh.forward_sensitivity(system, SPAN, **python), dh.adjoint_gradient(system, SPAN, "G", **python)
    )  # fmt: skip
    assert forward.trajectory.statistics["native_events"] == 0
    expected = []
    for name in ("k", "low", "power"):
        nominal, step = system.nominal[system.parameters[name]][0], 1e-5
        values = [
            dh.simulate(system, SPAN, parameters={name: nominal + side * step}, **OPTIONS).functionals["G"]
            for side in (1, -1)
        ]
        expected.append((values[0] - values[1]) / (2 * step))
    expected = np.ravel(expected)
    scale = np.abs(expected).max()
    for found in (fsa.gradient["G"], asa.gradient, forward.gradient["G"], adjoint.gradient):
        np.testing.assert_allclose(np.ravel(found), expected, rtol=2e-6, atol=2e-6 * scale)
    np.testing.assert_allclose(fsa.event_time_sensitivity, forward.event_time_sensitivity, rtol=1e-6, atol=1e-9)


@pytest.mark.native
def test_derivatives_of_the_jump_have_few_entries() -> None:
    """Their number grows with that of the states, not with its square."""
    n = 300
    for elements in (False, True):
        graph = rod(n, elements=elements).graph
        entries = [link.tangent.function.nnz_out(1) for links in graph.links for link in links if link]
        assert max(entries) <= 4 * n
