"""Functionals: every part and their sum, scalar and vector; the checks that go with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.problems._reference import derivatives

TIGHT = {"rtol": 1e-10, "atol": 1e-12}


# -- one system, every part ----------------------------------------------------------------------------------
#
# y' = -a y falls to c at t1 = ln(y0/c)/a and jumps to r y + t1; then y' = -b y; z = y^2 + t in both modes.


def relaxation(**parts: Any) -> Callable[[], dh.HybridModel]:
    """`parts` are made from the symbols."""

    def declare() -> dh.HybridModel:
        m = dh.HybridModel("relaxation")
        names = {"a": 1.0, "b": 0.3, "c": 0.6, "y0": 1.5, "r": 2.0, "when": 0.7}
        s: dict[str, Any] = {n: m.parameter(n, v) for n, v in names.items()}
        y, z = m.differential("y"), m.algebraic("z")
        kept = m.memory("kept", initial=0.0)
        first = m.mode("first", ode={y: -s["a"] * y}, algebraic=[z - y**2 - m.time])
        second = m.mode("second", ode={y: -s["b"] * y}, algebraic=[z - y**2 - m.time])
        jump = m.transition(
            first, second, guard=y - s["c"], direction="falling", reset={y: s["r"] * y + m.time},
            memory={kept: m.post(y) * y}, name="jump",
        )  # fmt: skip
        m.transition(second, first, guard=y - 100, direction="rising", name="never")
        m.initial(first, {y: s["y0"]})
        s |= {"m": m, "y": y, "z": z, "kept": kept, "jump": jump, "t": m.time}
        m.functional("G", **{key: make(s) for key, make in parts.items()})
        return m

    return declare


class Run:
    """The run in closed form."""

    def __init__(self, p: Any) -> None:
        self.a, self.b, self.c, self.y0, self.r, self.when = p
        self.t1 = np.log(self.y0 / self.c) / self.a
        self.after = self.r * self.c + self.t1

    def y(self, t: Any) -> Any:
        if np.real(t) < np.real(self.t1):
            return self.y0 * np.exp(-self.a * t)
        return self.after * np.exp(-self.b * (t - self.t1))

    def z(self, t: Any) -> Any:
        return self.y(t) ** 2 + t

    def area(self, tf: Any) -> Any:
        return (self.y0 - self.c) / self.a + (self.after - self.y(tf)) / self.b

    def zdot(self, t: Any) -> Any:
        rate = self.a if np.real(t) < np.real(self.t1) else self.b
        return 1 - 2 * rate * self.y(t) ** 2


PARTS: dict[str, tuple[dict[str, Any], Callable[[Run], Any]]] = {
    "integrand": ({"integrand": lambda s: s["y"]}, lambda e: e.area(2.0)),
    "integrand of der and of memory": (
        {"integrand": lambda s: s["m"].der(s["y"]) + s["kept"]},
        lambda e: e.c - e.y0 + e.y(2.0) - e.after + (2 - e.t1) * e.after * e.c,
    ),
    "integrand of an algebraic variable": (
        {"integrand": lambda s: s["z"] - s["t"]},
        lambda e: (e.y0**2 - e.c**2) / (2 * e.a) + (e.after**2 - e.y(2.0) ** 2) / (2 * e.b),
    ),
    "terminal": (
        {"terminal": lambda s: s["z"] * s["t"] + s["m"].der(s["y"]) * s["kept"]},
        lambda e: 2 * e.z(2.0) - e.b * e.y(2.0) * e.after * e.c,
    ),
    "times": (
        {"at_times": lambda s: {0.25: s["y"], 1.5: s["z"] ** 2, 1.75: s["kept"] * s["t"]}},
        lambda e: e.y(0.25) + e.z(1.5) ** 2 + 1.75 * e.after * e.c,
    ),
    "several at one time": (
        {"at_times": lambda s: [(0.5, s["y"]), (0.5, s["z"]), (0.5, 3 * s["a"])]},
        lambda e: e.y(0.5) + e.z(0.5) + 3 * e.a,
    ),
    "both ends": (
        {"at_times": lambda s: {0.0: s["z"] ** 2 + s["y"], 2.0: s["z"] * s["m"].der(s["y"])}},
        lambda e: e.y0**4 + e.y0 - e.b * e.z(2.0) * e.y(2.0),
    ),
    "times that are parameters": (
        {"at_times": lambda s: [(s["when"], s["z"]), (2 * s["when"], s["z"] ** 2), (s["when"], s["t"])]},
        lambda e: e.z(e.when) + e.z(2 * e.when) ** 2 + e.when,
    ),
    "event, before": (
        {"at_events": lambda s: {"jump": s["z"] * s["m"].der(s["y"]) + s["kept"]}},
        lambda e: -e.a * e.c * (e.c**2 + e.t1),
    ),
    "event, both sides": (
        {"at_events": lambda s: {s["jump"]: s["m"].post(s["y"]) ** 2 * s["m"].pre(s["y"]) + s["m"].post(s["z"])}},
        lambda e: e.after**2 * e.c + e.after**2 + e.t1,
    ),
    "event, rate after": (
        {"at_events": lambda s: {"jump": s["m"].post(s["m"].der(s["y"])) * s["t"]}},
        lambda e: -e.b * e.after * e.t1,
    ),
    "event that never fires": ({"at_events": lambda s: {"never": s["y"]}}, lambda e: 0 * e.a),
    "parameters alone": (
        {"terminal": lambda s: s["a"] * s["r"], "integrand": lambda s: s["b"], "at_times": lambda s: {1.0: s["c"]}},
        lambda e: e.a * e.r + 2 * e.b + e.c,
    ),
    "all": (
        {
            "integrand": lambda s: s["y"],
            "terminal": lambda s: s["z"],
            "at_times": lambda s: {s["when"]: s["y"], 1.3: s["z"]},
            "at_events": lambda s: {"jump": s["m"].post(s["y"]), "never": s["z"]},
        },
        lambda e: e.area(2.0) + e.z(2.0) + e.y(e.when) + e.z(1.3) + e.after,
    ),
    "all, vector": (
        {
            "integrand": lambda s: ca.vertcat(s["y"], 0, s["y"]),
            "terminal": lambda s: ca.vertcat(0, s["z"], s["z"]),
            "at_times": lambda s: [(s["when"], ca.vertcat(s["y"], s["z"], 0)), (1.3, ca.vertcat(0, 0, s["z"]))],
            "at_events": lambda s: {"jump": ca.vertcat(0, s["m"].post(s["y"]), s["y"] * s["t"])},
        },
        lambda e: np.array(
            [
                e.area(2.0) + e.y(e.when),
                e.z(2.0) + e.z(e.when) + e.after,
                e.area(2.0) + e.z(2.0) + e.z(1.3) + e.c * e.t1,
            ]
        ),
    ),
}


@pytest.mark.parametrize("eliminate", [True, False], ids=["eliminated", "dae"])
@pytest.mark.parametrize("name", list(PARTS))
def test_parts_and_sums(name: str, eliminate: bool, compare_gradients: Any) -> None:
    parts, closed = PARTS[name]
    system = relaxation(**parts)().build(eliminate=eliminate, native=not eliminate)
    p = system.nominal
    value = np.real(closed(Run(p.astype(complex))))
    compare_gradients(
        system, (0, 2), "G", value=value, exact=derivatives(lambda q: closed(Run(q)), p),
        fd_tolerance=0 if eliminate else 1e-5,
    )  # fmt: skip


def test_a_subset_of_parameters_and_other_values(compare_gradients: Any) -> None:
    parts, closed = PARTS["all, vector"]
    system = relaxation(**parts)().build(native=False)
    p = np.array([1.2, 0.5, 0.7, 1.4, 1.5, 0.9])
    exact = derivatives(lambda q: closed(Run(q)), p)
    compare_gradients(system, (0, 2), "G", parameters=p, wrt=["when", "c"], exact=exact[:, [5, 2]], fd_tolerance=0)


def test_several_functionals_do_not_mix() -> None:
    """Each has its own value and gradient, whichever else are declared; forward analysis gives all at once."""
    alone = {n: relaxation(**PARTS[n][0])().build(native=False) for n in ("integrand", "times", "event, both sides")}
    m = relaxation(**PARTS["all, vector"][0])()
    symbols = {n: d.symbol for n, d in m.declarations.items()} | {"m": m, "t": m.time, "jump": "jump"}
    for name in alone:
        m.functional(name, **{key: make(symbols) for key, make in PARTS[name][0].items()})
    system = m.build(native=False)
    fsa = dh.forward_sensitivity(system, (0, 2), **TIGHT)
    for name, single in alone.items():
        exact = dh.adjoint_gradient(single, (0, 2), "G", **TIGHT)
        asa = dh.adjoint_gradient(system, (0, 2), name, **TIGHT)
        assert asa.value == pytest.approx(exact.value, rel=1e-8)
        np.testing.assert_allclose(asa.gradient, exact.gradient, rtol=1e-7, atol=1e-8)
        np.testing.assert_allclose(fsa.gradient[name], exact.gradient, rtol=1e-7, atol=1e-8)


def test_one_backward_pass_carries_all_components() -> None:
    """One backward sweep serves all components of a vector functional."""
    single = relaxation(**PARTS["integrand"][0])().build()
    vector = relaxation(
        integrand=lambda s: ca.vertcat(*[s["y"] * i for i in range(1, 9)]),
    )().build()
    one, eight = (dh.adjoint_gradient(system, (0, 2), "G", **TIGHT) for system in (single, vector))
    np.testing.assert_allclose(eight.gradient, np.outer(np.arange(1, 9), one.gradient), rtol=1e-7, atol=1e-9)
    assert eight.statistics["linearisations"] < 2 * one.statistics["linearisations"]


def test_the_adjoint_jumps_at_a_measurement() -> None:
    system = relaxation(at_times=lambda s: {0.5: s["y"] ** 2, 1.5: 4 * s["y"]})().build(native=False)
    asa = dh.adjoint_gradient(system, (0, 2), "G", **TIGHT)
    right, left = asa.adjoint([0.5, 1.5])["y"], asa.adjoint([0.5, 1.5], side="left")["y"]
    np.testing.assert_allclose(left - right, [2 * 1.5 * np.exp(-0.5), 4.0], rtol=1e-8)
    assert right[1] == 0.0


# -- transitions that fire often, end the run, or follow one another -----------------------------------------


def test_costs_of_an_event_that_fires_often(built: Any, models: Any, compare_gradients: Any) -> None:
    """The energy a ball loses, and the sum of its bounce times."""

    def declare() -> dh.HybridModel:
        m = models.ball()
        v, e = m.declarations["v"].symbol, m.declarations["e"].symbol
        loss = (v**2 - m.post("v") ** 2) / 2
        m.functional("bounces", at_events={"bounce": ca.vertcat(loss, m.time, 1)}, terminal=ca.vertcat(0, 0, e))
        return m

    def closed(p: Any) -> Any:
        e, g = p
        t, speed, loss, times, count = np.sqrt(2 / g), np.sqrt(2 * g), 0.0, 0.0, 0
        while np.real(t) < 3:
            loss, times, count = loss + speed**2 * (1 - e**2) / 2, times + t, count + 1
            speed = e * speed
            t = t + 2 * speed / g
        return np.array([loss, times, count + e])

    p = np.array([0.8, 9.81])
    compare_gradients(built(declare), (0, 3), "bounces", value=np.real(closed(p)), exact=derivatives(closed, p))


def flight(**parts: Any) -> dh.HybridModel:
    """A throw that ends where it lands; `parts` are made from the symbols."""
    m = dh.HybridModel("flight")
    s: dict[str, Any] = {n: m.parameter(n, v) for n, v in {"h": 2.0, "g": 9.81, "v0": 0.5}.items()}
    y, v, q = m.differential("y"), m.differential("v"), m.algebraic("q")
    fall = m.mode("fall", ode={y: v, v: -s["g"]}, algebraic=[q - v**2 / 2 - s["g"] * y - m.time])
    m.transition(fall, None, guard=y, direction="falling", name="land")
    m.initial(fall, {y: s["h"], v: s["v0"]})
    s |= {"m": m, "y": y, "v": v, "q": q, "t": m.time}
    m.functional("G", **{key: make(s) for key, make in parts.items()})
    return m


def landing(p: Any) -> tuple[Any, Any]:
    """Time and velocity."""
    h, g, v0 = p
    t = (v0 + np.sqrt(v0**2 + 2 * g * h)) / g
    return t, v0 - g * t


FREE_END: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "final time": ({"terminal": lambda s: s["t"]}, lambda p: landing(p)[0]),
    "duration": ({"integrand": lambda s: 1}, lambda p: landing(p)[0]),
    "terminal": (
        {"terminal": lambda s: s["v"] ** 2 * s["t"] + s["q"] + s["y"]},
        lambda p: landing(p)[1] ** 2 * landing(p)[0] + landing(p)[1] ** 2 / 2 + landing(p)[0],
    ),
    "event": (
        {"at_events": lambda s: {"land": s["v"] * s["t"] ** 2 + s["m"].der(s["v"]) * s["q"]}},
        lambda p: landing(p)[1] * landing(p)[0] ** 2 - p[1] * (landing(p)[1] ** 2 / 2 + landing(p)[0]),
    ),
    "everything": (
        {
            "integrand": lambda s: s["v"],
            "terminal": lambda s: s["t"] * s["v"],
            "at_times": lambda s: {0.3: s["y"], s["v0"] / 5: s["y"]},
            "at_events": lambda s: {"land": s["v"] ** 2},
        },
        lambda p: (
            -p[0] + landing(p)[0] * landing(p)[1] + landing(p)[1] ** 2
            + sum(p[0] + p[2] * t - p[1] * t**2 / 2 for t in (0.3, p[2] / 5))
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("eliminate", [True, False], ids=["eliminated", "dae"])
@pytest.mark.parametrize("name", list(FREE_END))
def test_a_transition_ends_the_run(name: str, eliminate: bool, compare_gradients: Any) -> None:
    parts, closed = FREE_END[name]
    p = np.array([2.0, 9.81, 0.5])
    compared = compare_gradients(
        flight(**parts).build(native=False, eliminate=eliminate), (0, 5), "G", value=closed(p),
        exact=derivatives(closed, p), fd_tolerance=1e-5 if eliminate else 0,
    )  # fmt: skip
    np.testing.assert_allclose(
        compared.forward.event_time_sensitivity[0], derivatives(lambda q: landing(q)[0], p), rtol=1e-8
    )


def test_a_measurement_after_the_end_is_refused() -> None:
    system = flight(at_times=lambda s: {1.0: s["y"]}).build(native=False)
    end = landing([2.0, 9.81, 0.5])[0]
    with pytest.raises(dh.EventError, match=r"ended at t = 0\.691.*functional 'G' was measured at t = 1\.0") as caught:
        dh.simulate(system, (0, 5), **TIGHT)
    assert caught.value.trajectory is not None
    assert caught.value.trajectory.final[0] == pytest.approx(end)
    with pytest.raises(dh.EventError, match="measured"):
        dh.adjoint_gradient(system, (0, 5), **TIGHT)
    assert dh.simulate(system, (0, 5), parameters={"h": 10.0}, **TIGHT).functionals["G"] == pytest.approx(5.595)


def test_a_time_event_ends_the_run(compare_gradients: Any) -> None:
    """At a time that depends on parameters: G = y(T) + integral + cost at the end."""
    m = dh.HybridModel("until")
    k, T = m.parameter("k", 0.7), m.parameter("T", 1.5)
    y = m.differential("y")
    run = m.mode("run", ode={y: -k * y})
    stop = m.transition(run, None, at=T**2)
    m.initial(run, {y: 2.0})
    m.functional("G", terminal=y * m.time, integrand=y, at_events={stop: y**2}, at_times={T: y})

    def closed(p: Any) -> Any:
        y = lambda t: 2 * np.exp(-p[0] * t)
        end = p[1] ** 2
        return y(end) * end + (2 - y(end)) / p[0] + y(end) ** 2 + y(p[1])

    p = np.array([0.7, 1.5])
    compare_gradients(m.build(native=False), (0, 9), "G", value=closed(p), exact=derivatives(closed, p))


def test_impulses_of_implicit_resets_as_a_cost(compare_gradients: Any) -> None:
    """Two masses collide: the impulse is an unknown of the reset."""
    m = dh.HybridModel("collision")
    m1, m2, e, w = (m.parameter(n, v) for n, v in {"m1": 2.0, "m2": 3.0, "e": 0.6, "w": 1.5}.items())
    x, v1, v2 = m.differential("x"), m.differential("v1"), m.differential("v2")
    J = m.unknown("J")
    free = m.mode("free", ode={x: v2 - v1, v1: 0.0, v2: 0.0})
    hit = m.transition(
        free, free, guard=x, direction="falling",
        reset=[
            m1 * (m.post(v1) - v1) + J, m2 * (m.post(v2) - v2) - J, m.post(v2) - m.post(v1) + e * (v2 - v1),
        ],
    )  # fmt: skip
    m.initial(free, {x: 1.0, v1: w, v2: 0.0})
    m.functional("G", at_events={hit: ca.vertcat(J, m.post(v1) * m.time, m.post(m.der(x)))})

    def closed(p: Any) -> Any:
        m1, m2, e, w = p
        impulse = m1 * m2 / (m1 + m2) * (1 + e) * w
        return np.array([impulse, (w - impulse / m1) / w, e * w])

    p = np.array([2.0, 3.0, 0.6, 1.5])
    compare_gradients(m.build(native=False), (0, 1.5), "G", value=closed(p), exact=derivatives(closed, p))


def test_costs_of_transitions_that_follow_at_once(compare_gradients: Any) -> None:
    """The second transition fires because the first one left its guard past its threshold: same time, same tau."""
    m = dh.HybridModel("cascade")
    a, c = m.parameter("a", 1.3), m.parameter("c", 0.8)
    y, x = m.differential("y"), m.differential("x")
    one, two, three = (m.mode(n, ode={y: a, x: y}) for n in ("one", "two", "three"))
    m.transition(one, two, guard=y - c, direction="rising", reset={x: x + 5})
    m.transition(two, three, guard=x - 3, direction="rising", reset={y: y * m.time}, on_entry="fire")
    m.initial(one, {y: 0.0, x: 0.0})
    m.functional("G", at_events={"one->two": x * m.time, "two->three": m.post(y) * x}, terminal=y)

    def closed(p: Any) -> Any:
        a, c = p
        t = c / a
        x = a * t**2 / 2
        return x * t + c * t * (x + 5) + c * t + a * (1 - t)

    p = np.array([1.3, 0.8])
    compared = compare_gradients(m.build(native=False), (0, 1), "G", value=closed(p), exact=derivatives(closed, p))
    assert [e.follows for e in compared.forward.events] == [False, True]


# -- measurements at events ----------------------------------------------------------------------------------


def test_a_measurement_at_a_fixed_event_is_taken_after_it(compare_gradients: Any) -> None:
    """Also at the start and at the end of the run."""
    m = dh.HybridModel("dose")
    k, d = m.parameter("k", 0.5), m.parameter("d", 1.2)
    y = m.differential("y")
    run = m.mode("run", ode={y: -k * y})
    for when in (0.0, 0.5, 1.0):
        m.transition(run, run, at=when, reset={y: y + d})
    m.initial(run, {y: 0.0})
    m.functional("G", at_times={0.0: ca.vertcat(y, 0, 0), 0.5: ca.vertcat(0, y, 0), 1.0: ca.vertcat(0, 0, y)})

    def closed(p: Any) -> Any:
        k, d = p
        e = np.exp(-k / 2)
        return np.array([d, d * e + d, (d * e + d) * e + d])

    p = np.array([0.5, 1.2])
    compare_gradients(m.build(native=False), (0, 1), "G", value=closed(p), exact=derivatives(closed, p))


@pytest.mark.parametrize("analysis", ["forward", "adjoint"])
def test_a_measurement_at_an_event_that_moves_has_a_value_but_no_gradient(analysis: str) -> None:
    m = dh.HybridModel("q")
    T = m.parameter("T", 0.5)
    y = m.differential("y")
    run = m.mode("run", ode={y: 1.0})
    m.transition(run, run, at=T, reset={y: 10 * y})
    m.initial(run, {y: 0.0})
    m.functional("G", at_times={0.5: y})
    system = m.build(native=False)
    assert dh.simulate(system, (0, 1)).functionals["G"] == pytest.approx(5.0)
    with pytest.raises(dh.EventError, match="'G' is measured at the time of an event") as caught:
        (dh.forward_sensitivity if analysis == "forward" else dh.adjoint_gradient)(system, (0, 1))
    assert (caught.value.mode, caught.value.time) == ("run", 0.5)
    assert "at_events=" in str(caught.value)
    result = dh.adjoint_gradient(system, (0, 1), parameters={"T": 0.4}, **TIGHT)
    np.testing.assert_allclose(result.gradient, [9.0], rtol=1e-9)


# -- refusals ------------------------------------------------------------------------------------------------


def pair() -> tuple[dh.HybridModel, dict[str, Any]]:
    """x lives in the second mode only."""
    m = dh.HybridModel("pair")
    a = m.parameter("a", 1.0)
    y, x, q = m.differential("y"), m.differential("x"), m.unknown("q")
    one, two = m.mode("one", ode={y: a}), m.mode("two", ode={y: a, x: -x})
    m.transition(one, two, guard=y - 0.5, direction="rising", reset={x: y}, name="go")
    m.initial(one, {y: 0.0})
    return m, {"m": m, "a": a, "y": y, "x": x, "q": q}


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "nothing": (lambda s: {}, "'G' needs an integrand, a terminal value, at_times, at_events or a peak"),
    "sizes": (
        lambda s: {"integrand": s["y"], "terminal": ca.vertcat(s["y"], 1)},
        r"'G': all parts must have one common size, got \[1, 2\]",
    ),
    "sizes of measurements": (
        lambda s: {"at_times": {0.1: s["y"], 0.2: ca.vertcat(s["y"], s["y"])}},
        r"'G': all parts must have one common size, got \[1, 2\]",
    ),
    "no such transition": (lambda s: {"at_events": {"gone": s["y"]}}, "'gone' is not a transition of model 'pair'"),
    "time is no time": (lambda s: {"at_times": {"go": s["y"]}}, "measurement time of functional 'G' must be a number"),
    "time is a vector": (
        lambda s: {"at_times": [(ca.vertcat(s["a"], 1), s["y"])]}, "measurement time of functional 'G' has 2 entries",
    ),
    "time is a state": (
        lambda s: {"at_times": [(s["y"], s["y"])]}, "time of functional 'G' uses y; it may depend on parameters only",
    ),
    "absent from a mode, integrand": (
        lambda s: {"integrand": s["x"]}, r"integrand of functional 'G' uses 'x', which has no equation.*'one'",
    ),
    "absent from a mode, terminal": (
        lambda s: {"terminal": s["x"]}, r"terminal value of functional 'G' uses 'x', which has no equation.*'one'",
    ),
    "absent from a mode, event": (
        lambda s: {"at_events": {"go": s["x"]}}, r"cost of 'G' at 'go' uses 'x', which has no equation.*'one'",
    ),
    "unknown in a terminal value": (lambda s: {"terminal": s["q"]}, "'G' cannot use the unknown 'q'"),
    "another model": (lambda s: {"terminal": dh.HybridModel("other").differential("w")}, "'w', which model 'pair'"),
}  # fmt: skip


@pytest.mark.parametrize("what", list(REFUSED))
def test_refused_declarations(what: str) -> None:
    parts, message = REFUSED[what]
    m, symbols = pair()
    with pytest.raises(dh.ModelError, match=message):  # noqa: PT012
        m.functional("G", **parts(symbols))
        m.build(native=False)


def test_a_functional_is_declared_once() -> None:
    m, s = pair()
    m.functional("G", terminal=s["y"])
    with pytest.raises(dh.ModelError, match="'G' is declared twice"):
        m.functional("G", terminal=s["y"])


def test_a_measurement_needs_its_variable_only_when_it_is_taken() -> None:
    """It may use variables of the active mode only; in another mode it is refused, with the partial result."""
    m, s = pair()
    m.functional("G", at_times={s["a"]: s["x"]})
    system = m.build(native=False)
    sol = dh.simulate(system, (0, 2), **TIGHT)
    assert sol.functionals["G"] == pytest.approx(0.5 * np.exp(-0.5))
    m, s = pair()
    m.functional("G", at_times={0.2: s["x"]})
    with pytest.raises(dh.ModelError, match=r"'G' in mode 'one' uses 'x'") as caught:
        dh.simulate(m.build(native=False), (0, 2))
    assert caught.value.trajectory is not None


@pytest.mark.parametrize("when", [-0.1, 2.1])
def test_a_measurement_outside_the_run_is_refused(when: float) -> None:
    m, s = pair()
    m.functional("G", at_times={s["a"] - 1 + when: s["y"]})
    with pytest.raises(dh.OptionError, match=r"'G' is measured at t = .*, outside the run from 0\.0 to 2\.0"):
        dh.simulate(m.build(native=False), (0, 2))


@pytest.mark.parametrize("part", ["terminal", "at_times", "at_events"])
def test_values_that_are_not_finite_are_refused(part: str) -> None:
    m, s = pair()
    cost = ca.log(-1 - s["y"])
    m.functional("G", **{part: {"terminal": cost, "at_times": {1.0: cost}, "at_events": {"go": cost}}[part]})
    with pytest.raises(dh.NonFiniteError, match="functional") as caught:
        dh.simulate(m.build(native=False), (0, 2))
    assert caught.value.variables == ("G",)


# -- the table of check_gradient -----------------------------------------------------------------------------


def test_check_gradient_covers_every_part() -> None:
    system = relaxation(**PARTS["all, vector"][0])().build(native=False)
    check = dh.check_gradient(system, (0, 2), "G", **TIGHT)
    assert set(check.gradients) == {"finite_difference", "forward", "adjoint"}
    assert check.same_events
    assert check.difference("forward", "adjoint") < 1e-7
    assert check.difference("forward", "finite_difference") < 1e-5
    lines = str(check).splitlines()
    assert len(lines) == 1 + 3 * 6 + 1
    assert {line.split()[0] for line in lines[1:-1]} >= {"dG[0]/da", "dG[2]/dwhen"}


# -- solvability ---------------------------------------------------------------------------------------------


def test_solvability_of_every_point(built: Any, models: Any) -> None:
    """Rates of the guards (SR eq. 4) and conditions, at the start and at every transition."""
    report = dh.simulate(built(models.ball), (0, 3), **TIGHT).solvability()
    speeds = np.sqrt(2 * 9.81) * 0.8 ** np.arange(len(report) - 1)
    np.testing.assert_allclose([s.rate for s in report[1:]], -speeds, rtol=1e-8)
    assert report[0].transition is None
    assert np.isnan(report[0].rate)
    assert {s.transition for s in report[1:]} == {"bounce"}
    assert {(s.arrival, s.index) for s in report} == {(1.0, 1.0)}
    text = str(report)
    assert "(start)" in text
    assert len(text.splitlines()) == 2 + len(report)


def test_solvability_shows_grazing() -> None:
    """The relative rate falls with the square root of the distance to the grazing point."""
    m = dh.HybridModel("graze")
    c = m.parameter("c", 0.5)
    x, v = m.differential("x"), m.differential("v")
    run, over = m.mode("run", ode={x: v, v: -x}), m.mode("over", ode={x: v, v: -x})
    m.transition(run, over, guard=x - c, direction="rising")
    m.initial(run, {x: 0.0, v: 1.0})
    system = m.build(native=False)
    rates = []
    for gap in (1e-2, 1e-4):
        options = {"max_step": np.sqrt(gap) / 2, **TIGHT}
        point = dh.simulate(system, (0, 3), parameters={"c": 1 - gap}, **options).solvability()[1]
        assert point.rate == pytest.approx(np.sqrt(1 - (1 - gap) ** 2), rel=1e-4)
        rates.append(point.relative_rate)
    assert rates[0] / rates[1] == pytest.approx(10.0, rel=0.02)


def test_solvability_of_implicit_modes_and_resets() -> None:
    """Rows of [F_y' | F_z] that are nearly equal have the condition 4/eps; that of the reset is its own."""
    m = dh.HybridModel("condition")
    eps, y, z = m.parameter("eps", 1e-3), m.differential("y"), m.algebraic("z")
    one = m.mode("one", residual=[m.der(y) + z + y, m.der(y) + (1 + eps) * z - y])
    two = m.mode("two", ode={y: -y}, algebraic=[z - y])
    m.transition(one, two, at=0.5, reset=[m.post(y) - 0.5 * y])
    m.initial(one, {y: 1.0})
    report = dh.simulate(m.build(eliminate=False, native=False), (0, 1), **TIGHT).solvability()
    assert report[0].index == pytest.approx(4e3, rel=1e-2)
    assert report[1].index == pytest.approx(1.0)
    assert np.isnan(report[1].rate)
    assert 1 <= report[1].arrival < 10


# -- structure, at build -------------------------------------------------------------------------------------


def structure(**equations: Any) -> dh.HybridModel:
    m = dh.HybridModel("structure")
    x, v, u = m.differential("x"), m.differential("v"), m.algebraic("u")
    w = m.algebraic("w") if equations.pop("second", False) else None
    symbols = {"m": m, "x": x, "v": v, "u": u, "w": w}
    mode = m.mode("run", **{key: make(symbols) for key, make in equations.items()})
    m.initial(mode, {x: 0.0, v: 0.0})
    return m


def test_index_three_is_refused_with_advice() -> None:
    m = structure(ode=lambda s: {s["x"]: s["v"], s["v"]: s["u"]}, constraint=lambda s: [s["x"] - 1])
    with pytest.raises(dh.FormulationError, match=r"cannot determine u:.*constraint equation 0.*index is 3") as caught:
        m.build(native=False)
    assert caught.value.mode == "run"
    assert caught.value.variables == ("u",)
    assert "velocity constraint" in str(caught.value)


def test_too_few_equations_are_named() -> None:
    m = structure(ode=lambda s: {s["x"]: s["v"], s["v"]: s["u"]})
    with pytest.raises(dh.FormulationError, match=r"0 equations \(none\) for 1 algebraic.*\(u\)"):
        m.build(native=False)


def test_equations_and_variables_that_do_not_match_are_named() -> None:
    m = structure(
        second=True,
        ode=lambda s: {s["x"]: s["v"], s["v"]: s["w"]},
        algebraic=lambda s: [s["u"] - s["x"], s["u"] ** 3 + s["v"]],
    )
    with pytest.raises(dh.FormulationError, match=r"cannot determine w: .*algebraic equation [01]") as caught:
        m.build(native=False)
    assert caught.value.variables == ("w",)


def test_a_constraint_with_an_algebraic_variable_is_named() -> None:
    m = structure(ode=lambda s: {s["x"]: s["u"], s["v"]: -s["v"]}, constraint=lambda s: [s["x"] - s["u"]])
    with pytest.raises(dh.FormulationError, match="Constraint equation 0 contains u"):
        m.build(native=False)


@pytest.mark.parametrize("native_events", [True, False])
def test_measurements_of_one_thing_and_of_others(native_events: bool, compare_gradients: Any) -> None:
    """y = y0 exp(-k t): what is measured alike is evaluated in one call, in either mode."""
    m = dh.HybridModel("measured")
    k, y0 = m.parameter("k", 0.7), m.parameter("y0", 2.0)
    y, others = m.differential("y"), 0.05 + 0.4 * np.arange(9)
    one, two = (m.mode(name, ode={y: -k * y}) for name in ("one", "two"))
    m.transition(one, two, at=1.6)
    m.initial(one, {y: y0})
    squares = {float(t): y**2 for t in 0.3 * np.arange(1, 13)}
    m.functional("G", at_times=squares | {float(t): k * y + m.time for t in others})
    at = np.array([2.0 * np.exp(-0.7 * t) for t in (*squares, *others)])
    t, c = np.array([*squares, *others]), len(squares)
    value = np.sum(at[:c] ** 2) + np.sum(0.7 * at[c:] + t[c:])
    by_k = -2 * np.sum(t[:c] * at[:c] ** 2) + np.sum(at[c:] * (1 - 0.7 * t[c:]))
    by_y0 = np.sum(at[:c] ** 2) + np.sum(0.7 * at[c:]) / 2
    compare_gradients(m.build(), (0, 4), "G", value=value, exact=[by_k, by_y0], native_events=native_events)


@pytest.mark.parametrize("form", ["ode", "implicit"])
@pytest.mark.parametrize("bound", [0.9, 0.99])
def test_an_adjoint_that_leaves_zero_at_a_kink(form: str, bound: float) -> None:
    """x' = -k x exceeds b until T = -ln(b) / k only, so that the adjoint is zero until then and leaves it at a rate."""
    m = dh.HybridModel("exceedance")
    k, b, x = m.parameter("k", 1.3), m.parameter("b", bound), m.differential("x")
    equations: dict[str, Any] = {"ode": {x: -k * x}} if form == "ode" else {"residual": [2 * m.der(x) + 2 * k * x]}
    m.initial(m.mode("run", **equations), {x: 1.0})
    m.functional("E", exceedance=(x, b))
    system, length = m.build(eliminate=False), -np.log(bound) / 1.3
    exact = [-(1 - bound * (1 + 1.3 * length)) / 1.3**2, -length]
    for options in ({}, {"rtol": 1e-9, "atol": 1e-11}):
        found = dh.adjoint_gradient(system, (0, 2), "E", **options)
        np.testing.assert_allclose(found.gradient, exact, rtol=3e-5)


def test_kinks_as_events_help_where_a_cost_is_tiny() -> None:
    """The cost is 4e-7: in steps across the kink the adjoint would need more digits than numbers have."""
    m = dh.HybridModel("little exceedance")
    b, x = m.parameter("b", 0.999), m.differential("x")
    m.initial(m.mode("run", ode={x: -1.3 * x}), {x: 1.0})
    m.functional("E", exceedance=(x, b))
    options = {"rtol": 1e-9, "atol": 1e-11}
    with pytest.raises(dh.StepSizeError, match="kinks='events'"):
        dh.adjoint_gradient(m.build(), (0, 2), "E", **options)
    found = dh.adjoint_gradient(m.build(kinks="events"), (0, 2), "E", **options)
    np.testing.assert_allclose(found.gradient, [np.log(0.999) / 1.3], rtol=1e-8)
