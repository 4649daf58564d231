"""Numbers that are not finite: every kind, in every place, at every moment, in every call, ends at once and says where.

One model per place has all kinds of bad numbers in it, switched on by parameters, so that the combinations are runs
and not builds. Those that are finite but for their derivatives are refused in gradients only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh

NAN, INF = np.nan, np.inf


def before(s: Any, then: Any) -> Any:
    """Zero where s < 0: within a step, as it is smooth to the library."""
    return dh.smooth(ca.if_else(s < 0, 0, then))


#: bad where s >= 0; o is a parameter that is zero
KINDS: dict[str, Callable[[Any, Any], Any]] = {
    "nan": lambda s, o: before(s, NAN),
    "inf": lambda s, o: before(s, INF),
    "-inf": lambda s, o: before(s, -INF),
    "overflow": lambda s, o: ca.exp(1e4 * s),
    "logarithm": lambda s, o: ca.log(-s) * before(s, 1),
    "root": lambda s, o: ca.sqrt(-s) * before(s, 1),
    "division": lambda s, o: 1 / ca.fmax(-s, 0) * before(s, 1),
    "derivative": lambda s, o: o * ca.sqrt(ca.fmax(-s, 0)),  # zero, and NaN by s
    "derivative by a parameter": lambda s, o: before(s, 1) * ca.sqrt(o),  # zero, and infinite by o
}
FINITE = ("derivative", "derivative by a parameter")
NEVER = 1e3
#: where s is zero in the first mode and in the second: y = t there, and the second is entered at 1
MOMENTS = {"start": (-1.0, NEVER), "middle": (0.5, NEVER), "transition": (NEVER, -1.0), "late": (NEVER, 1.5)}
CALLS = (dh.simulate, dh.forward_sensitivity, dh.adjoint_gradient)
#: seconds that a refusal may take
PROMPT = 10.0


def model(place: str) -> dh.HybridModel:
    """y' = a from 0, through mode "one" until y = 1, then mode "two" until t = 2, with bad numbers in one place."""
    m = dh.HybridModel(place)
    a, w1, w2 = m.parameter("a", 1.0), m.parameter("w1", NEVER), m.parameter("w2", NEVER)
    kind, o = m.parameter("kind", -1.0), m.parameter("o", 0.0)
    y, n = m.differential("y"), m.memory("n", initial=o / ca.if_else(kind == -2, 0, 1) if place == "memory0" else 0.0)
    progress = 0.0 if place == "initial" else y + n * (w1 - w2)  # bad initial values do not depend on y
    s = progress - w1
    bad = sum((ca.if_else(kind == i, make(s, o), 0) for i, make in enumerate(KINDS.values())), ca.MX(0))

    def at(here: str) -> Any:
        return bad if here == place else 0

    ode, algebraic = {y: a + at("dynamics")}, []
    if place in ("algebraic", "implicit"):
        z = m.algebraic("z", guess=1.0)
        ode, algebraic = {y: z}, [z - a - bad if place == "algebraic" else z + z**3 - a - a**3 - bad]
    one, two = m.mode("one", ode=ode, algebraic=algebraic), m.mode("two", ode=ode, algebraic=algebraic)
    reset: Any = {y: y + at("reset")}
    if place == "implicit reset":
        moved = m.post(y) - y
        reset = [moved + moved**3 - bad]
    update = {n: 1 + at("memory")}
    hop = m.transition(one, two, guard=y - 1, direction="rising", reset=reset, memory=update, name="hop")
    if place == "guard":
        for mode in (one, two):
            m.transition(mode, None, guard=y - 10 - bad, direction="rising", name=f"never in {mode.name}")
    if place == "implicit initial":
        m.initial(one, equations=[y + y**3 - bad])
    else:
        m.initial(one, {y: at("initial")})
    parts: dict[str, Any] = {
        "integrand": {"integrand": y + bad},
        "terminal": {"terminal": y + bad},
        "at_times": {"at_times": {0.75: y + bad, 1.75: y + bad}},
        "at_events": {"at_events": {hop: y + bad}},
    }
    m.functional("G", **parts.get(place, {"terminal": y}))
    return m


