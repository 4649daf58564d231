"""Automata of many modes: they build in bearable time, and with the same answers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dae_hybrid as dh

END = 0.9995


def ring(n: int) -> dh.HybridModel:
    """y' = a takes each threshold i/n to the next mode, where x decays at a rate of its own; d counts the modes."""
    m = dh.HybridModel("ring")
    a, r, d = m.parameter("a", 1.0), m.parameter("r", 0.5), m.parameter("d", 0.125)
    y, x, passed = m.differential("y"), m.differential("x"), m.memory("passed", initial=0.0)
    modes = [m.mode(f"m{i}", ode={y: a, x: -(1 + i / n) * r * x}) for i in range(n)]
    for i in range(n):
        step = {"guard": y - (i + 1) / n, "direction": "rising", "reset": {x: x + d / n}}
        m.transition(modes[i], modes[(i + 1) % n], memory={passed: passed + 1}, **step)
    m.initial(modes[0], {y: 0.0, x: 1.0})
    m.functional("G", terminal=x + 0 * passed, integrand=y)
    return m


def ring_closed(p: Any, n: int) -> Any:
    """The functional, also of complex parameters."""
    a, r, d = p
    x, t = 1.0 + 0j, 0.0 + 0j
    for i in range(n):
        until = (i + 1) / n / a
        if until.real > END:
            return x * np.exp(-(1 + i / n) * r * (END - t)) + a * END**2 / 2
        x, t = x * np.exp(-(1 + i / n) * r * (until - t)) + d / n, until
    raise AssertionError("the last mode is not left")


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
def test_a_ring_of_many_modes(native: bool) -> None:
    n, p = 50, np.array([1.0, 0.5, 0.125])
    system = ring(n).build(native=native)
    assert system.native == native
    exact = np.array([ring_closed(p + 1e-30j * unit, n).imag / 1e-30 for unit in np.eye(3)])
    tight = {"rtol": 1e-9, "atol": 1e-12}
    fsa = dh.forward_sensitivity(system, (0, END), **tight)
    assert [e.source for e in fsa.events] == [f"m{i}" for i in range(n - 1)]
    np.testing.assert_allclose([e.time for e in fsa.events], np.arange(1, n) / n, rtol=1e-9)
    np.testing.assert_allclose(fsa.event_time_sensitivity[:, 0], -np.arange(1, n) / n, rtol=1e-6)
    assert fsa.functionals["G"] == pytest.approx(ring_closed(p, n).real, rel=1e-7)
    np.testing.assert_allclose(fsa.gradient["G"], exact, rtol=1e-6)
    asa = dh.adjoint_gradient(system, (0, END), **tight)
    np.testing.assert_allclose(asa.gradient, exact, rtol=2e-6)


def test_a_mode_costs_as_much_to_build_among_many_as_among_few() -> None:
    few, more, many = (calls(lambda n=n: ring(n).build(native=False)) for n in (15, 30, 60))
    assert many - more < 2.2 * (more - few)


def calls(build: Callable[[], Any]) -> int:
    """Calls of functions, those of C included."""
    found = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal found
        found += event in ("call", "c_call")

    build()  # fills caches
    sys.setprofile(count)
    try:
        build()
    finally:
        sys.setprofile(None)
    return found


def test_transitions_without_names_are_numbered_at_no_cost() -> None:
    def names(count: int) -> list[str]:
        m = dh.HybridModel("many")
        y = m.differential("y")
        run = m.mode("run", ode={y: 1.0})
        return [m.transition(run, run, at=float(i)).name for i in range(count)]

    assert names(3) == ["run->run", "run->run#2", "run->run#3"]
    assert len(set(names(300))) == 300
    assert calls(lambda: names(800)) < 1.2 * 8 * calls(lambda: names(100))


def test_a_bad_mode_among_many_is_refused_by_build() -> None:
    m = dh.HybridModel("bad")
    y, z = m.differential("y"), m.algebraic("z")
    modes = [m.mode(f"m{i}", ode={y: 1.0}) for i in range(50)]
    m.mode("odd", ode={y: z}, algebraic=[z - y, z + y])
    m.initial(modes[0], {y: 0.0})
    with pytest.raises(dh.FormulationError) as caught:
        m.build()
    assert caught.value.mode == "odd"
