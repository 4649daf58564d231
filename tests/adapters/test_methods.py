"""Integration methods as objects, and the queries of the library."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any
from unittest.mock import patch

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.adapters.sundials import methods
from dae_hybrid.adapters.sundials.session import SundialsIntegrator
from dae_hybrid.interface.registry import adapter_class
from dae_hybrid.method import AUTO
from dae_hybrid.problems import em_hysteresis

CORE = Path(dh.__file__).parent


def test_the_core_names_no_method() -> None:
    """Adapters name methods; the core queries the method object."""
    names = {name for kind in ("sundials", "scipy") for name in adapter_class(kind).capabilities.named} - {AUTO}
    for path in CORE.rglob("*.py"):
        if path.relative_to(CORE).parts[0] in ("adapters", "problems"):
            continue
        texts = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        assert not texts & names, path.name


@pytest.fixture
def dormand_prince() -> Any:
    """One more method of `sundials`: one more object."""
    method = methods.SundialsMethod(
        name="dopri5", implicit=False, orders=(5, 5), path=methods.ERK.path, order=5, adjoint=methods.ADAMS,
        tables={5: "ARKODE_DORMAND_PRINCE_7_4_5"},
    )  # fmt: skip
    known = {**methods.METHODS, method.name: method}
    can = SundialsIntegrator.capabilities
    more = type(can)(**{name: getattr(can, name) for name in can.__slots__} | {"methods": (*can.methods, method)})
    with patch.dict(methods.METHODS, known), patch.object(SundialsIntegrator, "capabilities", more):
        yield method


@pytest.mark.parametrize("native_events", [True, False])
def test_one_more_method_is_one_more_object(dormand_prince: Any, *, native_events: bool) -> None:
    """In every analysis, across events."""
    system = em_hysteresis.system()
    options: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12, "native_events": native_events}
    sol = dh.simulate(system, em_hysteresis.t_span, method="dopri5", **options)
    assert {segment.method for segment in sol.segments} == {"dopri5"}
    assert sol.statistics["steps"] > 1.2 * dh.simulate(system, em_hysteresis.t_span, **options).statistics["steps"]
    adjoint = dh.adjoint_gradient(system, em_hysteresis.t_span, "G", method="dopri5", **options)
    forward = dh.forward_sensitivity(system, em_hysteresis.t_span, method="dopri5", **options).gradient["G"]
    truth = em_hysteresis.reference().gradient
    np.testing.assert_allclose(forward, truth, rtol=1e-4, atol=1e-5 * np.abs(truth).max())
    np.testing.assert_allclose(adjoint.gradient, forward, rtol=1e-6, atol=1e-7 * np.abs(truth).max())
    with pytest.raises(dh.OptionError, match="max_order is at most 5 for 'dopri5'"):
        dh.simulate(system, em_hysteresis.t_span, method="dopri5", max_order=6)


def test_a_method_that_is_a_string() -> None:
    """Of an adapter that names its methods; nothing else is known of them."""
    method = dh.Method.of("rk54")
    assert (method.name, method.orders, method.path.exact) == ("rk54", None, False)
    assert dh.Method.of(method) is method
    assert list(dh.Capabilities(methods=("auto", method)).named) == ["auto", "rk54"]


@pytest.mark.parametrize(("adapter", "method"), [("sundials", "erk"), ("scipy", "dop853")])
def test_a_run_that_fails_says_which_method_it_used(adapter: str, method: str) -> None:
    """Its last segment is that of the steps that were taken."""
    m = dh.HybridModel("wave")
    y, v = m.differential("y"), m.differential("v")
    m.initial(m.mode("run", ode={y: v, v: -y}), {y: 1.0, v: 0.0})
    with pytest.raises(dh.StepLimitError) as caught:
        dh.simulate(m.build(), (0, 100), adapter=adapter, max_steps=20)
    sol = caught.value.trajectory
    assert sol is not None
    assert [segment.method for segment in sol.segments] == [method]
    times = np.linspace(0, sol.segments[0].t_end, 9)
    np.testing.assert_allclose(sol(times)["y"], np.cos(times), atol=1e-6)


@pytest.mark.parametrize(
    ("adapter", "method", "order"), [("sundials", "bdf", 6), ("sundials", "erk", 1), ("casadi", "adams", 13)]
)
def test_orders_are_those_of_the_method(adapter: str, method: str, order: int) -> None:
    m = dh.HybridModel("q")
    y = m.differential("y")
    m.initial(m.mode("run", ode={y: -ca.sin(y)}), {y: 1.0})
    with pytest.raises(dh.OptionError, match=f"max_order is at (most|least) .* for {method!r}"):
        dh.simulate(m.build(native=False), (0, 1), adapter=adapter, method=method, max_order=order)