#: the value of G where nothing is bad
VALUES = {"integrand": 2.0, "at_times": 2.5, "at_events": 1.0}
#: moments at which a bad value is not used, by place
UNUSED = {
    "reset": ("transition", "late"),
    "implicit reset": ("transition", "late"),
    "memory": ("transition", "late"),
    "at_events": ("transition", "late"),
    "terminal": ("start", "middle"),
    "initial": ("middle", "transition", "late"),
    "implicit initial": ("middle", "transition", "late"),
}
#: derivatives that the run itself needs: Newton's method, and the rates of algebraic variables
NEEDED = ("algebraic", "implicit", "implicit initial")
PLACES = (
    "dynamics", "algebraic", "implicit", "guard", "reset", "implicit reset", "memory", "initial", "implicit initial",
    "integrand", "terminal", "at_times", "at_events",
)  # fmt: skip
#: where many kinds take thousands of steps, which are slow when interpreted
COMPILED = ("dynamics", "algebraic", "implicit", "guard", "integrand", "initial")


def check_refusal(error: dh.DaeHybridError, began: float) -> None:
    """The error has a place, a remedy and the partial result."""
    assert time.monotonic() - began < PROMPT
    assert isinstance(error, dh.NonFiniteError | dh.ConsistencyError | dh.StepSizeError), repr(error)
    assert error.mode is not None
    assert error.remedy
    assert error.time is not None
    assert 0 <= error.time <= 2
    assert error.trajectory is not None
    assert all(np.all(np.isfinite(error.trajectory[name])) for name in error.trajectory.names)
    assert error.trajectory.final[0] <= 2.0


def attempt(call: Any, system: dh.HybridSystem, **options: Any) -> tuple[Any, dh.DaeHybridError | None]:
    """The result, or the refusal."""
    try:
        return call(system, (0, 2), **options), None
    except dh.DaeHybridError as error:
        return None, error


@pytest.mark.parametrize(
    ("place", "native"),
    [*((place, False) for place in PLACES), *((place, True) for place in COMPILED)],
    ids=lambda v: v if isinstance(v, str) else "compiled" if v else "interpreted",
)
@pytest.mark.parametrize("share", [2, pytest.param(1, marks=pytest.mark.campaign)])
def test_it_is_refused_where_it_matters(place: str, native: bool, share: int) -> None:
    """When interpreted, the first size has every kind and every moment, not each with each."""
    system = model(place).build(native=native)
    for i, kind in enumerate(KINDS):
        if place in COMPILED and not native and kind not in ("nan", FINITE[1]):
            continue
        for k, (moment, (w1, w2)) in enumerate(MOMENTS.items()):
            if not native and (i + k) % share:
                continue
            for call in CALLS:
                values = {"kind": i, "w1": w1, "w2": w2}
                what, began = (place, kind, moment, call.__name__), time.monotonic()
                options: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-8}
                if call is not dh.simulate:
                    options["wrt"] = ["a", "w1", "w2", "o"]  # there is no derivative by the kind
                finite = moment in UNUSED.get(place, ()) or (kind in FINITE and call is dh.simulate)
                finite = finite or (place == "guard" and kind in FINITE)  # no event, no derivative of its time
                result, refusal = attempt(call, system, parameters=values, **options)
                if refusal is not None:
                    needed = kind == "derivative" and place in NEEDED
                    assert not finite or needed, f"{what}: {refusal!r}"
                    check_refusal(refusal, began)
                    continue
                assert finite, f"{what} was answered"
                got = result.value if isinstance(result, dh.Gradient) else result.functionals["G"]
                assert got == pytest.approx(VALUES.get(place, 2.0), rel=1e-5), what
                if call is not dh.simulate:
                    gradient = result.gradient["G"] if call is dh.forward_sensitivity else result.gradient
                    assert np.all(np.isfinite(gradient)), what


