"""Strict and weak comparisons where a quantity reaches its threshold and stays: a table written by hand.

Every motion is one of x over (0, 4) with x(0) = s and x' = v; q is compared with 0. `signs` are the signs of q in
order, with the times from which they hold, in terms of s and v.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import casadi as ca
import numpy as np
import pytest
from scipy.linalg import expm

import dae_hybrid as dh

END = 4.0
TIGHT = {"rtol": 1e-9, "atol": 1e-11}
COMPARED: dict[str, Callable[[Any], Any]] = {
    "> 0": lambda q: q > 0, ">= 0": lambda q: q >= 0, "< 0": lambda q: q < 0, "<= 0": lambda q: q <= 0,
}  # fmt: skip
#: the signs for which a comparison holds
HOLDS = {"> 0": "+", ">= 0": "+0", "< 0": "-", "<= 0": "-0"}


class Motion(NamedTuple):
    s: float
    v: float
    q: Callable[[Any], Any]
    signs: tuple[tuple[str, Callable[[float, float], float]], ...]


def at(level: float) -> Callable[[float, float], float]:
    """The time at which x has reached a level."""
    return lambda s, v: (level - s) / v


def start(s: float, v: float) -> float:
    return 0.0


def dead_zone(x: Any) -> Any:
    return ca.fmax(x - 1, 0) + ca.fmin(x + 1, 0)


MOTIONS = {
    "comes from above and stays": Motion(2.0, -1.0, lambda x: ca.fmax(x, 0), (("+", start), ("0", at(0)))),
    "comes from below and stays": Motion(-2.0, 1.0, lambda x: ca.fmin(x, 0), (("-", start), ("0", at(0)))),
    "leaves upwards": Motion(-2.0, 1.0, lambda x: ca.fmax(x, 0), (("0", start), ("+", at(0)))),
    "leaves downwards": Motion(2.0, -1.0, lambda x: ca.fmin(x, 0), (("0", start), ("-", at(0)))),
    "stays": Motion(1.0, 1.0, lambda x: ca.fmin(x, 0), (("0", start),)),
    "rests on the way down": Motion(3.0, -1.5, dead_zone, (("+", start), ("0", at(1)), ("-", at(-1)))),
    "rests on the way up": Motion(-3.0, 1.5, dead_zone, (("-", start), ("0", at(-1)), ("+", at(1)))),
    "sum with its size": Motion(2.0, -1.0, lambda x: ca.fabs(x) + x, (("+", start), ("0", at(0)))),
    "branch": Motion(-2.0, 1.0, lambda x: ca.if_else(x > 0, x, 0), (("0", start), ("+", at(0)))),
    "turns above": Motion(1.0, 1.0, lambda x: x * (x - 4) + 4, (("+", start),)),
    "turns below": Motion(1.0, 1.0, lambda x: x * (4 - x) - 4, (("-", start),)),
}  # fmt: skip


def stated(motion: Motion) -> dh.HybridModel:
    """How long every comparison holds, and the sums of the times at which it becomes true, and false."""
    m = dh.HybridModel("strictness")
    s, v = m.parameter("s", motion.s), m.parameter("v", motion.v)
    x, n = m.differential("x"), 3 * len(COMPARED)
    parts = [m.differential(f"y{i}") for i in range(n)]
    q = motion.q(x)
    held = {parts[3 * k]: ca.if_else(compared(q), 1, 0) for k, compared in enumerate(COMPARED.values())}
    run = m.mode("run", ode={x: v, **dict.fromkeys(parts, 0)} | held)
    for k, compared in enumerate(COMPARED.values()):
        for way, y in (("rising", parts[3 * k + 1]), ("falling", parts[3 * k + 2])):
            m.transition(run, run, guard=compared(q), direction=way, reset={y: y + m.time}, name=f"{k} {way}")
    m.initial(run, {x: s, **dict.fromkeys(parts, 0.0)})
    m.functional("G", terminal=ca.vertcat(*parts))
    return m


def expected(motion: Motion, s: float, v: float) -> np.ndarray:
    """The values of `stated`, from the table."""
    times = [when(s, v) for _, when in motion.signs]
    found = []
    for name in COMPARED:
        truth = [sign in HOLDS[name] for sign, _ in motion.signs]
        ends = [*times[1:], END]
        found.append(sum(e - b for b, e, true in zip(times, ends, truth, strict=True) if true))
        turns = [(t, after) for t, before, after in zip(times[1:], truth, truth[1:], strict=False) if before != after]
        found += [sum(t for t, after in turns if after), sum(t for t, after in turns if not after)]
    return np.array(found)


@pytest.mark.parametrize("name", MOTIONS)
def test_comparisons_mean_what_they_say(name: str) -> None:
    motion, step = MOTIONS[name], 1e-3
    system = stated(motion).build()
    exact = [expected(motion, motion.s, motion.v)]
    for change in ((step, 0), (0, step)):
        ends = [expected(motion, motion.s + k * change[0], motion.v + k * change[1]) for k in (1, -1)]
        exact.append((ends[0] - ends[1]) / (2 * step))
    runs = [dh.simulate(system, (0, END), native_events=own, **TIGHT) for own in (True, False)]
    for run in runs:
        np.testing.assert_allclose(run.functionals["G"], exact[0], atol=1e-8)
    fsa = dh.forward_sensitivity(system, (0, END), **TIGHT)
    asa = dh.adjoint_gradient(system, (0, END), "G", **TIGHT)
    for gradient in (fsa.gradient["G"], asa.gradient):
        np.testing.assert_allclose(gradient.T, exact[1:], atol=1e-5)


# -- conditions that are put together, put onto their threshold, or begin there ----------------------------------

COMBINED: dict[str, tuple[Callable[[Any], Any], list[float]]] = {
    "all of, weak": (lambda x: dh.all_of(ca.fmax(x, 0) <= 0, x < 5), [2.0]),
    "all of, strict": (lambda x: dh.all_of(ca.fmax(x, 0) < 0, x < 5), []),
    "all of, both at zero": (lambda x: dh.all_of(ca.fmax(x, 0) <= 0, ca.fmin(-x, 0) >= 0), [2.0]),
    "all of, one of both at zero": (lambda x: dh.all_of(ca.fmax(x, 0) <= 0, ca.fmin(-x, 0) > 0), []),
    "any of": (lambda x: dh.any_of(ca.fmax(x, 0) <= 0, x < -5), [2.0]),
    "any of, one of both at zero": (lambda x: dh.any_of(ca.fmax(x, 0) < 0, ca.fmin(-x, 0) >= 0), [2.0]),
    "not": (lambda x: dh.not_(ca.fmax(x, 0) > 0), [2.0]),
}


@pytest.mark.parametrize("native_events", [True, False])
@pytest.mark.parametrize("name", COMBINED)
def test_parts_of_a_condition_stay_strict_or_weak(name: str, native_events: bool) -> None:
    condition, times = COMBINED[name]
    m = dh.HybridModel("combined")
    x = m.differential("x")
    run = m.mode("run", ode={x: -1.0})
    m.transition(run, run, guard=condition(x), reset={}, name="met")
    m.initial(run, {x: 2.0})
    sol = dh.simulate(m.build(native=False), (0, 4), native_events=native_events, **TIGHT)
    np.testing.assert_allclose([e.time for e in sol.events if e.transition == "met"], times, atol=1e-9)


@pytest.mark.product
@pytest.mark.parametrize("compared", COMPARED)
@pytest.mark.parametrize("way", ["start", "reset"])
def test_a_level_put_onto_its_threshold(way: str, compared: str) -> None:
    """h rests at its threshold: there a weak comparison holds and a strict one does not."""
    m = dh.HybridModel("put")
    h, y = m.differential("h"), m.differential("y")
    run = m.mode("run", ode={h: 0, y: 0})
    m.transition(run, run, guard=COMPARED[compared](h), on_entry="fire", reset={y: y + 1}, name="met")
    begin = 0.0 if way == "start" else {"+": -1.0, "-": 1.0}[HOLDS[compared][0]]
    if way == "reset":
        m.transition(run, run, at=1.0, reset={h: 0.0})
    m.initial(run, {h: begin, y: 0.0})
    m.functional("G", terminal=y)
    for engine in (True, False):
        run_ = dh.simulate(m.build(), (0, 3), native_events=engine)
        assert run_.functionals["G"] == ("0" in HOLDS[compared])


def leaves(order: int, way: str) -> dh.HybridModel:
    """x = a t^n / n! from zero; y is the time since it has left."""
    m = dh.HybridModel("leaves")
    a = m.parameter("a", 1.0)
    chain, y = [m.differential(f"x{i}") for i in range(order)], m.differential("y")
    x, rates = chain[0], dict(zip(chain, [*chain[1:], a], strict=True))
    first = m.mode("first", ode=rates | {y: ca.if_else(x > 0, 1, 0) if way == "relation" else 0})
    second = m.mode("second", ode=rates | {y: 1})
    if way != "relation":
        m.transition(first, second, guard=x if way == "guard" else x > 0, direction="rising")
    m.initial(first, dict.fromkeys(chain, 0.0) | {y: 0.0})
    m.functional("G", terminal=y)
    return m


@pytest.mark.parametrize("order", [2, 3, 5])
@pytest.mark.parametrize("way", ["guard", "condition", "relation"])
def test_the_first_derivative_that_is_not_zero_decides_how_zero_is_left(way: str, order: int) -> None:
    system = leaves(order, way).build(native=False)
    for a, since in ((1.0, 2.0), (-1.0, 0.0)):
        for engine in (True, False):
            run = dh.simulate(system, (0, 2), parameters={"a": a}, native_events=engine, rtol=1e-8)
            assert run.functionals["G"] == pytest.approx(since, abs=1e-9)


def windup(kp: Any, ki: Any, r: Any = 0.5, top: float = 0.6, end: float = 4.0) -> Any:
    """I(end) of a controller that does not integrate while it saturates, in complex arithmetic."""
    out = np.log(top / (top - (r - top / kp)))  # y = top (1 - exp(-t)) has reached cmd = kp (r - y) = top
    y = r - top / kp
    a = np.array([[-1 - kp, 1, kp * r], [-ki, 0, ki * r], [0, 0, 0]], dtype=np.result_type(kp, ki, r, float))
    return (expm(a * (end - out)) @ np.array([y, 0.0, 1.0]))[1]


@pytest.mark.parametrize(
    "options", [{}, {"native_events": False}, {"method": "bdf"}], ids=["compiled", "Python", "BDF"]
)
def test_a_controller_that_does_not_wind_up(options: Any) -> None:
    m = dh.HybridModel("controller")
    kp, ki = m.parameter("kp", 2.0), m.parameter("ki", 0.5)
    y, i = m.differential("y"), m.differential("i")
    e = 0.5 - y
    u = ca.fmin(ca.fmax(kp * e + i, 0), 0.6)
    m.initial(m.mode("run", ode={y: u - y, i: ca.if_else(u >= 0.6, 0, ki * e)}), {y: 0.0, i: 0.0})
    m.functional("G", terminal=i)
    system = m.build()
    fsa = dh.forward_sensitivity(system, (0, 4), **TIGHT, **options)
    asa = dh.adjoint_gradient(system, (0, 4), **TIGHT, **options)
    h = 1e-30
    exact = [windup(2.0 + 1j * h, 0.5).imag / h, windup(2.0, 0.5 + 1j * h).imag / h]
    assert fsa.functionals["G"] == pytest.approx(windup(2.0, 0.5), rel=1e-7)
    for gradient in (fsa.gradient["G"], asa.gradient):
        np.testing.assert_allclose(gradient, exact, rtol=1e-6)


@pytest.mark.parametrize("native_events", [True, False])
@pytest.mark.parametrize("compared", COMPARED)
def test_a_condition_beside_a_guard_on_a_plateau(compared: str, native_events: bool) -> None:
    """``when=`` is asked for a second after the quantity has come to its threshold."""
    m = dh.HybridModel("beside")
    x, n = m.differential("x"), m.memory("n", initial=0.0)
    run = m.mode("run", ode={x: -1.0})
    condition = COMPARED[compared](ca.fmax(x, 0))
    m.transition(run, run, guard=x + 1, direction="falling", when=condition, memory={n: n + 1}, name="tick")
    m.initial(run, {x: 1.0})
    m.functional("G", terminal=n)
    assert dh.simulate(m.build(), (0, 3), native_events=native_events).functionals["G"] == ("0" in HOLDS[compared])


def rectifier(way: str) -> dh.HybridModel:
    """A capacitor charged through a diode from a voltage that rises from zero without a rate."""
    m = dh.HybridModel("rectifier")
    r, y = m.parameter("r", 0.5), m.differential("y")
    v = 1 - ca.cos(3 * m.time)
    on, off = (v - y) / r - y, -y
    if way == "relation":
        first = m.mode("run", ode={y: ca.if_else(v > y, on, off)})
    else:
        first, second = m.mode("off", ode={y: off}), m.mode("on", ode={y: on})
        m.transition(first, second, guard=v - y, direction="rising", on_entry="fire", name="conducts")
        m.transition(second, first, guard=v - y, direction="falling", name="blocks")
    m.initial(first, {y: 0.0})
    m.functional("G", integrand=y)
    return m


@pytest.mark.parametrize("native_events", [True, False])
def test_a_rectifier_conducts_from_a_voltage_that_rises_without_a_rate(native_events: bool) -> None:
    found = []
    for way in ("relation", "modes"):
        system = rectifier(way).build()
        fsa = dh.forward_sensitivity(system, (0, 5), native_events=native_events, **TIGHT)
        asa = dh.adjoint_gradient(system, (0, 5), native_events=native_events, **TIGHT)
        np.testing.assert_allclose(asa.gradient, fsa.gradient["G"], rtol=1e-6)
        found.append([fsa.functionals["G"], *fsa.gradient["G"]])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-7)


# -- guards that come to rest --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Whether 'alarm' fires at t = 6:dae_hybrid.DerivativeWarning")  # it is chance
@pytest.mark.parametrize(
    "options", [{}, {"native_events": False}, {"method": "bdf"}], ids=["compiled", "Python", "BDF"]
)
@pytest.mark.parametrize(("rate", "rtol"), [(10.0, 1e-4), (30.0, 1e-6), (100.0, 1e-8)])
def test_a_state_that_settles_at_a_threshold_does_not_reach_it(rate: float, rtol: float, options: Any) -> None:
    """x = 1 - 2 exp(-L t): rounding moves it across 1, which is no event; G = int x."""
    m = dh.HybridModel("settles")
    decay, x, y = m.parameter("L", rate), m.differential("x"), m.differential("y")
    quiet, alarm = (m.mode(name, ode={x: -decay * (x - 1), y: x}) for name in ("quiet", "alarm"))
    m.transition(quiet, alarm, guard=x - 1, direction="rising", reset={y: y + 1}, name="alarm")
    m.initial(quiet, {x: -1.0, y: 0.0})
    m.functional("G", terminal=y)
    system = m.build(native=not options)
    fsa = dh.forward_sensitivity(system, (0, 6), rtol=rtol, **options)
    asa = dh.adjoint_gradient(system, (0, 6), rtol=rtol, **options)
    assert not fsa.events
    assert fsa.functionals["G"] == pytest.approx(6 - 2 / rate, rel=100 * rtol)
    for gradient in (fsa.gradient["G"], asa.gradient):
        np.testing.assert_allclose(gradient, [2 / rate**2], rtol=1e3 * rtol, atol=1e3 * rtol)
    assert any("stayed at zero" in note for note in fsa.trajectory.diagnostics)


def test_a_guard_that_has_come_to_rest_and_crosses_later_is_refused() -> None:
    """x = exp(-40 t) until t = 1, where it is noise; then it falls through zero, at a time that the noise decides."""
    m = dh.HybridModel("leaves later")
    x = m.differential("x")
    quiet = m.mode("quiet", ode={x: -40 * x - ca.fmax(m.time - 1, 0)})
    m.transition(quiet, None, guard=x, direction="falling", name="crosses")
    m.initial(quiet, {x: 1.0})
    with pytest.raises(dh.EventError):
        dh.simulate(m.build(native=False), (0, 3), rtol=1e-6)
