"""What CasADi's integrators cannot do: refused by an error alone, without a line of their own output."""

import sys
import threading
from collections.abc import Callable
from typing import Any

import casadi as ca
import pytest

import dae_hybrid as dh
from dae_hybrid.errors import NonFiniteError, StepSizeError


def explicit(rate: Callable[[Any, Any], Any]) -> dh.HybridSystem:
    m = dh.HybridModel("explicit")
    p, x = m.parameter("p", 1.0), m.differential("x")
    only = m.mode("only", ode={x: rate(p, x)})
    m.initial(only, {x: 1.0})
    m.functional("G", terminal=x)
    return m.build()


def implicit(rate: Callable[[Any, Any, Any], Any], equation: Callable[[Any, Any], Any]) -> dh.HybridSystem:
    m = dh.HybridModel("implicit")
    p, x, z = m.parameter("p", 1.0), m.differential("x"), m.algebraic("z", guess=1.0)
    only = m.mode("only", ode={x: rate(p, x, z)}, algebraic=[equation(x, z)])
    m.initial(only, {x: 1.0})
    m.functional("G", terminal=x)
    return m.build()


CASES: dict[str, tuple[Callable[[], dh.HybridSystem], type[Exception], float]] = {
    "blows up": (lambda: explicit(lambda p, x: p * x**2), StepSizeError, 1.0),
    "root of a negative number": (lambda: explicit(lambda p, x: -p * ca.sqrt(x) - 0.1), NonFiniteError, 1.520421),
    "singular": (lambda: implicit(lambda p, x, z: -p, lambda x, z: z**2 - x), StepSizeError, 1.0),
    "logarithm of zero": (lambda: implicit(lambda p, x, z: -p, lambda x, z: z + z**3 + ca.log(x)), NonFiniteError, 1.0),
}


@pytest.mark.parametrize("case", CASES)
def test_a_failure_is_an_error_and_prints_nothing(case: str, capfd: Any) -> None:
    build, kind, time = CASES[case]
    system = build()
    for run in (dh.simulate, dh.forward_sensitivity):
        with pytest.raises(kind) as caught:
            run(system, (0, 2), adapter="casadi", rtol=1e-6, atol=1e-8)
        assert getattr(caught.value, "time", None) == pytest.approx(time, abs=1e-4)
        assert getattr(caught.value, "trajectory", None) is not None
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_other_threads_may_write_meanwhile(capfd: Any) -> None:
    system, stop, lines = CASES["singular"][0](), threading.Event(), [0]

    def write() -> None:
        while not stop.is_set():
            sys.stderr.write("mine\n")
            lines[0] += 1
            stop.wait(1e-4)

    before, writer = sys.stderr, threading.Thread(target=write)
    writer.start()
    with pytest.raises(StepSizeError):
        dh.simulate(system, (0, 2), adapter="casadi", rtol=1e-6, atol=1e-8)
    stop.set()
    writer.join()
    assert sys.stderr is before
    assert capfd.readouterr().err == "mine\n" * lines[0]