@pytest.mark.parametrize("adapter", ["scipy", "casadi"])
@pytest.mark.parametrize("place", ["dynamics", "integrand"])
def test_other_adapters(place: str, adapter: str) -> None:
    """They get the derivatives as further states, some of them without numbers from the first step on."""
    system = model(place).build(native=False)
    kinds = list(KINDS)
    slow = adapter == "casadi"
    for kind in ("nan", "derivative") if slow else ("nan", "overflow", *FINITE):
        for moment in ("middle",) if slow else ("middle", "transition"):
            for call in CALLS:
                w1, w2 = MOMENTS[moment]
                values, began = {"kind": kinds.index(kind), "w1": w1, "w2": w2}, time.monotonic()
                options = {"rtol": 1e-5, "atol": 1e-7, "adapter": adapter}
                result, refusal = attempt(call, system, parameters=values, **options)
                what = (place, kind, moment, call.__name__)
                if refusal is None:
                    assert kind in FINITE, what
                    assert call is dh.simulate, what
                    assert result.functionals["G"] == pytest.approx(2.0, rel=1e-4), what
                else:
                    assert kind not in FINITE or call is not dh.simulate, f"{what}: {refusal!r}"
                    check_refusal(refusal, began)
                    assert refusal.time >= (0.4 if moment == "middle" else 1.0 - 1e-9), what


@pytest.mark.parametrize("place", ["dynamics", "reset", "guard", "integrand"])
def test_it_names_time_and_transition(place: str) -> None:
    """To rounding, where something jumps."""
    system = model(place).build(native=False)
    names = {"reset": ("hop", "two"), "guard": ("never in two", "two"), "integrand": (None, "two")}
    for call in CALLS:
        moment = MOMENTS["start" if place == "reset" else "transition"]
        with pytest.raises(dh.NonFiniteError) as caught:
            call(system, (0, 2), parameters={"kind": 0, "w1": moment[0], "w2": moment[1]})
        error = caught.value
        assert error.time == pytest.approx(1.0, rel=1e-9)
        transition, mode = names.get(place, ("hop", "two"))
        assert error.mode == mode
        assert transition is None or error.transition == transition
        assert error.trajectory.final[0] == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("adapter", ["sundials", "scipy"])
def test_a_guard_that_breaks_down_on_the_way_is_at_fault_itself(adapter: str, native: bool) -> None:
    system = model("guard").build(native=native)
    for method in ("adams", "bdf") if adapter == "sundials" else ("auto",):
        with pytest.raises(dh.NonFiniteError, match="guard") as caught:
            dh.simulate(system, (0, 2), parameters={"kind": 0, "w1": 0.5}, adapter=adapter, method=method)
        assert caught.value.mode == "one"
        assert caught.value.remedy
        assert 0 <= caught.value.time <= 1.0


# -- other places ---------------------------------------------------------------------------------------------


def ramp(**functional: Any) -> tuple[dh.HybridModel, Any, Any, Any]:
    """y' = a from 0, with a = 1 and b = 0."""
    m = dh.HybridModel("ramp")
    a, b, y = m.parameter("a", 1.0), m.parameter("b", 0.0), m.differential("y")
    m.initial(m.mode("run", ode={y: a}), {y: 0.0})
    if functional:
        m.functional("G", **functional)
    return m, a, b, y


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("call", CALLS)
def test_an_integrand_that_runs_into_its_pole(call: Any, native: bool) -> None:
    """log(y) of y = 1 - t: steps shrink towards the pole of the sensitivity until they underflow."""
    m = dh.HybridModel("pole")
    a, y = m.parameter("a", 1.0), m.differential("y")
    m.initial(m.mode("run", ode={y: -a}), {y: 1.0})
    m.functional("G", integrand=ca.log(y))
    system = m.build(native=native)
    for method in ("auto", "adams", "bdf"):
        began = time.monotonic()
        with pytest.raises((dh.NonFiniteError, dh.StepSizeError)) as caught:
            call(system, (0, 3), method=method)
        check_refusal(caught.value, began)
        assert caught.value.time == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("bad", [NAN, INF, -INF, "x", None, [1.0, 2.0], 1j], ids=str)
def test_values_of_parameters(bad: Any) -> None:
    m, *_, y = ramp()
    m.functional("G", terminal=y)
    system = m.build(native=False)
    for call in CALLS:
        for parameters in ({"a": bad}, [bad, 0.0]):
            with pytest.raises(dh.ParameterError) as caught:
                call(system, (0, 1), parameters=parameters)
            assert "parameter" in str(caught.value)
    with pytest.raises(dh.ModelError):
        dh.HybridModel("q").parameter("a", [bad] if np.ndim(bad) == 0 else [[bad]])


