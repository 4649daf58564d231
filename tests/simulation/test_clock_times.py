"""Spans that begin far from zero, such as seconds since 1970, at which times are 2.4e-7 s apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dae_hybrid as dh

EPOCH = 1.7e9


def oscillation() -> dh.HybridSystem:
    """x'' = -k^2 x from rest: x = cos k t."""
    m = dh.HybridModel("oscillation")
    k, x, v = m.parameter("k", 50.0), m.differential("x"), m.differential("v")
    m.initial(m.mode("run", ode={x: v, v: -(k**2) * x}), {x: 1.0, v: 0.0})
    m.functional("G", terminal=x)
    return m.build()


SYSTEM = oscillation()


@pytest.mark.parametrize("method", ["auto", "bdf", "adams", "erk"])
@pytest.mark.parametrize("k", [50.0, 5000.0])
def test_steps_that_are_too_short_for_their_times_are_refused(k: float, method: str) -> None:
    span, options = (EPOCH, EPOCH + 20 / k), {"parameters": {"k": k}, "rtol": 1e-9, "atol": 1e-11, "method": method}
    for analysis in (dh.simulate, dh.forward_sensitivity, dh.adjoint_gradient):
        with pytest.raises(dh.StepSizeError, match="apart: rounding them loses") as caught:
            analysis(SYSTEM, span, **options)
        assert caught.value.trajectory.final[0] == span[1]
    refused = dh.batch(SYSTEM, span, parameters={"k": [k]}, rtol=1e-9, atol=1e-11, method=method)
    assert isinstance(refused.errors[0], dh.StepSizeError)


@pytest.mark.parametrize(("rtol", "accuracy"), [(1e-6, 1e-5), (1e-9, 1e-8)])
def test_an_adapter_whose_steps_end_at_representable_times_is_right(rtol: float, accuracy: float) -> None:
    end = EPOCH + 0.4
    sol = dh.simulate(SYSTEM, (EPOCH, end), rtol=rtol, atol=rtol / 100, adapter="scipy")
    assert sol.functionals["G"] == pytest.approx(np.cos(50 * (end - EPOCH)), abs=accuracy)


@pytest.mark.parametrize("method", ["bdf", "adams", "erk"])
def test_slow_motions_are_right(method: str) -> None:
    """A day, with steps of minutes and more; the event at a time of the clock is where it is."""
    options: dict[str, Any] = {"rtol": 1e-7, "atol": 1e-9, "method": method}
    k, span = 2 * np.pi / 86400, (EPOCH, EPOCH + 86400 / 3)
    fsa = dh.forward_sensitivity(SYSTEM, span, parameters={"k": k}, **options)
    assert fsa.functionals["G"] == pytest.approx(-0.5, abs=1e-5)
    asa = dh.adjoint_gradient(SYSTEM, span, parameters={"k": k}, **options)
    for found in (fsa.gradient["G"], asa.gradient):
        np.testing.assert_allclose(found, [-np.sin(2 * np.pi / 3) * 86400 / 3], rtol=1e-4)
