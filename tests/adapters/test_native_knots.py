"""Knots of signals that the compiled loop passes by itself: to the bit as Python passes them, and by closed forms."""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np
import pytest
from scipy.interpolate import CubicSpline

import dae_hybrid as dh
from dae_hybrid.port.records import EventRecord, KnotRecord, MeasurementRecord
from dae_hybrid.simulation import stop_times

KINDS = ("linear", "previous", "cubic")
TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}


def in_python(run: dh.Trajectory) -> int:
    """How many knots Python has passed."""
    return sum(isinstance(part, KnotRecord) for part in run.parts.given)


def knots_of(run: dh.Trajectory) -> list[tuple[float, tuple[int, ...]]]:
    return [(part.time, part.intervals) for part in run.parts if isinstance(part, KnotRecord)]


def assert_same(one: dh.Trajectory, other: dh.Trajectory, *, exact: bool = True) -> None:
    """Two runs are the same: to the bit where there are no events, no measurements and no algebraic variables."""
    same = {} if exact else {"rtol": 1e-6, "atol": 1e-8}

    def check(a: Any, b: Any) -> None:
        np.testing.assert_array_equal(a, b) if exact else np.testing.assert_allclose(a, b, **same)

    assert knots_of(one) == knots_of(other)
    assert [(e.transition, e.order, e.count) for e in one.events] == [
        (e.transition, e.order, e.count) for e in other.events
    ]
    check([e.time for e in one.events], [e.time for e in other.events])
    for a, b in zip(one.events, other.events, strict=True):
        check(np.concatenate((a.x_minus, a.x_plus)), np.concatenate((b.x_minus, b.x_plus)))
        check(a.memory_plus, b.memory_plus)
    check(one.final[2], other.final[2])
    check(one.final[3], other.final[3])
    for name, value in one.functionals.items():
        check(value, other.functionals[name])
    if exact:
        assert [type(part) for part in one.parts] == [type(part) for part in other.parts]
        check(one.t, other.t)
        for name in one.names:
            check(one[name], other[name])


def compare(
    model: dh.HybridModel | dh.HybridSystem, span: tuple[float, float], *, exact: bool = True, **options: Any
) -> Any:
    """Simulate, forward and adjoint analysis on both engines; the compiled forward analysis."""
    system = model.build() if isinstance(model, dh.HybridModel) else model
    found = []
    for native in (True, False):
        run = {**TIGHT, **options, "native_events": native}
        forward = dh.forward_sensitivity(system, span, **run)
        adjoint = dh.adjoint_gradient(system, span, "G", **run)
        found.append((dh.simulate(system, span, **{k: v for k, v in run.items() if k != "strict"}), forward, adjoint))
    (plain, forward, adjoint), (python, other, back) = found
    assert_same(plain, python, exact=exact)
    assert_same(forward.trajectory, other.trajectory, exact=exact)
    scale = np.abs(other.gradient["G"]).max() + 1e-6
    if exact:
        np.testing.assert_array_equal(forward.gradient["G"], other.gradient["G"])
        np.testing.assert_array_equal(forward.event_time_sensitivity, other.event_time_sensitivity)
    for gradient in (forward.gradient["G"], adjoint.gradient, back.gradient):
        np.testing.assert_allclose(gradient, other.gradient["G"], rtol=1e-5, atol=1e-6 * scale)
    for run in (python, other.trajectory):
        assert in_python(run) == len(knots_of(run))
    return forward


# -- closed forms --------------------------------------------------------------------------------------------


def weights(kind: str, knots: np.ndarray, t: float) -> np.ndarray:
    """What the integral of a signal up to t takes of every value."""
    values = np.eye(knots.size)
    if kind == "cubic":
        return CubicSpline(knots, values).integrate(knots[0], t)
    i = int(np.searchsorted(knots, t)) - 1
    ends = np.append(knots[: i + 1], t)
    if kind == "previous":
        return np.append(np.diff(ends), np.zeros(knots.size - i - 1))
    share = (t - knots[i]) / (knots[i + 1] - knots[i])
    at = [*values[: i + 1], (1 - share) * values[i] + share * values[i + 1]]
    return np.trapezoid(np.array(at), ends, axis=0)