@pytest.mark.parametrize("bad", [NAN, INF, -INF, -1.0, 0.0])
@pytest.mark.parametrize("option", ["rtol", "atol", "max_step", "first_step", "atol by name"])
def test_values_of_options(option: str, bad: float) -> None:
    m, *_, y = ramp()
    m.functional("G", terminal=y)
    system = m.build(native=False)
    given: Any = {"atol": {"y": bad}} if option == "atol by name" else {option: bad}
    for call in CALLS:
        with pytest.raises(dh.OptionError, match=option.split()[0]):
            call(system, (0, 1), **given)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_times(bad: float) -> None:
    m, *_, y = ramp()
    m.functional("G", terminal=y)
    system = m.build(native=False)
    for call in CALLS:
        for span in ((0, bad), (bad, 1), (bad, bad)):
            with pytest.raises(dh.OptionError):
                call(system, span)
        with pytest.raises(dh.OptionError):
            call(system, (0, 1), t_eval=[0.0, bad])
    with pytest.raises(dh.DaeHybridError):
        dh.simulate(system, (0, 1))(bad)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["at", "every"])
@pytest.mark.parametrize(
    "when", [lambda b: 1 / b, lambda b: -1 / b, lambda b: ca.log(b - 1), lambda b: ca.exp(1e4 * (b + 1))],
    ids=["inf", "-inf", "nan", "overflow"],
)  # fmt: skip
def test_times_of_transitions(when: Any, kind: str, call: Any) -> None:
    m, _, b, y = ramp()
    m.transition("run", "run", name="timed", **{kind: when(b)})
    m.functional("G", terminal=y)
    with pytest.raises(dh.NonFiniteError) as caught:
        call(m.build(native=False), (0, 1))
    error = caught.value
    assert (error.transition, error.mode, error.time) == ("timed", "run", 0.0)
    assert error.remedy
    assert error.trajectory is not None


@pytest.mark.parametrize("call", CALLS)
def test_a_period_that_is_not_positive(call: Any) -> None:
    for period in (lambda b: b, lambda b: b - 1.0):
        m, _, b, y = ramp()
        m.transition("run", "run", name="timed", every=period(b))
        m.functional("G", terminal=y)
        with pytest.raises(dh.NonFiniteError, match="period") as caught:
            call(m.build(native=False), (0, 1))
        assert caught.value.transition == "timed"


@pytest.mark.parametrize("call", CALLS)
def test_times_of_measurements(call: Any) -> None:
    for when in (lambda b: 1 / b, lambda b: ca.log(b - 1)):
        m, _, b, y = ramp()
        m.functional("G", at_times=[(when(b), y)])
        with pytest.raises(dh.DaeHybridError, match="measured") as caught:
            call(m.build(native=False), (0, 1))
        assert caught.value.remedy


@pytest.mark.parametrize("bad", [NAN, INF])
def test_data_of_signals(bad: float) -> None:
    m = dh.HybridModel("q")
    for knots, values in (([0.0, bad], [0.0, 1.0]), ([0.0, 1.0], [0.0, bad])):
        with pytest.raises(dh.ModelError):
            m.signal("s", knots, values)


@pytest.mark.parametrize("kind", ["previous", "linear", "cubic"])
@pytest.mark.parametrize("call", CALLS)
def test_values_of_signals_from_parameters(call: Any, kind: Any) -> None:
    """NaN at one knot is refused, wherever the knot is."""
    for worst in (0, 4):
        m = dh.HybridModel("q")
        b, y = m.parameter("b", 0.0), m.differential("y")
        values = [ca.log(b - 1) if i == worst else ca.MX(1.0) for i in range(5)]
        force = m.signal("force", np.arange(5.0), ca.vertcat(*values), kind=kind)
        m.initial(m.mode("run", ode={y: force}), {y: 0.0})
        m.functional("G", terminal=y)
        with pytest.raises(dh.DaeHybridError) as caught:
            call(m.build(native=False), (0, 4.0))
        error = caught.value
        assert isinstance(error, dh.NonFiniteError), repr(error)
        assert error.variables == ("force",)
        assert error.remedy


