"""Conditions, clocks, queues, and tables of times: closed forms, both engines, adapters, derivatives, refusals."""

from __future__ import annotations

from collections import Counter
from typing import Any

import event_models
import numpy as np
import pytest

import dae_hybrid as dh

OPTIONS: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
NAMES = list(event_models.MODELS)


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest) -> tuple[dh.HybridSystem, tuple[float, float], dict[str, int]]:
    """A built model, its span and the expected numbers of events."""
    make, span, counts = event_models.MODELS[request.param]
    return make().build(), span, counts


def test_both_engines_give_the_same_events(case: Any) -> None:
    system, span, counts = case
    native, python = (dh.simulate(system, span, native_events=native, **OPTIONS) for native in (True, False))
    assert Counter(event.transition for event in native.events if '"' not in event.transition) == counts
    assert [event.transition for event in native.events] == [event.transition for event in python.events]
    np.testing.assert_allclose([e.time for e in native.events], [e.time for e in python.events], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(native.functionals["G"], python.functionals["G"], rtol=1e-8)


def test_forward_adjoint_and_differences_agree(case: Any) -> None:
    system, span, _ = case
    found = dh.check_gradient(system, span, "G", **OPTIONS)
    assert found.same_events
    assert found.difference("adjoint", "forward") < 1e-7
    assert found.difference("finite_difference", "forward") < 2e-5


def test_both_engines_give_the_same_gradient(case: Any) -> None:
    system, span, _ = case
    native = dh.forward_sensitivity(system, span, **OPTIONS).gradient["G"]
    python = dh.forward_sensitivity(system, span, native_events=False, **OPTIONS).gradient["G"]
    np.testing.assert_allclose(native, python, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("adapter", ["scipy", "casadi"])
def test_other_adapters_give_the_same(case: Any, adapter: str) -> None:
    system, span, _ = case
    own = dh.adjoint_gradient(system, span, "G", **OPTIONS)
    other = dh.adjoint_gradient(system, span, "G", adapter=adapter, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(other.value, own.value, rtol=1e-6)
    np.testing.assert_allclose(other.gradient, own.gradient, rtol=1e-4, atol=1e-5)