@pytest.mark.parametrize("method", ["auto", "bdf", "adams"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_integral_of_a_signal(kind: str, method: str) -> None:
    """x' = s from x = a: the gradient by every value is its weight."""
    n, t_end = 60, 11.7
    knots = np.cumsum(np.random.default_rng(1).uniform(0.1, 0.3, n))
    data = np.random.default_rng(2).normal(size=n)
    m = dh.HybridModel("integral")
    a, values, x = m.parameter("a", 0.3), m.parameter("values", data), m.differential("x")
    s = m.signal("s", knots, a * values, kind=kind)
    m.initial(m.mode("run", ode={x: s}), {x: a})
    m.functional("G", terminal=x)
    t_end = knots[-2] + 0.4 * (knots[-1] - knots[-2])
    forward = compare(m, (knots[0], t_end), method=method)
    w = weights(kind, knots, t_end)
    assert len(knots_of(forward.trajectory)) == n - 2
    assert in_python(forward.trajectory) == 0
    assert forward.trajectory.functionals["G"] == pytest.approx(0.3 + 0.3 * w @ data, rel=1e-7)
    np.testing.assert_allclose(forward.gradient["G"], [1 + w @ data, *(0.3 * w)], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", ["numbers", "expression"])
def test_finite_differences_and_duality(kind: str, given: str) -> None:
    """An oscillator that counts its maxima, driven by a signal whose values depend on parameters, or do not."""
    knots = np.linspace(0, 9, 31)
    m = dh.HybridModel("driven")
    w, a = m.parameter("w", 1.3), m.parameter("a", 0.8)
    x, v, n = m.differential("x"), m.differential("v"), m.memory("n", initial=0)
    values = np.cos(0.7 * knots) if given == "numbers" else a * ca.cos(w * ca.DM(knots))
    s = m.signal("s", knots, values, kind=kind)
    run = m.mode("run", ode={x: v, v: s - w**2 * x - 0.1 * v})
    m.transition(run, run, guard=v, direction="falling", memory={n: n + 1}, reset={v: -0.1 * a}, name="maximum")
    m.initial(run, {x: 0.0, v: a})
    m.functional("G", integrand=x**2 + s * x, terminal=v * s, at_times={2.05: x * s, 3.0: x, 6.61: v**2})
    system, t_end = m.build(), 8.83
    forward = dh.forward_sensitivity(system, (0, t_end), **TIGHT)
    adjoint = dh.adjoint_gradient(system, (0, t_end), "G", duality=True, **TIGHT)
    assert len(forward.trajectory.events) >= 2
    assert in_python(forward.trajectory) == 0
    values = adjoint.duality.values
    assert np.abs(values - values[0]).max() <= 1e-6 * np.abs(values).max()
    numeric = []
    for i, p in enumerate(system.nominal):
        h = 1e-6 * np.eye(2)[i]
        ends = (dh.simulate(system, (0, t_end), parameters=system.nominal + d, rtol=1e-11, atol=1e-13) for d in (h, -h))
        numeric.append(np.subtract(*(run.functionals["G"] for run in ends)) / 2e-6)
        assert p > 0
    np.testing.assert_allclose(forward.gradient["G"], numeric, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(adjoint.gradient, numeric, rtol=1e-5, atol=1e-6)


# -- random systems, a frame -----------------------------------------------------------------------------------


@pytest.mark.first(8)
@pytest.mark.parametrize("seed", range(24))
def test_random_signals(seed: int) -> None:
    """One to three signals of all kinds, on the same knots or on others, through two modes with events."""
    random, signals = np.random.default_rng(seed), []
    events, measures = seed % 3 > 0, seed % 2 > 0
    m = dh.HybridModel("random")
    k, a = m.parameter("k", random.uniform(0.3, 1.2)), m.parameter("a", random.uniform(0.5, 1.5))
    x, y, n = m.differential("x"), m.differential("y"), m.memory("n", initial=0)
    common = np.cumsum(random.uniform(0.05, 0.6, 24)) - 1.0
    for i in range(random.integers(1, 4)):
        knots = common if random.random() < 0.5 else np.cumsum(random.uniform(0.05, 0.6, 24)) - 1.0
        numbers = random.normal(size=24)
        values = random.choice([lambda v: v, lambda v: a * v, lambda v, i=i: m.parameter(f"data {i}", v)])(numbers)
        signals.append(m.signal(f"s{i}", knots, values, kind=str(random.choice(KINDS)), outside="hold"))
    total, last = sum(signals), signals[-1]
    one = m.mode("one", ode={x: 1 + 0.2 * total, y: last - k * y})
    two = m.mode("two", ode={x: -1 + 0.1 * total * y, y: a * total - k * y})
    up, down = (0.8, -0.3) if events else (80.0, -30.0)
    m.transition(one, two, guard=x - up, direction="rising", memory={n: n + 1}, reset={y: y + 0.1 * last}, name="up")
    m.transition(two, one, guard=x - down, direction="falling", reset={x: x + 0.05}, name="down")
    if events and random.random() < 0.5:
        m.transition(one, one, every=0.77, reset={y: 0.9 * y}, name="tick")
    inside, more = common[(common > 0) & (common < 4)], dict[str, Any]()
    if measures:
        more = {"at_times": {0.513: x * last, float(inside[1]): y * total, float(inside[-1]): x}}
    m.initial(one, {x: 0.1 * a, y: 1.0})
    m.functional("G", integrand=y**2 + x * last, terminal=x, **more)
    options: dict[str, Any] = {"method": str(random.choice(["auto", "bdf", "adams"]))}
    if random.random() < 0.5:
        options["t_eval"] = np.unique(np.concatenate((np.linspace(0, 4, 11), inside)))
    forward = compare(m, (0.0, 4.0), exact=not (measures or events), **options)
    assert bool(forward.trajectory.events) is events
    assert in_python(forward.trajectory) <= 2 + len(knots_of(forward.trajectory)) // 4
    if "t_eval" in options:
        np.testing.assert_array_equal(forward.trajectory.t, options["t_eval"])


def frame(n: int, dt: float) -> dh.HybridModel:
    """A storey that yields, on ground that moves as in a synthetic earthquake."""
    random, t = np.random.default_rng(5), dt * np.arange(n)
    waves = random.uniform(0.2, 1, 30) * np.sin(np.outer(t, random.uniform(1, 12, 30)) + random.uniform(0, 6.28, 30))
    record = np.exp(-(((t - t[-1] / 3) / (t[-1] / 4)) ** 2)) * waves.sum(axis=1)
    m = dh.HybridModel("frame")
    k, limit, c, scale = (
        m.parameter("k", 40.0),
        m.parameter("limit", 2.0),
        m.parameter("c", 0.4),
        m.parameter("scale", 1.0),
    )
    u, v, r = m.differential("u"), m.differential("v"), m.differential("r")
    ground = m.signal("ground", t, scale * record)
    moves = {u: v, v: -ground - c * v - r - 0.05 * k * u}
    elastic, plastic = m.mode("elastic", ode={**moves, r: k * v}), m.mode("plastic", ode={**moves, r: 0.05 * k * v})
    m.transition(elastic, plastic, guard=r - limit - 0.05 * k * u, direction="rising", name="yields")
    m.transition(elastic, plastic, guard=r + limit - 0.05 * k * u, direction="falling", name="yields back")
    m.transition(plastic, elastic, guard=v, name="unloads")
    m.initial(elastic, {u: 0.0, v: 0.0, r: 0.0})
    m.functional("G", integrand=u**2, terminal=u)
    return m


@pytest.mark.parametrize("method", ["auto", "bdf"])
def test_a_tall_building_in_an_earthquake(method: str) -> None:
    """Sixty storeys: more states than compiled transitions have, with a sparse matrix."""
    n, t = 60, 0.02 * np.arange(101)
    m = dh.HybridModel("building")
    k, x, v = m.parameter("k", 30.0), m.differential("x", size=n), m.differential("v", size=n)
    ground = m.signal("ground", t, k / 30 * np.sin(3 * t) * np.cos(0.7 * t))
    drift = ca.vertcat(x[0], x[1:] - x[:-1])
    force = k * drift + 0.5 * drift**3
    rate = -force + ca.vertcat(force[1:], 0) - 0.2 * v - ground
    m.initial(m.mode("moves", ode={x: v, v: rate}), {x: np.zeros(n), v: np.zeros(n)})
    m.functional("G", terminal=x[n - 1], integrand=x[n - 1] ** 2, at_times={0.5: x[3], 0.8: v[n - 1]})
    forward = compare(m, (0, 0.99), exact=False, method=method)
    assert in_python(forward.trajectory) == 0
    assert len(knots_of(forward.trajectory)) == 49


def test_a_hysteretic_frame_in_an_earthquake() -> None:
    forward = compare(frame(800, 0.02), (0.0, 15.975), exact=False, rtol=1e-7, atol=1e-9)
    assert len(forward.trajectory.events) > 10
    assert len(knots_of(forward.trajectory)) == 798
    assert in_python(forward.trajectory) <= 8


# -- what coincides --------------------------------------------------------------------------------------------


def ramp(signal: Any = 1.0, **options: Any) -> tuple[dh.HybridModel, Any, Any, Any]:
    """x' = s, a staircase whose steps begin at 0.5, 1, ..., 3.5, and a memory that counts."""
    m = dh.HybridModel("ramp")
    a, x, n = m.parameter("a", 1.0), m.differential("x"), m.memory("n", initial=0)
    s = m.signal("s", np.arange(0, 4.1, 0.5), a * np.array([1.0, 2, 1, 3, 1, 2, 1, 3, 2]), kind="previous")
    run = m.mode("run", ode={x: s})
    m.initial(run, {x: 0.0})
    return m, run, x, (s, n, a)


@pytest.mark.parametrize("method", ["auto", "bdf"])
def test_measurements_and_outputs_at_knots_are_those_after_them(method: str) -> None:
    m, _, x, (s, _, _) = ramp()
    m.functional("G", at_times={1.0: s, 1.5: ca.vertcat(x, s)[0] + s, 2.0: x * s}, terminal=x)
    m.functional("H", at_times={0.5: x, 1.5: x})
    t_eval = np.array([0.25, 0.5, 0.5 + 1e-16, 1.5, 3.0, 3.25])
    forward = compare(m, (0, 3.75), exact=False, t_eval=t_eval, method=method)
    run = forward.trajectory
    assert in_python(run) == 0
    assert run.functionals["G"] == pytest.approx(1 + (2.0 + 3) + 3.5 * 1 + 6.25)
    assert run.functionals["H"] == pytest.approx(0.5 + 2.0)
    np.testing.assert_array_equal(run["s"], [1, 2, 2, 3, 1, 1])
    np.testing.assert_allclose(run["x"], [0.25, 0.5, 0.5, 2.0, 5.0, 5.25], rtol=1e-12)
    order = [(part.time, type(part)) for part in run.parts if isinstance(part, KnotRecord | MeasurementRecord)]
    assert [kind for t, kind in order if t == 1.5] == [KnotRecord, MeasurementRecord, MeasurementRecord]


def test_many_measurements_at_one_knot_find_room() -> None:
    m, _, x, (s, _, _) = ramp()
    for i in range(70):
        m.functional(f"F{i}", at_times={1.5: x + i, 3.0: s * i})
    m.functional("G", terminal=x)
    forward = compare(m, (0, 3.75), exact=False)
    assert in_python(forward.trajectory) == 0
    assert [forward.trajectory.functionals[f"F{i}"] for i in range(70)] == pytest.approx(
        [2.0 + 2 * i for i in range(70)]
    )


@pytest.mark.parametrize("off", [0.0, 1e-16, -1e-16, 1e-13, -1e-13, 1e-9, -1e-9, 1e-4, -1e-4])
@pytest.mark.parametrize("what", ["guard", "time", "tick", "measurement", "knot"])
def test_beside_a_knot(what: str, off: float) -> None:
    """Something else at, or next to, the knot at 1.5."""
    m, run, x, (s, n, _) = ramp()
    when = 1.5 + off
    reset: dict[str, Any] = {"reset": {x: x + s}, "memory": {n: n + 1}}
    if what == "guard":
        m.transition(run, run, guard=m.time - when, direction="rising", name="event", **reset)
    elif what == "time":
        m.transition(run, run, at=when, name="event", **reset)
    elif what == "tick":
        m.transition(run, run, every=when, name="event", **reset)
    elif what == "measurement":
        m.functional("M", at_times={when: x * s})
    else:
        other = m.signal("other", [0.0, when, 4.0], [0.0, 1.0, 0.0])
        m.functional("H", integrand=other * x)
    m.functional("G", terminal=x, integrand=x)
    forward = compare(m, (0, 3.75), exact=what == "knot", strict=False)
    assert in_python(forward.trajectory) <= 4
    signal = 1.0 if off < -1e-15 else 3.0
    if what in ("time", "tick") or (what == "guard" and abs(off) > 1e-12):
        first = forward.trajectory.events[0]
        assert first.time == pytest.approx(when, abs=1e-14)
        assert first.x_plus[0] - first.x_minus[0] == pytest.approx(signal)
    elif what == "measurement":
        assert forward.trajectory.functionals["M"] == pytest.approx(2 * signal, abs=1e-3)


def test_a_guard_that_jumps_with_a_signal_and_one_that_rests_at_zero() -> None:
    m, run, x, (s, n, a) = ramp()
    m.transition(run, run, guard=s - 2.5 * a, direction="rising", reset={x: x + 1}, memory={n: n + 1}, name="jump")
    m.transition(run, run, guard=s - 2.0, direction="rising", memory={n: n + 10}, name="rest")
    m.functional("G", terminal=x * n)
    system = m.build()
    runs = [dh.simulate(system, (0, 3.75), native_events=native, **TIGHT) for native in (True, False)]
    assert_same(*runs, exact=False)
    assert [(e.transition, e.time) for e in runs[0].events][:1] == [("jump", 1.5)]


@pytest.mark.parametrize("ends", [(0.0, 4.0), (0.5, 3.5), (0.25, 1.5), (1.0, 1.5), (0.7, 0.9)])
@pytest.mark.parametrize("kind", KINDS)
def test_knots_at_both_ends(ends: tuple[float, float], kind: str) -> None:
    m = dh.HybridModel("ends")
    knots, k, x = np.arange(0, 4.1, 0.5), m.parameter("k", 0.7), m.differential("x")
    s = m.signal("s", knots, m.parameter("data", np.cos(knots)), kind=kind)
    m.initial(m.mode("run", ode={x: s - k * x}), {x: 1.0})
    m.functional("G", terminal=x * s + m.der(s) * x, integrand=x)
    forward = compare(m, ends)
    assert in_python(forward.trajectory) <= 1


@pytest.mark.parametrize("listed", [1, 7, 30])
def test_knots_are_listed_in_pieces(listed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_times, "MAX_KNOT_NUMBERS", listed)
    m = frame(200, 0.05)
    forward = compare(m, (0.0, 9.93), exact=False)
    assert len(knots_of(forward.trajectory)) == 198
    assert in_python(forward.trajectory) >= 198 // listed - 1 if listed > 20 else True


def test_derivatives_by_values_do_not_reach_beyond_an_event() -> None:
    """x' = s until x = 1, then the time stands still: dG/dvalue ends with the event."""
    m = dh.HybridModel("until")
    knots = np.linspace(0, 4, 41)
    values, x, y = m.parameter("values", 1 + 0.1 * np.sin(knots)), m.differential("x"), m.differential("y")
    s = m.signal("s", knots, values)
    run, rest = m.mode("run", ode={x: s, y: 1}), m.mode("rest", ode={x: 0 * x, y: 0 * y})
    m.transition(run, rest, guard=x - 1.03, direction="rising", name="there")
    m.initial(run, {x: 0.0, y: 0.0})
    m.functional("G", terminal=y)
    forward = compare(m, (0, 3.95), exact=False)
    t, rate = forward.trajectory.events[0].time, 1 + 0.1 * np.sin(forward.trajectory.events[0].time)
    gradient = forward.gradient["G"]
    np.testing.assert_allclose(gradient, -weights("linear", knots, t) / rate, rtol=2e-4, atol=1e-8)
    np.testing.assert_array_equal(gradient[int(t / 0.1) + 2 :], 0.0)


# -- algebraic variables ----------------------------------------------------------------------------------------


def with_algebraic(form: str, kind: str) -> dh.HybridModel:
    m = dh.HybridModel(form)
    k, a = m.parameter("k", 1.0), m.parameter("a", 0.7)
    knots, others = np.linspace(0, 6, 31), np.linspace(0, 6, 23)
    x, v = m.differential("x"), m.differential("v")
    f, g = m.signal("f", knots, a * np.sin(1.3 * knots), kind=kind), m.signal("g", others, np.cos(others))
    z = m.algebraic("z", guess=0.3)
    if form == "residual":
        equations: dict[str, Any] = {
            "residual": [m.der(x) - v, m.der(v) + 0.1 * m.der(v) ** 3 - g + k * z + 0.2 * v, z + z**3 / 4 - x - f]
        }
    else:
        law = {"eliminated": 2 * z - x - f, "implicit": z + z**3 / 4 - x - f, "two": z + z**3 / 4 - x - f}[form]
        rows = [law]
        if form == "two":
            w = m.algebraic("w", guess=0.1)
            rows = [law - 0.1 * w, w + 0.2 * ca.sin(w) - g - 0.3 * z]
        equations = {"ode": {x: v, v: g - k * z - 0.2 * v}, "algebraic": rows}
    up, down = m.mode("up", **equations), m.mode("down", **equations)
    m.transition(up, down, guard=v, direction="falling", name="down")
    m.transition(down, up, guard=v, direction="rising", name="up")
    m.initial(up, {x: 0.0, v: 1.0})
    m.functional("G", integrand=z**2, terminal=x, at_times={1.23: z, 2.0: z * x})
    return m


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["eliminated", "implicit", "two", "residual"])
def test_algebraic_variables_follow_their_signals(form: str, kind: str) -> None:
    forward = compare(with_algebraic(form, kind), (0, 5.9), exact=False)
    run = forward.trajectory
    assert in_python(run) <= 1
    assert len(run.events) >= 2
    for part in run.parts:
        if isinstance(part, EventRecord | KnotRecord | MeasurementRecord):
            continue
        x, z = part.x_start[0], part.x_start[2]
        f = run.system.signals[0].evaluate(part.memory, np.array([part.t_start]))[0]
        z = part.x_start[-1] if form == "residual" else z
        law = 2 * z - x - f if form == "eliminated" else z + z**3 / 4 - x - f
        if form == "two":
            law -= 0.1 * part.x_start[3]
        assert abs(law) < 1e-13


def test_modes_of_index_two_pass_their_knots_in_python() -> None:
    """Prescribed motion for a while, free motion after it; the knots of the second mode are compiled."""
    m = dh.HybridModel("released")
    k, knots = m.parameter("k", 0.8), np.linspace(0, 6, 25)
    s = m.signal("s", knots, np.sin(knots), kind="cubic")
    x, w, u = m.differential("x"), m.differential("w"), m.algebraic("u")
    held = m.mode("held", ode={x: w + u, w: -k * x}, constraint=[x - s])
    free = m.mode("free", ode={x: w + s, w: -k * x})
    m.transition(held, free, at=2.1, name="release")
    m.initial(held, {w: 0.2})
    m.functional("G", terminal=x, integrand=w**2, at_times={1.11: x, 4.0: w})
    forward = compare(m, (0, 5.9), exact=False)
    assert len(knots_of(forward.trajectory)) == 23
    assert in_python(forward.trajectory) == 8


@pytest.mark.parametrize("eps", [3e-13, -3e-13, 1e-12, -1e-12])
@pytest.mark.parametrize("before", ["nothing", "knots", "ticks"])
@pytest.mark.parametrize("method", ["erk", "bdf"])
def test_a_guard_that_crosses_beside_another_one_is_not_lost(before: str, eps: float, method: str) -> None:
    m = dh.HybridModel("two")
    a, x, n = m.parameter("a", 1.0), m.differential("x"), m.memory("n", initial=0)
    rate: Any = a * ca.cos(m.time) ** 2 + 0.3
    if before == "knots":
        rate = rate + m.signal("s", [0, 0.25, 0.5, 0.75, 5], [0, 0.1, 0, 0, 0])
    run = m.mode("run", ode={x: rate})
    if before == "ticks":
        m.transition(run, run, every=0.25, memory={n: n + 100}, name="tick")
    m.transition(run, run, guard=x - 1, direction="rising", memory={n: n + 1}, name="one")
    m.transition(run, run, guard=x**2 * (1 + eps) - 1, direction="rising", memory={n: n + 10}, name="two")
    m.initial(run, {x: 0.0})
    m.functional("G", integrand=x)
    system = m.build()
    for native in (True, False):
        sol = dh.simulate(system, (0, 2.1), native_events=native, method=method, rtol=1e-8, atol=1e-10)
        assert sorted(e.transition for e in sol.events if e.transition != "tick") == ["one", "two"]


def test_the_time_of_a_measurement_is_the_knot_that_it_is_but_for_rounding() -> None:
    m, _, x, (s, _, _) = ramp()
    m.functional("G", at_times={1.5 * (1 - 2e-16): s, 2.0 * (1 + 2.3e-16): s, 0.7: x})
    for native in (True, False):
        sol = dh.simulate(m.build(), (0, 3.0), native_events=native)
        assert sol.functionals["G"] == pytest.approx(3 + 1 + 0.9)


def test_cubic_signals_of_many_values_take_no_matrix_of_all_of_them() -> None:
    """The matrix of 40,000 by 40,000 values would have 38 gigabytes."""
    knots = np.arange(40_000.0)
    m = dh.HybridModel("many")
    a, x = m.parameter("a", 2.0), m.differential("x")
    s = m.signal("s", knots, a * np.sin(knots), kind="cubic")
    m.initial(m.mode("run", ode={x: s}), {x: 0.0})
    m.functional("G", terminal=x)
    adjoint = dh.adjoint_gradient(m.build(), (0, 30.0))
    assert adjoint.gradient[0] == pytest.approx(CubicSpline(knots, np.sin(knots)).integrate(0, 30), rel=1e-4)


@pytest.mark.parametrize("stops_by", ["knots", "time", "measurement"])
def test_a_mode_is_as_stiff_after_a_stop_as_before_it(stops_by: str) -> None:
    """Whether it is stiff is judged by the time up to the next stop, not up to the first one of the run."""
    m = dh.HybridModel("late")
    k, x, y = m.parameter("k", 1e4), m.differential("x"), m.differential("y")
    knots = np.linspace(0, 10, 21)
    f = m.signal("f", knots, np.sin(knots), kind="cubic") if stops_by == "knots" else ca.sin(m.time)
    one, two = m.mode("one", ode={x: 1, y: f}), m.mode("two", ode={x: -k * (x - f), y: x})
    m.transition(one, two, guard=x - 1.3, direction="rising", name="begins")
    if stops_by == "time":
        m.transition(one, one, at=0.6, reset={y: y + 0.1}, name="early")
    m.initial(one, {x: 0.0, y: 0.0})
    m.functional("G", integrand=y, **({"at_times": {0.5: x}} if stops_by == "measurement" else {}))
    system = m.build()
    runs = [dh.simulate(system, (0, 9.8), native_events=native) for native in (True, False)]
    assert runs[0].statistics["steps"] <= 1.5 * runs[1].statistics["steps"] < 2000
    assert runs[0].functionals["G"] == pytest.approx(runs[1].functionals["G"], rel=1e-4)