@pytest.mark.parametrize("call", CALLS)
def test_initial_values(call: Any) -> None:
    """Initial values of variables and of memory; finite ones without derivatives are refused in gradients only."""
    for where in ("state", "memory"):
        for value, finite in ((lambda b: 1 / b, False), (lambda b: ca.log(b - 1), False), (ca.sqrt, True)):
            m = dh.HybridModel("q")
            b, y = m.parameter("b", 0.0), m.differential("y")
            r = m.memory("r", initial=value(b) if where == "memory" else 0.0)
            m.initial(m.mode("run", ode={y: 1 + r}), {y: value(b) if where == "state" else 0.0})
            m.functional("G", terminal=y)
            system = m.build(native=False)
            if finite and call is dh.simulate:
                assert call(system, (0, 1)).functionals["G"] == pytest.approx(1.0)
                continue
            with pytest.raises(dh.NonFiniteError) as caught:
                call(system, (0, 1))
            error = caught.value
            assert (error.mode, error.time) == ("run", 0.0)
            assert error.remedy
            assert finite or error.variables == (("y",) if where == "state" else ("memory entry 0",))


# -- unused functionals -----------------------------------------------------------------------------------------


@pytest.mark.uncertified  # forward analysis differentiates all functionals
def test_functionals_that_are_not_asked_for() -> None:
    """A functional without a derivative does not prevent the gradient of another one."""
    m, _, b, y = ramp()
    hop = m.transition("run", "run", at=0.5)
    m.functional("good", integrand=y**2, terminal=y)
    root = ca.sqrt(b)
    m.functional("terminal", terminal=y + root)
    m.functional("measured", at_times={0.25: y + root})
    m.functional("fired", at_events={hop: y + root})
    system = m.build(native=False)
    sol = dh.simulate(system, (0, 1))
    assert sol.functionals["good"] == pytest.approx(4 / 3, rel=1e-6)
    exact = [5 / 3, 0.0]
    np.testing.assert_allclose(dh.adjoint_gradient(system, (0, 1), "good").gradient, exact, rtol=1e-6, atol=1e-9)
    for name in ("terminal", "measured", "fired"):
        with pytest.raises(dh.NonFiniteError, match="gradient") as caught:
            dh.adjoint_gradient(system, (0, 1), name)
        assert caught.value.trajectory.complete
        assert caught.value.remedy


# -- conditions with infinite residuals or terms -------------------------------------------------------------------


@pytest.mark.parametrize("call", CALLS)
def test_an_infinite_equation_of_a_reset_is_not_satisfied(call: Any) -> None:
    """Infinite residuals have infinite terms: compared with their rounding they were nothing, and dropped."""
    for sign in (1.0, -1.0):
        m = dh.HybridModel("q")
        a, y = m.parameter("a", 1.0), m.differential("y")
        one, two = m.mode("one", ode={y: a}), m.mode("two", ode={y: a})
        m.transition(one, two, at=1.0, reset=[m.post(y) - y - sign / (m.time - 1.0)], name="hop")
        m.initial(one, {y: 0.0})
        m.functional("G", terminal=y)
        with pytest.raises(dh.ConsistencyError) as caught:
            call(m.build(native=False), (0, 2))
        assert (caught.value.transition, caught.value.mode, caught.value.time) == ("hop", "two", 1.0)


@pytest.mark.parametrize("adapter", ["sundials", "scipy"])
@pytest.mark.parametrize("power", [0.5, 1 / 3])
def test_a_guard_without_a_finite_rate_where_its_mode_is_entered(power: float, adapter: str) -> None:
    """|y - b|^power is zero with an infinite slope at the start: it has left zero when y has."""
    for shift, rises in ((0.5, True), (-0.5, False)):
        m = dh.HybridModel("q")
        a, b, y = m.parameter("a", 1.0), m.parameter("b", 1.0), m.differential("y")
        run, rest = m.mode("run", ode={y: a}), m.mode("rest", ode={y: 0.0})
        m.transition(run, rest, guard=(y - b) ** power - shift, direction="rising")
        m.initial(run, {y: b})
        m.functional("G", terminal=y)
        system = m.build(native=False)
        tight = {"rtol": 1e-10, "atol": 1e-12, "adapter": adapter}
        sol = dh.simulate(system, (0, 1), **tight)
        assert len(sol.events) == rises
        if rises:
            when = shift ** (1 / power)
            assert sol.events[0].time == pytest.approx(when, rel=1e-9)
            fsa = dh.forward_sensitivity(system, (0, 1), **tight)
            np.testing.assert_allclose(fsa.event_time_sensitivity, [[-when, 0.0]], atol=1e-7)
            np.testing.assert_allclose(fsa.gradient["G"], [0.0, 1.0], atol=1e-7)
            np.testing.assert_allclose(dh.adjoint_gradient(system, (0, 1), **tight).gradient, [0.0, 1.0], atol=1e-7)


# -- empty models -----------------------------------------------------------------------------------------------


def test_models_without_modes_start_or_functionals() -> None:
    with pytest.raises(dh.ModelError, match="no mode"):
        dh.HybridModel("q").build(native=False)
    m = dh.HybridModel("q")
    y = m.differential("y")
    m.mode("run", ode={y: 1.0})
    with pytest.raises(dh.ModelError, match="no initial"):
        m.build(native=False)
    m.initial("run", {y: 0.0})
    system = m.build(native=False)
    assert dict(dh.simulate(system, (0, 1)).functionals) == {}
    with pytest.raises(dh.ParameterError, match="functional"):
        dh.adjoint_gradient(system, (0, 1))
    with pytest.raises(dh.ModelError, match="needs"):
        m.functional("G")
    for empty in (ca.MX(0, 1), []):
        with pytest.raises(dh.ModelError):
            m.functional("G", terminal=empty)


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("form", ["ODE", "eliminated", "DAE"])
def test_no_parameters(form: str, native: bool) -> None:
    """Gradients of no components, of the right shape, for scalar and vector functionals; events all the same."""
    m = dh.HybridModel("q")
    y = m.differential("y")
    rate: Any = 1.0
    equations: Sequence[Any] = []
    if form != "ODE":
        rate = m.algebraic("z", guess=1.0)
        equations = [rate - 1.0] if form == "eliminated" else [rate + rate**3 - 2.0]
    run = m.mode("run", ode={y: rate}, algebraic=equations)
    m.transition(run, run, guard=y - 0.5, direction="rising", reset={y: 0.0})
    m.initial(run, {y: 0.0})
    m.functional("G", integrand=y)
    m.functional("both", terminal=ca.vertcat(y, 2 * y))
    system = m.build(native=native)
    for parameters in (None, {}, []):
        fsa = dh.forward_sensitivity(system, (0, 1.25), parameters=parameters)
        assert len(fsa.events) == 2
        assert fsa.parameters == ()
        assert fsa.gradient["G"].shape == (0,)
        assert fsa.gradient["both"].shape == (2, 0)
        assert fsa.event_time_sensitivity.shape == (2, 0)
        assert fsa["y"].shape[-1] == 0
        assert fsa.functionals["G"] == pytest.approx(2 * 0.125 + 0.25**2 / 2, rel=1e-6)
        asa = dh.adjoint_gradient(system, (0, 1.25), "G", parameters=parameters)
        assert asa.gradient.shape == (0,)
        assert asa.value == pytest.approx(fsa.functionals["G"])
        assert asa.adjoint(1.0)["y"] in (pytest.approx(0.25), pytest.approx(-0.25))  # sides of an event
        assert dh.adjoint_gradient(system, (0, 1.25), "both").gradient.shape == (2, 0)
    check = dh.check_gradient(system, (0, 1.25), "G")
    assert check.difference("forward", "adjoint") == 0.0
    assert str(check)
    for wrt in ([], (), "p"):
        with pytest.raises(dh.ParameterError):
            dh.forward_sensitivity(system, (0, 1), wrt=wrt)


@pytest.mark.parametrize("call", CALLS)
def test_no_states(call: Any) -> None:
    for is_algebraic in (True, False):
        m = dh.HybridModel("q")
        a, z = m.parameter("a", 2.0), m.algebraic("z") if is_algebraic else 1.0
        m.initial(m.mode("rest", algebraic=[z - 1.0] if is_algebraic else None))
        m.functional("G", terminal=a * z)
        found = call(m.build(native=False), (0, 1))
        assert getattr(found, "functionals", {}).get("G", getattr(found, "value", None)) == 2.0


def test_wrt_of_nothing() -> None:
    m, *_, y = ramp()
    m.functional("G", terminal=y)
    system = m.build(native=False)
    for call in CALLS[1:]:
        with pytest.raises(dh.ParameterError, match="wrt"):
            call(system, (0, 1), wrt=[])


@pytest.mark.parametrize("kind", ["differential", "algebraic", "memory", "unknown", "parameter"])
def test_sizes_of_nothing(kind: str) -> None:
    m = dh.HybridModel("q")
    more: Any = {"memory": {"initial": 0.0}, "parameter": {"value": []}}.get(kind, {})
    for size in (0, -1, 1.5, True, NAN):
        with pytest.raises(dh.ModelError):
            getattr(m, kind)("v", size=size, **more)
    with pytest.raises(dh.ModelError):
        m.parameter("p", [])


def test_vectors_of_one() -> None:
    m = dh.HybridModel("q")
    p, y = m.parameter("p", [2.0]), m.differential("y", size=1)
    m.initial(m.mode("run", ode={y: -p * y}), {y: [1.0]})
    m.functional("G", terminal=y)
    system = m.build(native=False)
    exact = -np.exp(-2.0)
    assert dh.forward_sensitivity(system, (0, 1)).gradient["G"] == pytest.approx([exact], rel=1e-6)
    assert dh.adjoint_gradient(system, (0, 1)).gradient == pytest.approx([exact], rel=1e-6)


def test_names_of_nothing() -> None:
    for declare in ("parameter", "differential", "algebraic", "unknown", "memory", "signal", "mode", "functional"):
        m = dh.HybridModel("q")
        y = m.differential("y")
        more: dict[str, Any] = {
            "parameter": {"value": 1.0},
            "memory": {"initial": 0.0},
            "signal": {"t_data": [0.0, 1.0], "values": [0.0, 1.0]},
            "mode": {"ode": {y: 1.0}},
            "functional": {"terminal": y},
        }
        for name in ("", None, 3):
            with pytest.raises(dh.ModelError):
                getattr(m, declare)(name, **more.get(declare, {}))
    m = dh.HybridModel("q")
    y = m.differential("y")
    run = m.mode("run", ode={y: 1.0})
    with pytest.raises(dh.ModelError):
        m.transition(run, run, at=1.0, name="")


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
def test_only_time_events(native: bool) -> None:
    """Values change at resets only: y = c after each period."""
    m = dh.HybridModel("still")
    c, tau = m.parameter("c", 0.5), m.parameter("tau", 0.3)
    y = m.differential("y")
    run = m.mode("run", ode={y: 0.0})
    m.transition(run, run, every=tau, reset={y: y + c})
    m.initial(run, {y: 0.0})
    m.functional("G", integrand=y, terminal=y**2)
    system = m.build(native=native)
    # periods end at tau, 2 tau, 3 tau: the integral is c (3 T - 6 tau), y(T) = 3 c
    exact = np.array([3 - 6 * 0.3 + 18 * 0.5, -6 * 0.5])
    fsa = dh.forward_sensitivity(system, (0, 1))
    assert fsa.functionals["G"] == pytest.approx(0.5 * (3 - 1.8) + 2.25, rel=1e-8)
    np.testing.assert_allclose(fsa.gradient["G"], exact, rtol=1e-7)
    np.testing.assert_allclose(dh.adjoint_gradient(system, (0, 1)).gradient, exact, rtol=1e-7)


@pytest.mark.parametrize("native", [True, False])
def test_vector_equations_without_an_integrand(native: bool) -> None:
    """The integrand is zero in all entries, and operations on matrices omit it."""
    m, n = dh.HybridModel("terminal only"), 40
    k, x, s = m.parameter("k", 1.0), m.differential("x", size=n), m.differential("s")
    weights = ca.DM(np.random.default_rng(5).normal(size=(n, n)) / 6)
    run = m.mode("run", ode={x: weights @ ca.tanh(x * ca.sqrt(s)) - x, s: -k})
    m.initial(run, {x: np.linspace(-1, 1, n), s: 1.0})
    m.functional("G", terminal=ca.sumsqr(x))
    system = m.build(native=native)
    with pytest.raises(dh.NonFiniteError, match="rate of x"):
        dh.simulate(system, (0, 2))
    found = dh.batch(system, (0, 2), parameters={"k": [0.4, 1.0]})
    assert found.errors[0] is None
    assert isinstance(found.errors[1], dh.NonFiniteError)
