"""Gradients: closed form = forward = adjoint = finite differences, across every kind of transition."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.system.derivative_conditions import Conditions

EXACT = {"ball": (1.1638877209850786, -0.00234772681723926)}


@dataclass(frozen=True)
class Case:
    """A system, what to differentiate over which span, and the answer where there is one.

    `closed(p)` gives the functional in closed form; its derivatives are taken by complex steps.
    """

    declare: Callable[[], dh.HybridModel]
    span: tuple[float, float]
    functional: str = "G"
    closed: Callable[[np.ndarray], Any] | None = None
    parameters: Any = None
    options: tuple[tuple[str, Any], ...] = ()
    tolerance: float = 1e-7

    def exact(self, p: np.ndarray) -> tuple[Any, Any]:
        """Value and gradient of the closed form."""
        if self.closed is None:
            return None, None
        columns = []
        for i in range(p.size):
            shifted = p.astype(complex)
            shifted[i] += 1e-30j
            columns.append(np.imag(self.closed(shifted)) / 1e-30)
        return np.real(self.closed(p.astype(complex))), np.array(columns).T


# -- a family of systems -----------------------------------------------------------------------------------


def threshold() -> dh.HybridModel:
    """y' = -a y until y = c, then y' = -b y; the integrand jumps with the mode."""
    m = dh.HybridModel("threshold")
    a, b, c, y0 = (m.parameter(n, v) for n, v in (("a", 1.0), ("b", 0.3), ("c", 0.6), ("y0", 1.5)))
    y, rate = m.differential("y"), m.memory("rate", initial=a)
    first, second = m.mode("first", ode={y: -a * y}), m.mode("second", ode={y: -b * y})
    m.transition(first, second, guard=y - c, direction="falling", memory={rate: b + 0 * y})
    m.initial(first, {y: y0})
    m.functional("G", integrand=y**2, terminal=y)
    m.functional("jump", integrand=rate * y)
    m.functional("both", integrand=ca.vertcat(y, y**2), terminal=ca.vertcat(0, c * y))
    return m


def threshold_parts(p: Any, tf: float = 2.0) -> Any:
    a, b, c, y0 = p
    t1 = np.log(y0 / c) / a
    end = c * np.exp(-b * (tf - t1))
    return (y0 - c) / a, (c - end) / b, (y0**2 - c**2) / (2 * a), (c**2 - end**2) / (2 * b), end


def threshold_both(p: Any) -> Any:
    i1, j1, i2, j2, end = threshold_parts(p)
    return np.array([i1 + j1, i2 + j2 + p[2] * end])


def threshold_g(p: Any) -> Any:
    _, _, i2, j2, end = threshold_parts(p)
    return i2 + j2 + end


def threshold_jump(p: Any) -> Any:
    i1, j1, *_ = threshold_parts(p)
    return p[0] * i1 + p[1] * j1


def sawtooth(p: Any) -> Any:
    """`models.counter` after its last tooth."""
    k, c, r = p
    teeth = 5
    last = c / k + (teeth - 1) * c * (1 - r) / k
    return r * c + k * (3.3 - last)


def sawtooth_area(p: Any) -> Any:
    k, c, r = p
    rest = (3.3 - c / k - 4 * c * (1 - r) / k) * k + r * c
    return (c**2 + 4 * (c**2 - (r * c) ** 2) + rest**2 - (r * c) ** 2) / (2 * k)


def trigger_updates_itself() -> dh.HybridModel:
    """AMICI#3257: the reset moves the state that triggers, and another one by it, in the same event."""
    m = dh.HybridModel("trigger")
    k, c, r, q = (m.parameter(n, v) for n, v in (("k", 1.3), ("c", 0.8), ("r", 0.4), ("q", 0.7)))
    y, x = m.differential("y"), m.differential("x")
    run = m.mode("run", ode={y: k, x: -q * x})
    reset = {y: r * y * m.time, x: x + y**2 + m.der(y) * m.der(x)}
    m.transition(run, run, guard=y - c * (1 + 0.1 * m.time), direction="rising", reset=reset)
    m.initial(run, {y: 0.0, x: 1.0})
    m.functional("G", integrand=x * y, terminal=x)
    return m


def trigger_closed(p: Any) -> Any:
    k, c, r, q = p
    t, y, x, total = 0.0, 0.0, 1.0, 0.0

    def area(y: Any, x: Any, s: Any) -> Any:  # integral of (y + k s) x exp(-q s)
        e = np.exp(-q * s)
        return x * (y * (1 - e) / q + k * ((1 - e) / q**2 - s * e / q))

    for _ in range(2):
        t1 = (c + k * t - y) / (k - 0.1 * c)
        s = t1 - t
        total = total + area(y, x, s)
        y, x, t = y + k * s, x * np.exp(-q * s), t1
        y, x = r * y * t, x + y**2 - k * q * x
    assert np.real((c + k * t - y) / (k - 0.1 * c)) > 1.4
    s = 1.4 - t
    return total + area(y, x, s) + x * np.exp(-q * s)


def doses() -> dh.HybridModel:
    """Every tau a dose; one washout at a time that depends on two parameters."""
    m = dh.HybridModel("doses")
    k, d, tau, w = (m.parameter(n, v) for n, v in (("k", 0.5), ("d", 1.0), ("tau", 0.3), ("w", 1.1)))
    y = m.differential("y")
    run = m.mode("run", ode={y: -k * y})
    m.transition(run, run, every=tau, reset={y: y + d})
    m.transition(run, run, at=w + tau / 10, reset={y: 0.1 * y})
    m.initial(run, {y: d / 2})
    m.functional("G", integrand=y, terminal=y)
    return m


def doses_closed(p: Any) -> Any:
    k, d, tau, w = p
    events = sorted([(i * tau, True) for i in range(1, 7)] + [(w + tau / 10, False)], key=lambda e: np.real(e[0]))
    t, y, area = 0.0, d / 2, 0.0
    for when, dose in [*events, (2.0, None)]:
        after = y * np.exp(-k * (when - t))
        area = area + (y - after) / k
        y, t = after + d if dose else 0.1 * after if dose is False else after, when
    return area + y


def landing() -> dh.HybridModel:
    """The final time is where the ball lands; integrand and terminal value read it."""
    m = dh.HybridModel("landing")
    h, g, v0 = m.parameter("h", 2.0), m.parameter("g", 9.81), m.parameter("v0", 0.5)
    y, v = m.differential("y"), m.differential("v")
    fall = m.mode("fall", ode={y: v, v: -g})
    m.transition(fall, None, guard=y, direction="falling")
    m.initial(fall, {y: h, v: v0})
    m.functional("G", integrand=1 + y, terminal=v * m.time**2)
    m.functional("time", terminal=m.time)
    m.functional("duration", integrand=1)
    return m


def landing_time(p: Any) -> Any:
    h, g, v0 = p
    return (v0 + np.sqrt(v0**2 + 2 * g * h)) / g


def landing_g(p: Any) -> Any:
    h, g, v0 = p
    t = landing_time(p)
    return t + h * t + v0 * t**2 / 2 - g * t**3 / 6 + (v0 - g * t) * t**2


def landing_with_a_terminal_algebraic() -> dh.HybridModel:
    """As `landing`, with the terminal value in an algebraic variable that depends on time explicitly."""
    m = dh.HybridModel("landing_dae")
    h, g, v0 = m.parameter("h", 2.0), m.parameter("g", 9.81), m.parameter("v0", 0.5)
    y, v, z = m.differential("y"), m.differential("v"), m.algebraic("z")
    fall = m.mode("fall", ode={y: v, v: -g}, algebraic=[z - v * m.time**2 - g * h])
    m.transition(fall, None, guard=y, direction="falling")
    m.initial(fall, {y: h, v: v0})
    m.functional("G", integrand=1 + y, terminal=z)
    return m


def circuit_closed_first(p: Any) -> Any:
    """Before the switch only the linear mode counts: integral of z^2."""
    k, _, _ = p
    return k / 2 * (1 - np.exp(-2 * k * 0.5))


def visit() -> dh.HybridModel:
    """Modes with different variables: (y, v), then (y, v, force), then (y) with memory of what is gone."""
    m = dh.HybridModel("visit")
    k, w, s = m.parameter("k", 40.0), m.parameter("w", 1.2), m.parameter("s", 0.3)
    y, v, force = m.differential("y"), m.differential("v"), m.algebraic("force")
    peak = m.memory("peak", initial=0.0)
    free = m.mode("free", ode={y: v, v: -10.0})
    contact = m.mode("contact", ode={y: v, v: -10.0 + force}, algebraic=[force + k * y + 5 * force**3 / 1e4])
    rest = m.mode("rest", ode={y: -y * w + peak / 100})
    m.transition(free, contact, guard=y - s, direction="falling", reset={y: y - s})
    m.transition(contact, rest, guard=v, direction="rising", memory={peak: force + m.der(v)})
    m.transition(rest, free, at=w, reset={v: 2 * y + peak})
    m.initial(free, {y: 1.0, v: 0.0})
    m.functional("G", integrand=y**2, terminal=y * m.time)
    return m


def jumping_algebraic() -> dh.HybridModel:
    """z and its memory jump with regular equations; y and z both feed the dynamics and the reset."""
    m = dh.HybridModel("jumping")
    a, b, c = m.parameter("a", 0.8), m.parameter("b", 0.5), m.parameter("c", 1.4)
    y, x, z = m.differential("y"), m.differential("x"), m.algebraic("z", size=2, guess=1.0)
    frozen, first = m.memory("frozen", of=z, initial=[0.1, 0.2]), m.memory("first", of=y)
    lower = [z[0] - a * y - frozen[0] / 3 - 0.1 * frozen[1], z[1] + z[1] ** 3 / 9 - b * x - z[0] - frozen[1] / 4]
    upper = [z[0] - b * y - frozen[1] / 3 - 0.1 * first * a, z[1] - x * z[0] - frozen[0] / 5]
    one = m.mode("one", ode={y: z[1], x: -a * x + z[0]}, algebraic=lower)
    two = m.mode("two", ode={y: -z[0] * b, x: y - z[1]}, algebraic=upper)
    m.transition(one, two, guard=y + z[0] - c - 0.2 * first, direction="rising", reset={x: x / 2 + z[1] * a})
    m.transition(two, one, at=1.3 * a, reset={y: y - 0.2 * z[0]})
    m.initial(one, {y: 0.2 * a, x: b})
    m.functional("G", integrand=z[0] * z[1] + frozen[1], terminal=ca.sumsqr(z) * y + first)
    m.functional("v", integrand=z, terminal=ca.vertcat(frozen[0], x))
    return m


def partly_degenerate() -> dh.HybridModel:
    """One algebraic variable is kept by continuity (it only appears with its memory), the other jumps."""
    m = dh.HybridModel("partly")
    a, b = m.parameter("a", 0.8), m.parameter("b", 0.5)
    y, z = m.differential("y"), m.algebraic("z", size=2)
    y_star, z_star = m.memory("y_star", of=y), m.memory("z_star", of=z, initial=[0.3, 0.0])

    def law(rate: Any) -> list[Any]:
        kept = z[0] - z_star[0] - rate * (y - y_star) * (1 + z_star[0])
        return [kept, z[1] - rate * y - z[0] ** 2 - z_star[1] / 2]

    one, two = m.mode("one", ode={y: 1 + z[1]}, algebraic=law(a)), m.mode("two", ode={y: 0.5 - z[0]}, algebraic=law(b))
    m.transition(one, two, guard=y - 0.5 - a / 10, direction="rising")
    m.transition(two, one, at=0.9)
    m.initial(one, {y: 0.0})
    m.functional("G", integrand=z[0] ** 2 + z[1], terminal=z[0] * y)
    return m


def counting_memory() -> dh.HybridModel:
    """General memory: old memory, both sides, time and parameters in the update; memory in every role."""
    m = dh.HybridModel("memory")
    a, b = m.parameter("a", 1.1), m.parameter("b", 0.6)
    y, v = m.differential("y"), m.differential("v")
    r, q = m.memory("r", initial=a**2), m.memory("q", initial=ca.vertcat(a, b), size=2)
    run = m.mode("run", ode={y: v, v: -y * r - b * v + q[0]})
    m.transition(
        run, run, guard=y - 0.2 * q[1] - 0.1, direction="falling", reset={v: v - 0.2 * y * r + 0.1 * m.time},
        memory={r: r + b * m.post(v) + y, q: ca.vertcat(q[1], q[0] * a + m.pre(v) * m.time + m.der(v))},
    )  # fmt: skip
    m.initial(run, {y: b, v: a})
    m.functional("G", integrand=y * r + q[1], terminal=q[0] * y + r**2)
    return m


def simultaneous() -> dh.HybridModel:
    """Two guards that cross at one instant for every value of the parameters, with resets that do not commute."""
    m = dh.HybridModel("simultaneous")
    a, c, r = m.parameter("a", 1.2), m.parameter("c", 0.6), m.parameter("r", 0.5)
    y, x = m.differential("y"), m.differential("x")
    run, after = m.mode("run", ode={y: a, x: y}), m.mode("after", ode={y: -x, x: r * y})
    m.transition(run, after, guard=y - c, direction="rising", reset={x: x + r})
    m.transition(after, after, guard=2 * (y - c) + 0 * x, direction="falling", reset={x: a * x * y}, name="second")
    m.initial(run, {y: 0.0, x: 0.3})
    m.functional("G", integrand=x**2, terminal=y)
    return m


def simultaneous_closed(p: Any) -> Any:
    a, c, r = p
    t = c / a
    area = 0.09 * t + 0.3 * a * t**3 / 3 + a**2 * t**5 / 20
    y, x = c, a * (0.3 + a * t**2 / 2 + r) * c
    w, s = np.sqrt(r), 1.0 - t  # x'' = -r x
    b = r * y / w
    area = area + (x**2 + b**2) * s / 2 + (x**2 - b**2) * np.sin(2 * w * s) / (4 * w)
    area = area + x * b * np.sin(w * s) ** 2 / w
    return area + (-x * w * np.sin(w * s) + b * w * np.cos(w * s)) / r


def decay_closed(p: Any) -> Any:
    return p[1] * (1 - np.exp(-p[0] * 3)) / p[0]


def oscillator_closed(p: Any) -> Any:
    return p[1] * np.cos(p[0] * 3)


def ball_closed(p: Any) -> Any:
    e, g = p
    t, speed = np.sqrt(2 / g), e * np.sqrt(2 * g)
    while np.real(t + 2 * speed / g) < 3:
        t, speed = t + 2 * speed / g, e * speed
    return speed * (3 - t) - g * (3 - t) ** 2 / 2


def cases(models: Any) -> dict[str, Case]:
    return {
        "decay": Case(models.decay, (0, 3), "area", decay_closed),
        "oscillator": Case(models.oscillator, (0, 3), "end", oscillator_closed),
        "ball": Case(models.ball, (0, 3), "height", ball_closed),
        "threshold": Case(threshold, (0, 2), "G", threshold_g),
        "threshold, integrand jumps": Case(threshold, (0, 2), "jump", threshold_jump),
        "threshold, vector": Case(threshold, (0, 2), "both", threshold_both),
        "teeth": Case(models.counter, (0, 3.3), "end", sawtooth),
        "teeth, area": Case(models.counter, (0, 3.3), "area", sawtooth_area),
        "trigger updates itself": Case(trigger_updates_itself, (0, 1.4), "G", trigger_closed),
        "time events": Case(doses, (0, 2), "G", doses_closed),
        "landing": Case(landing, (0, 5), "G", landing_g),
        "landing, time": Case(landing, (0, 5), "time", landing_time),
        "landing, duration": Case(landing, (0, 5), "duration", landing_time),
        "landing, algebraic": Case(
            landing_with_a_terminal_algebraic, (0, 5), "G", lambda p: landing_g(p) + p[0] * p[1]
        ),
        "index 1": Case(models.circuit, (0, 0.5), "work", circuit_closed_first),
        "index 1, switched": Case(models.circuit, (0, 2), "work"),
        "index 1, vector": Case(models.circuit, (0, 2), "both"),
        "variables come and go": Case(visit, (0, 1.5)),
        "variables come and go, in rest": Case(visit, (0, 1.0)),
        "algebraic jumps": Case(jumping_algebraic, (0, 1.6)),
        "algebraic jumps, vector": Case(jumping_algebraic, (0, 1.6), "v"),
        "partly degenerate": Case(partly_degenerate, (0, 1.5)),
        "general memory": Case(counting_memory, (0, 4)),
        "same instant": Case(simultaneous, (0, 1), "G", simultaneous_closed),
        "same instant, other values": Case(simultaneous, (0, 1), "G", simultaneous_closed, {"a": 0.9, "r": 0.8}),
    }


NAMES = list(cases(SimpleNamespace(decay=None, oscillator=None, ball=None, circuit=None, counter=None)))


@pytest.mark.parametrize("name", NAMES)
def test_every_way_gives_the_same_gradient(name: str, models: Any, built: Any, compare_gradients: Any) -> None:
    case = cases(models)[name]
    system = built(case.declare)
    value, exact = case.exact(system.parameter_vector(case.parameters))
    compared = compare_gradients(
        system, case.span, case.functional, exact=exact, value=value, parameters=case.parameters, tolerance=1e-7
    )
    if case.closed is None:
        assert np.abs(compared.adjoint.gradient).max() > 1e-3


@pytest.mark.parametrize("name", ["ball", "threshold", "trigger updates itself", "general memory", "landing"])
@pytest.mark.parametrize("sensitivity_method", ["staggered", "simultaneous"])
def test_adams(name: str, sensitivity_method: str, models: Any, built: Any, compare_gradients: Any) -> None:
    case = cases(models)[name]
    system = built(case.declare)
    value, exact = case.exact(system.nominal)
    compare_gradients(
        system, case.span, case.functional, exact=exact, value=value, method="adams",
        sensitivity_method=sensitivity_method, fd_tolerance=1e-4,
    )  # fmt: skip


def test_gradients_do_not_depend_on_uninitialised_memory(tmp_path: Any) -> None:
    """glibc fills what malloc returns; every way to a gradient gives the same numbers for two fillings.

    With SUNDIALS 7.9, Adams and quadrature sensitivities this failed: on an order increase CVODES
    leaves the new column of the quadrature sensitivities' history as malloc returned it.
    """
    script = tmp_path / "script.py"
    script.write_text(PERTURBED)
    outputs = []
    for byte in ("0", "165"):
        environment = {**os.environ, "MALLOC_PERTURB_": byte, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]


PERTURBED = """
import sys
import dae_hybrid as dh

m = dh.HybridModel("q")
a, b, c = m.parameter("a", 1.0), m.parameter("b", 0.3), m.parameter("c", 0.6)
y = m.differential("y")
first, second = m.mode("first", ode={y: -a * y}), m.mode("second", ode={y: -b * y})
m.transition(first, second, guard=y - c, direction="falling")
m.initial(first, {y: 1.5})
m.functional("G", integrand=y**2, terminal=y)
system = m.build()
for method in ("bdf", "adams"):
    options = {"rtol": 1e-10, "atol": 1e-12, "method": method}
    results = [dh.adjoint_gradient(system, (0, 2), **options).gradient]
    for corrector in ("staggered", "simultaneous"):
        for _ in range(2):
            fsa = dh.forward_sensitivity(system, (0, 2), sensitivity_method=corrector, **options)
            results.append(fsa.gradient["G"])
    for result in results:
        sys.stdout.write(f"{method} {[float(v).hex() for v in result]}\\n")
"""


@pytest.mark.parametrize("name", ["ball", "index 1, switched", "algebraic jumps", "general memory"])
def test_simultaneous_corrector(name: str, models: Any, built: Any) -> None:
    case = cases(models)[name]
    system, tight = built(case.declare), {"rtol": 1e-10, "atol": 1e-12}
    one, other = (
        dh.forward_sensitivity(system, case.span, sensitivity_method=method, **tight).gradient[case.functional]
        for method in ("staggered", "simultaneous")
    )
    np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-7 * np.abs(one).max())


@pytest.mark.parametrize("name", ["ball", "threshold", "index 1, switched", "general memory"])
def test_subsets_of_the_parameters(name: str, models: Any, built: Any) -> None:
    case = cases(models)[name]
    system, tight = built(case.declare), {"rtol": 1e-10, "atol": 1e-12}
    names = system.parameters.names
    full = dh.adjoint_gradient(system, case.span, case.functional, **tight).gradient
    for wrt in (names[0], names[-1:], names[::-1]):
        chosen = [names.index(n) for n in ([wrt] if isinstance(wrt, str) else wrt)]
        asa = dh.adjoint_gradient(system, case.span, case.functional, wrt=wrt, **tight)
        fsa = dh.forward_sensitivity(system, case.span, wrt=wrt, **tight)
        assert asa.parameters == fsa.parameters == tuple(names[i] for i in chosen)
        np.testing.assert_allclose(asa.gradient, full[chosen], rtol=1e-7, atol=1e-9 * np.abs(full).max())
        np.testing.assert_allclose(
            fsa.gradient[case.functional], full[chosen], rtol=1e-7, atol=1e-7 * np.abs(full).max()
        )
        assert fsa.event_time_sensitivity.shape == (len(fsa.events), len(chosen))


def test_other_parameters(models: Any, built: Any, compare_gradients: Any) -> None:
    system = built(models.ball)
    for given in ({"e": 0.7, "g": 5.0}, [0.7, 5.0], {"g": np.array([5.0]), "e": 0.7}):
        p = np.array([0.7, 5.0])
        value, exact = Case(models.ball, (0, 3), "height", ball_closed).exact(p)
        compare_gradients(system, (0, 3), "height", exact=exact, value=value, parameters=given, fd_tolerance=0)


def test_numbers_of_problem_three(built: Any, models: Any) -> None:
    for rtol, allowed in ((1e-8, 5e-6), (1e-10, 3e-8), (1e-11, 1e-8)):
        asa = dh.adjoint_gradient(built(models.ball), (0, 3), rtol=rtol, atol=1e-4 * rtol)
        fsa = dh.forward_sensitivity(built(models.ball), (0, 3), rtol=rtol, atol=1e-4 * rtol)
        for gradient in (asa.gradient, fsa.gradient["height"]):
            np.testing.assert_allclose(gradient, EXACT["ball"], rtol=0, atol=allowed)


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e3])
@pytest.mark.parametrize("rtol", [1e-6, 1e-9])
def test_the_adjoint_is_as_accurate_as_the_tolerance(offset: float, rtol: float) -> None:
    """Also where most of the functional does not depend on the state, and the state is small."""
    m = dh.HybridModel("offset")
    k, y0 = m.parameter("k", 0.7), m.parameter("y0", 0.01)
    y = m.differential("y")
    m.initial(m.mode("run", ode={y: -k * y}), {y: y0})
    m.functional("G", integrand=y + offset, terminal=y)
    system = m.build(native=False)
    e = np.exp(-2.1)
    exact = [0.01 * (-(1 - e) / 0.49 + 3 * e / 0.7 - 3 * e), (1 - e) / 0.7 + e]
    fsa = dh.forward_sensitivity(system, (0, 3), rtol=rtol, atol=rtol * 1e-4)
    asa = dh.adjoint_gradient(system, (0, 3), rtol=rtol, atol=rtol * 1e-4)
    np.testing.assert_allclose(fsa.gradient["G"], exact, rtol=200 * rtol)
    np.testing.assert_allclose(asa.gradient, exact, rtol=200 * rtol)


# -- event times -----------------------------------------------------------------------------------------------


def test_event_time_sensitivities_of_the_ball(built: Any, models: Any) -> None:
    fsa = dh.forward_sensitivity(built(models.ball), (0, 3), rtol=1e-11, atol=1e-13)
    fall = np.sqrt(2 / 9.81)
    for i, row in enumerate(fsa.event_time_sensitivity):
        by_e = 2 * fall * sum(j * 0.8 ** (j - 1) for j in range(1, i + 1))
        by_g = -fsa.events[i].time / (2 * 9.81)
        np.testing.assert_allclose(row, [by_e, by_g], rtol=1e-8, atol=1e-10)


def test_event_time_sensitivities_of_time_events(built: Any) -> None:
    fsa = dh.forward_sensitivity(built(doses), (0, 2), rtol=1e-10, atol=1e-12)
    for event, row in zip(fsa.events, fsa.event_time_sensitivity, strict=True):
        exact = [0, 0, event.count, 0] if event.count else [0, 0, 0.1, 1]
        np.testing.assert_allclose(row, exact, atol=1e-14)


def test_every_record_of_an_instant_has_the_same_time_sensitivity(built: Any) -> None:
    fsa = dh.forward_sensitivity(built(simultaneous), (0, 1), rtol=1e-11, atol=1e-13)
    assert [e.order for e in fsa.events] == [0, 1]
    np.testing.assert_allclose(fsa.event_time_sensitivity[0], [-0.6 / 1.2**2, 1 / 1.2, 0], atol=1e-12)
    np.testing.assert_allclose(fsa.event_time_sensitivity[1], fsa.event_time_sensitivity[0], atol=1e-10)


# -- sensitivities and adjoints as functions of time -----------------------------------------------------------


def test_state_sensitivities_over_time(built: Any) -> None:
    """Both sides of the switch, at output times and at steps; memory too."""
    tight = {"rtol": 1e-10, "atol": 1e-12}
    for t_eval in (None, np.linspace(0, 2, 21)):
        fsa = dh.forward_sensitivity(built(threshold), (0, 2), t_eval=t_eval, **tight)
        t1 = np.log(1.5 / 0.6)
        segment = fsa["rate"][:, 1] == 1.0 if t_eval is None else fsa.t >= t1
        y = np.where(segment, 0.6 * np.exp(-0.3 * (fsa.t - t1)), 1.5 * np.exp(-fsa.t))
        first = np.stack([-fsa.t * y, 0 * y, 0 * y, y / 1.5], axis=1)
        dt1 = np.array([-t1, 0, -1 / 0.6, 1 / 1.5])
        second = 0.3 * y[:, None] * dt1
        second[:, 1] -= (fsa.t - t1) * y
        second[:, 2] += y / 0.6
        np.testing.assert_allclose(fsa["y"], np.where(segment[:, None], second, first), atol=1e-8)
        np.testing.assert_array_equal(fsa["rate"][~segment], np.tile([1.0, 0, 0, 0], (np.sum(~segment), 1)))
        np.testing.assert_allclose(fsa["rate"][segment], np.tile([0, 1.0, 0, 0], (np.sum(segment), 1)), atol=1e-12)
        assert fsa["y"].shape == (fsa.t.size, 4)


def test_adjoint_over_time(built: Any, models: Any) -> None:
    """lambda(t) = dG/dy at t: smooth, and jumping by the saltation at the switch."""
    asa = dh.adjoint_gradient(built(models.decay), (0, 3), "area", rtol=1e-10, atol=1e-12)
    times = np.linspace(0, 3, 13)
    np.testing.assert_allclose(asa.adjoint(times)["y"], (1 - np.exp(-0.7 * (3 - times))) / 0.7, atol=1e-8)
    assert np.ndim(asa.adjoint(1.0)["y"]) == 0

    asa = dh.adjoint_gradient(built(threshold), (0, 2), "G", rtol=1e-10, atol=1e-12)
    t1 = asa.trajectory.events[0].time
    after = lambda t: np.exp(-0.3 * (2 - t)) + 2 * 0.6 * np.exp(-0.3 * (t - t1)) * (1 - np.exp(-0.6 * (2 - t))) / 0.6
    right = asa.adjoint(t1)["y"]
    left = asa.adjoint(t1, side="left")["y"]
    assert right == pytest.approx(after(t1), rel=1e-8)
    # y+ = y-, dt1/dy = 1/(a c): L- = L+ (1 + (flow- - flow+) dt) with flows -a c and -b c
    assert left == pytest.approx(right * (1 + (-0.6 + 0.18) / 0.6), rel=1e-8)
    for t in (0.3, 0.8):
        y = 1.5 * np.exp(-t)
        exact = left * np.exp(-(t1 - t)) + y * (1 - np.exp(-2 * (t1 - t)))
        assert asa.adjoint(t)["y"] == pytest.approx(exact, rel=1e-7)
    np.testing.assert_allclose(asa.adjoint([0.3, 1.5, 0.3])["y"][[0, 2]], asa.adjoint(0.3)["y"], rtol=1e-9)
    np.testing.assert_allclose(asa.adjoint([1.5, 1.9])["y"], after(np.array([1.5, 1.9])), rtol=1e-7)
    for bad in ({"t": 2.1}, {"t": -0.1}, {"t": 1.0, "side": "middle"}):
        with pytest.raises(dh.OptionError):
            asa.adjoint(**bad)


def test_adjoint_of_a_vector_functional_and_of_absent_variables(built: Any) -> None:
    asa = dh.adjoint_gradient(built(jumping_algebraic), (0, 1.6), "v", rtol=1e-9, atol=1e-12)
    found = asa.adjoint([0.1, 0.5, 1.5])
    assert found["y"].shape == (3, 2)
    assert found["z"].shape == (3, 2, 2)
    assert "frozen" not in found
    found = dh.adjoint_gradient(built(visit), (0, 1.5), "G", rtol=1e-9, atol=1e-12).adjoint([0.1, 0.5, 1.1, 1.4])
    np.testing.assert_array_equal(np.isfinite(found["v"]), [True, True, False, True])
    np.testing.assert_array_equal(np.isfinite(found["force"]), [False, True, False, False])


@pytest.mark.parametrize("side", ["left", "right"])
def test_adjoint_at_the_very_ends(side: Any, built: Any, models: Any) -> None:
    asa = dh.adjoint_gradient(built(models.ball), (0, 3), rtol=1e-9, atol=1e-12)
    found = asa.adjoint([0.0, 3.0], side=side)
    assert found["y"][1] == 1.0
    assert found["v"][1] == 0.0
    h = 1e-6
    # dG/dy0 by a ball dropped from 1 + h
    up, down = (ball_from(1 + s * h) for s in (1, -1))
    assert found["y"][0] == pytest.approx((up - down) / (2 * h), rel=1e-6)


def ball_from(height: float) -> float:
    t, speed = np.sqrt(2 * height / 9.81), 0.8 * np.sqrt(2 * 9.81 * height)
    while t + 2 * speed / 9.81 < 3:
        t, speed = t + 2 * speed / 9.81, 0.8 * speed
    return speed * (3 - t) - 9.81 * (3 - t) ** 2 / 2


def test_forward_trajectory_and_output(built: Any, models: Any) -> None:
    times = np.linspace(0, 3, 31)
    fsa = dh.forward_sensitivity(built(models.ball), (0, 3), t_eval=times, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(fsa.t, times)
    sol = dh.simulate(built(models.ball), (0, 3), t_eval=times, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(fsa.trajectory["y"], sol["y"], atol=1e-7)
    assert fsa.functionals["height"] == pytest.approx(sol.functionals["height"], abs=1e-7)
    np.testing.assert_allclose(fsa["y"][-1], fsa.gradient["height"], rtol=1e-12)
    assert "height" in repr(fsa)
    with pytest.raises(KeyError):
        fsa["speed"]


def test_output_at_the_time_of_an_event(built: Any, models: Any) -> None:
    """Sensitivities at an event are those after it, also where the event is the end of the run."""
    m = dh.HybridModel("q")
    a = m.parameter("a", 2.0)
    y = m.differential("y")
    run = m.mode("run", ode={y: a})
    for when in (0.5, 1.0):
        m.transition(run, run, at=when, reset={y: a * y})
    m.initial(run, {y: a})
    m.functional("end", terminal=y)
    system = m.build(native=False)
    fsa = dh.forward_sensitivity(system, (0, 1), t_eval=[0.0, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(fsa.trajectory["y"], [2, 6, 6.5, 14], rtol=1e-12)
    # y(.5-) = 1.5 a, y(.5+) = 1.5 a^2, y(1-) = 1.5 a^2 + a / 2, y(1+) = 1.5 a^3 + a^2 / 2
    np.testing.assert_allclose(fsa["y"][:, 0], [1, 6, 6.25, 20], rtol=1e-9)
    assert fsa.gradient["end"] == pytest.approx(20)
    assert dh.adjoint_gradient(system, (0, 1)).gradient == pytest.approx(20)


# -- memory systems and Algorithm 1 ----------------------------------------------------------------------------


EM_EXACT = np.array([-1.336643883957091555890e-5, 3.266790157646101446010e-3, -1.530224960043961405298e-6, 0.0])


@pytest.mark.parametrize(("rtol", "atol", "allowed"), [(1e-8, 1e-12, 1e-5), (1e-10, 1e-14, 2e-7)])
def test_gradient_of_the_material(rtol: float, atol: float, allowed: float, built: Any, models: Any) -> None:
    """Serban and Recuero, section 5.2, against reference values of 20 digits."""
    system, options = built(models.em), {"rtol": rtol, "atol": atol}
    ways = {
        "forward": dh.forward_sensitivity(system, (0, 10), **options).gradient["G"],
        "adjoint": dh.adjoint_gradient(system, (0, 10), **options).gradient,
        "algorithm 1": dh.adjoint_gradient(system, (0, 10), algorithm="serban-recuero", **options).gradient,
    }
    for way, gradient in ways.items():
        np.testing.assert_allclose(gradient[:3], EM_EXACT[:3], rtol=allowed, err_msg=way)
        assert abs(gradient[3]) < 1e-11, way
    np.testing.assert_allclose(ways["algorithm 1"], ways["adjoint"], rtol=1e-12, atol=1e-18)


def memory_of_continuous_states() -> dh.HybridModel:
    """Two states, two algebraic variables with memory, smooth at the events: y* moves with zero speed."""
    m = dh.HybridModel("continuous")
    a, b = m.parameter("a", 3.0), m.parameter("b", 0.4)
    y, v, z = m.differential("y"), m.differential("v"), m.algebraic("z", size=2)
    y_star, z_star = m.memory("y_star", of=y, initial=0.1), m.memory("z_star", of=z, initial=[0.0, 0.05])

    def law(sign: int) -> list[Any]:
        gap = sign * (y - y_star)
        first = a * y + b * sign - np.exp(-2 * gap) * (a * y_star + b * sign - z_star[0])
        return [z[0] - first, z[1] - z_star[1] - b * gap * (1 + z_star[0])]

    up, down = (
        m.mode(n, ode={y: v, v: np.cos(3 * m.time) - z[0] - z[1]}, algebraic=law(s))
        for n, s in (("up", 1), ("down", -1))
    )
    m.transition(up, down, guard=v, direction="falling")
    m.transition(down, up, guard=v, direction="rising")
    m.initial(up, {y: 0.0, v: 0.1})
    m.functional("G", integrand=y**2 + z[1])
    m.functional("two", integrand=ca.vertcat(y, z[0] ** 2))
    return m


@pytest.mark.parametrize("functional", ["G", "two"])
def test_algorithm_one_agrees_to_rounding(functional: str, built: Any, compare_gradients: Any) -> None:
    system = built(memory_of_continuous_states)
    compared = compare_gradients(system, (0, 5), functional, tolerance=3e-7, fd_tolerance=1e-4)
    assert len(compared.adjoint.trajectory.events) >= 3
    for wrt in (None, "b"):
        options = {"rtol": 1e-10, "atol": 1e-12, "wrt": wrt}
        general = dh.adjoint_gradient(system, (0, 5), functional, **options).gradient
        printed = dh.adjoint_gradient(system, (0, 5), functional, algorithm="serban-recuero", **options).gradient
        np.testing.assert_allclose(printed, general, rtol=1e-11, atol=1e-13)


def outside_algorithm_one() -> dict[str, tuple[Callable[[], dh.HybridModel], str]]:
    def variant(**change: Any) -> Callable[[], dh.HybridModel]:
        def declare() -> dh.HybridModel:
            m = dh.HybridModel("q")
            a = m.parameter("a", 1.0)
            y = m.differential("y")
            s = m.memory("s", of=y if "of" in change else None, initial=0.5)
            run = m.mode("run", ode={y: a + s})
            other = m.mode("other", ode={y: change.get("rate", 1.0) * (a + s)})
            target = change.get("target", other)
            m.transition(run, target, guard=y - 1, direction="rising", reset=change.get("reset", lambda y: {})(y))
            m.initial(run, {y: a / 2 if "start" in change else 0.5})
            m.functional("G", integrand=y if "terminal" not in change else None, terminal=change.get("terminal"))
            return m

        return declare

    return {
        "general memory": (variant(), "s"),
        "moving memory": (variant(of=True), "memorised variable"),
        "state reset": (variant(of=True, reset=lambda y: {y: 0.5 * y}), "continuous states"),
        "parametric start": (variant(of=True, start=True), "initial values"),
        "terminal value": (variant(of=True, terminal=ca.MX(1.0)), "terminal"),
        "final time": (variant(of=True, target=None), "final time"),
    }


@pytest.mark.parametrize("why", list(outside_algorithm_one()))
def test_algorithm_one_refuses(why: str) -> None:
    declare, words = outside_algorithm_one()[why]
    model = declare()
    if why == "terminal value":
        model.functionals.clear()
        model.functional("G", terminal=model.declarations["y"].symbol)
    system = model.build(native=False)
    with pytest.raises(dh.AssumptionError, match=words) as caught:
        dh.adjoint_gradient(system, (0, 1), algorithm="serban-recuero")
    assert "general" in str(caught.value)
    assert np.all(np.isfinite(dh.adjoint_gradient(system, (0, 1)).gradient))


def test_algorithm_one_refuses_systems_without_memory(built: Any, models: Any) -> None:
    for name, functional in (("ball", "height"), ("circuit", "work")):
        with pytest.raises(dh.AssumptionError, match="memory"):
            dh.adjoint_gradient(built(getattr(models, name)), (0, 1), functional, algorithm="serban-recuero")


# -- refusals --------------------------------------------------------------------------------------------------


def test_grazing_is_refused() -> None:
    """A guard at its turning point: simulation goes on, gradients do not."""
    m = dh.HybridModel("q")
    c = m.parameter("c", 1.0)
    x, v = m.differential("x"), m.differential("v")
    run, other = m.mode("run", ode={x: v, v: -x}), m.mode("other", ode={x: v, v: -c})
    m.transition(run, other, guard=x + 3 - c, direction="rising", on_entry="fire", name="touch")
    m.initial(run, {x: 1.0, v: 0.0})
    m.functional("G", terminal=x)
    system = m.build(native=False)
    map_, modes = system.transitions[0], system.modes
    fired = dh.simulate(system, (0, 1)).events[0]
    assert (fired.rate, fired.follows) == (0.0, True)  # on entry: its time is that of the start, whatever its rate
    event = dataclasses.replace(fired, follows=False)
    with pytest.raises(dh.GrazingError, match="touches zero") as caught:
        map_.linearise(modes[0], modes[1], event, system.nominal, np.zeros(2), Conditions())
    assert (caught.value.transition, caught.value.mode, caught.value.time) == ("touch", "run", 0.0)


def test_a_guard_that_vanishes_with_its_gradient_is_refused() -> None:
    """(y - 1/2)^3: it crosses, but at rate zero, so the event time has no derivative by c."""
    m = dh.HybridModel("q")
    c = m.parameter("c", 0.0)
    y = m.differential("y")
    run, other = m.mode("run", ode={y: 1.0}), m.mode("other", ode={y: 2.0})
    m.transition(run, other, guard=(y - 0.5) ** 3 - c, direction="rising", name="touch")
    m.initial(run, {y: 0.0})
    m.functional("G", terminal=y)
    system = m.build(native=False)
    assert len(dh.simulate(system, (0, 1), max_step=0.1).events) == 1
    for analysis in (dh.forward_sensitivity, dh.adjoint_gradient):
        with pytest.raises(dh.GrazingError):
            analysis(system, (0, 1), max_step=0.1)


def passed_on_entry() -> dh.HybridModel:
    """At w a jump puts y past the guard of the next mode, which fires at once: at w, whatever the guard says."""
    m = dh.HybridModel("passed")
    w, r = m.parameter("w", 0.4), m.parameter("r", 0.5)
    y = m.differential("y")
    a, b, c = m.mode("a", ode={y: 1.0}), m.mode("b", ode={y: 1.0}), m.mode("c", ode={y: -y})
    m.transition(a, b, at=w, reset={y: y + 5})
    m.transition(b, c, guard=y - 3, direction="rising", on_entry="fire", reset={y: r * y})
    m.initial(a, {y: 0.0})
    m.functional("G", terminal=y)
    return m


def test_a_transition_fired_on_entry_happens_at_the_time_of_the_entry(built: Any, compare_gradients: Any) -> None:
    case = Case(passed_on_entry, (0, 1), "G", lambda p: p[1] * (p[0] + 5) * np.exp(-(1 - p[0])))
    value, exact = case.exact(np.array([0.4, 0.5]))
    compared = compare_gradients(built(passed_on_entry), (0, 1), "G", value=value, exact=exact)
    np.testing.assert_allclose(compared.forward.event_time_sensitivity, [[1, 0], [1, 0]], atol=1e-12)


@pytest.mark.parametrize("start", [-1.0, -1e3], ids=str)
def test_an_event_near_time_zero_is_not_grazing(start: float, compare_gradients: Any) -> None:
    """Whether a guard crosses does not depend on where time is counted from."""
    m = dh.HybridModel("q")
    t0 = m.parameter("t0", start)
    c = m.parameter("c", 1.0)
    y = m.differential("y")
    a, b = m.mode("a", ode={y: 1.0}), m.mode("b", ode={y: 2.0 * y})
    m.transition(a, b, guard=y - c, direction="rising")
    m.initial(a, {y: 1.0 + t0 + 1e-12})  # crosses at t = 0, to rounding
    m.functional("G", terminal=y)
    system = m.build(native=False)
    for analysis in (lambda **k: dh.forward_sensitivity(system, **k).gradient["G"],
                     lambda **k: dh.adjoint_gradient(system, **k).gradient):  # fmt: skip
        gradient = analysis(t_span=(start - 0.5, start + 1), rtol=1e-10, atol=1e-12, wrt="c")
        when = start - 0.5 + (1.0 - (1.0 + start + 1e-12))
        # y(tf) = c exp(2 (tf - t1)), t1 = t_start + c - y0
        exact = np.exp(2 * (start + 1 - when)) * (1 - 2)
        if when < start + 1 and when > start - 0.5:
            assert gradient == pytest.approx(exact, rel=1e-6)


def test_a_guard_that_fires_at_the_start() -> None:
    """Zero and moving at t0: raised a little, the threshold is met later; lowered, never. One side has a derivative."""
    m = dh.HybridModel("q")
    c = m.parameter("c", 1.0)
    y = m.differential("y")
    a, b = m.mode("a", ode={y: 1.0}), m.mode("b", ode={y: 2.0 * y})
    m.transition(a, b, guard=y - c, direction="rising")
    m.initial(a, {y: 1.0})
    m.functional("G", terminal=y)
    system = m.build(native=False)
    exact = -np.exp(2.0)
    for analysis in (dh.forward_sensitivity, dh.adjoint_gradient):
        with pytest.raises(dh.EventError, match="zero at the start of the run") as caught:
            analysis(system, (0, 1))
        assert caught.value.trajectory.functionals["G"] == pytest.approx(np.exp(2.0), rel=1e-7)
    with pytest.warns(dh.DerivativeWarning, match="zero at the start"):
        asa = dh.adjoint_gradient(system, (0, 1), rtol=1e-10, strict=False)
    with pytest.warns(dh.DerivativeWarning, match="zero at the start"):
        fsa = dh.forward_sensitivity(system, (0, 1), rtol=1e-10, strict=False)
    assert asa.gradient == pytest.approx(exact, rel=1e-6)
    assert fsa.gradient["G"] == pytest.approx(exact, rel=1e-6)
    assert not asa.diagnostics.check("conditions").passed
    assert any("zero at the start" in note for note in fsa.diagnostics)


def test_the_gradient_is_not_finite() -> None:
    m = dh.HybridModel("q")
    a = m.parameter("a", 0.0)
    y = m.differential("y")
    m.initial(m.mode("run", ode={y: 0.0}), {y: 1.0})
    m.functional("G", terminal=y + np.sqrt(a))
    system = m.build(native=False)
    for analysis in (dh.forward_sensitivity, dh.adjoint_gradient):
        with pytest.raises(dh.NonFiniteError, match="gradient"):
            analysis(system, (0, 1))


# -- the checker users run -----------------------------------------------------------------------------------------


def test_check_gradient(built: Any, models: Any) -> None:
    check = dh.check_gradient(built(models.em), (0, 3), "G", rtol=1e-9, atol=1e-13)
    assert set(check.gradients) == {"finite_difference", "forward", "adjoint", "algorithm_1"}
    assert check.same_events
    assert check.difference("forward", "adjoint") < 1e-6
    assert check.difference("finite_difference", "adjoint") < 1e-3
    text = str(check)
    for name in ("dG/dka", "dG/dbeta", "algorithm_1", "finite_difference"):
        assert name in text
    check = dh.check_gradient(built(threshold), (0, 2), "both", wrt=["c", "a"], step=1e-4, rtol=1e-10, atol=1e-12)
    assert "algorithm_1" not in check.gradients
    assert check.parameters == ("c", "a")
    assert check.gradients["adjoint"].shape == (2, 2)
    assert check.difference("finite_difference", "forward") < 1e-5
    assert "dboth[1]/da" in str(check)


def test_check_gradient_says_when_the_runs_differ(built: Any, models: Any) -> None:
    check = dh.check_gradient(built(models.counter), (0, 0.75 + 1e-7), "end", step=1e-3, wrt="k")
    assert not check.same_events
    assert "other transitions" in str(check)


# -- the same system, other machinery ------------------------------------------------------------------------


def eliminable(*, factor: bool) -> dh.HybridModel:
    """Algebraic variables given explicitly (eliminated at build), or hidden behind a factor (left to IDAS)."""
    m = dh.HybridModel("eliminable")
    k, c, q = m.parameter("k", 1.2), m.parameter("c", 0.5), m.parameter("q", 2.0)
    y, z, w = m.differential("y"), m.algebraic("z"), m.algebraic("w")
    held, n = m.memory("held", of=z, initial=0.1), m.memory("n", initial=0.0)
    f = 1 + y**2 if factor else 1
    a = m.mode("a", ode={y: -z - w / 5}, algebraic=[f * (z - k * y - held / 3), f * (w - z**2)])
    b = m.mode("b", ode={y: -w}, algebraic=[f * (w - q * y - held * m.time / 5), f * (z - w**2 - y)])
    m.transition(
        a, b, guard=z - c - 0.3, direction="falling", reset={y: y + z / 5}, memory={n: m.post(z) * w + m.der(y)}
    )
    m.transition(b, a, guard=w - 0.3 * c, direction="falling", reset={y: y + 0.5})
    m.initial(a, {y: k / 1.2})
    m.functional("G", integrand=z * w + n, terminal=w * y + z)
    return m


def explicit() -> dh.HybridModel:
    return eliminable(factor=False)


def implicit() -> dh.HybridModel:
    return eliminable(factor=True)


def test_eliminated_variables_are_as_good_as_solved_ones(built: Any, compare_gradients: Any) -> None:
    """States, sensitivities, records, adjoints (mu scales with the equation) and every method."""
    tight, times = {"rtol": 1e-10, "atol": 1e-12}, np.linspace(0, 2, 21)
    one, other = (
        dh.forward_sensitivity(built(declare), (0, 2), t_eval=times, **tight) for declare in (explicit, implicit)
    )
    for name in one.trajectory.names:
        np.testing.assert_allclose(one.trajectory[name], other.trajectory[name], atol=5e-9, err_msg=name)
        np.testing.assert_allclose(one.trajectory(times)[name], other.trajectory[name], atol=5e-9, err_msg=name)
        np.testing.assert_allclose(one[name], other[name], atol=2e-8, err_msg=name)
    for left, right in zip(one.events, other.events, strict=True):
        for side in ("x_minus", "x_plus", "xdot_minus", "xdot_plus", "memory_minus", "memory_plus"):
            np.testing.assert_allclose(getattr(left, side), getattr(right, side), atol=1e-8, err_msg=side)
    first, second = (
        dh.adjoint_gradient(built(declare), (0, 2), **tight).adjoint(times) for declare in (explicit, implicit)
    )
    for name in first:
        scale = 1.0 if name == "y" else 1 + one.trajectory["y"] ** 2
        np.testing.assert_allclose(first[name], second[name] * scale, atol=1e-6, err_msg=name)
    compare_gradients(built(explicit), (0, 2), "G")
    compare_gradients(built(explicit), (0, 2), "G", method="adams")
    compare_gradients(built(implicit), (0, 2), "G")


def stiff_and_not() -> dh.HybridModel:
    """A slow mode, then one with a rate of 1e5: what "auto" is for."""
    m = dh.HybridModel("stiff")
    k, c = m.parameter("k", 1e5), m.parameter("c", 0.5)
    y, x = m.differential("y"), m.differential("x")
    slow = m.mode("slow", ode={y: -y, x: y})
    fast = m.mode("fast", ode={y: -y / 5, x: -k * (x - y)})
    m.transition(slow, fast, guard=y - c, direction="falling")
    m.initial(slow, {y: 1.0, x: 0.0})
    m.functional("G", integrand=x**2, terminal=x + y)
    return m


def test_auto(built: Any, compare_gradients: Any) -> None:
    system = built(stiff_and_not)
    ways = {
        method: compare_gradients(system, (0, 3), "G", method=method, fd_tolerance=1e-4, tolerance=1e-6)
        for method in ("auto", "bdf")
    }
    np.testing.assert_allclose(
        ways["auto"].adjoint.gradient,
        ways["bdf"].adjoint.gradient,
        atol=1e-6 * np.abs(ways["bdf"].adjoint.gradient).max(),
    )
    steps = {
        m: dh.simulate(system, (0, 3), method=m, rtol=1e-6, atol=1e-8).statistics["steps"] for m in ("auto", "bdf")
    }
    assert steps["auto"] < 3 * steps["bdf"]


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("size", [0, 1, 6], ids=["ODE", "one", "six"])
def test_functions_that_cannot_be_expanded(size: int, native: bool, compare_gradients: Any) -> None:
    """A spline from CasADi has no SX form: everything goes through MX."""
    grid = np.linspace(-1, 3, 9)
    spline = ca.interpolant("spline", "bspline", [grid], np.sin(grid))
    m = dh.HybridModel("spline")
    a, y = m.parameter("a", 0.7), m.differential("y")
    if size:
        z = m.algebraic("z", size=size)
        held = m.memory("held", of=z, initial=np.zeros(size))
        run = m.mode("run", ode={y: -a * ca.sum1(z) / size}, algebraic=[3 * z - spline(y) - z**3 / 9 - held / 7])
    else:
        run = m.mode("run", ode={y: -a * spline(y)})
    m.transition(run, run, guard=y - 0.9, direction="falling", reset={y: y + 0.1 * (z[0] if size else 1)})
    m.transition(run, run, at=0.5)
    m.initial(run, {y: 1.0})
    m.functional("G", integrand=spline(y) ** 2, terminal=y)
    compare_gradients(m.build(native=native), (0, 1.2), "G", fd_tolerance=1e-4)


def test_many_states(compare_gradients: Any) -> None:
    n = 40
    m = dh.HybridModel("strip")
    k, u = m.parameter("k", 1.0), m.differential("u", size=n)
    diffusion = 20 * k * (ca.vertcat(u[1:], 0) - 2 * u + ca.vertcat(0, u[:-1]))
    on, off = m.mode("on", ode={u: diffusion + ca.sin(u)}), m.mode("off", ode={u: diffusion - u})
    m.transition(on, off, guard=u[n // 2] - 1.5, direction="rising")
    m.initial(on, {u: np.linspace(0, 2, n)})
    m.functional("G", integrand=ca.sumsqr(u))
    compared = compare_gradients(m.build(), (0, 5), "G", rtol=1e-9, atol=1e-11, tolerance=1e-6, fd_tolerance=1e-4)
    assert len(compared.adjoint.trajectory.events) == 1


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
def test_algebraic_variables_that_move_faster_than_the_state(native: bool) -> None:
    """z pulses while x hardly notices: dG/da is the integral of z, which the backward pass must not interpolate."""
    m = dh.HybridModel("pulse")
    a = m.parameter("a", 0.0)
    x, z = m.differential("x"), m.algebraic("z")
    m.initial(m.mode("run", ode={x: 1 + a * z}, algebraic=[z + z**3 - 5 * ca.sin(3 * x) - 1]), {x: 0.0})
    m.functional("G", terminal=x)
    system = m.build(native=native)
    t = np.linspace(0, 4, 40001)
    root = np.zeros_like(t)
    for _ in range(60):
        root -= (root + root**3 - 5 * np.sin(3 * t) - 1) / (1 + 3 * root**2)
    exact = float(np.sum((root[:-1:2] + 4 * root[1::2] + root[2::2]) * (t[1] - t[0]) / 3))
    for rtol, limit in ((1e-6, 2e-5), (1e-8, 2e-7), (1e-10, 2e-9)):
        asa = dh.adjoint_gradient(system, (0, 4), rtol=rtol, atol=rtol / 100)
        assert asa.gradient == pytest.approx([exact], rel=limit)


# -- the adjoint's forward pass ----------------------------------------------------------------------------------


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("form", ["ode", "index 2"])
def test_adjoint_on_polynomial_motion(form: str, native: bool) -> None:
    """y = a t^4/4: a multistep method takes steps of any length on it, but cubic interpolation is not exact."""
    m = dh.HybridModel("polynomial")
    a, y, x = m.parameter("a", 1.0), m.differential("y"), m.differential("x")
    if form == "index 2":
        u = m.algebraic("u")
        m.initial(m.mode("run", ode={y: a * m.time**3, x: u}, constraint=[x - a * m.time**2]), {y: 0.0})
    else:
        m.initial(m.mode("run", ode={y: a * m.time**3, x: 2 * a * m.time}), {y: 0.0, x: 0.0})
    m.functional("G", integrand=y**2 * x)
    system, exact = m.build(native=native), 3 * 2.0**11 / (16 * 11)
    for rtol in (1e-5, 1e-7, 1e-9, 1e-11):
        asa = dh.adjoint_gradient(system, (0, 2), rtol=rtol, atol=rtol / 100)
        assert asa.gradient[0] == pytest.approx(exact, rel=300 * rtol)


def test_adjoint_does_not_step_over_what_the_forward_run_has_resolved() -> None:
    """Before an integrand that is a pulse is met, going backwards, the adjoint is zero and nothing limits the steps."""
    m = dh.HybridModel("pulse")
    a, c = m.parameter("a", 0.1), m.parameter("c", 47.3)
    x, w = m.differential("x"), m.differential("w")
    m.initial(m.mode("run", ode={x: -a * x, w: -a * w + ca.exp(-(((m.time - c) / 2) ** 2)) * x}), {x: 1.0, w: 0.0})
    m.functional("J", integrand=ca.exp(-((m.time - 60) ** 2)) * w**2)
    system = m.build()
    for rtol in (1e-4, 1e-6, 1e-8, 1e-10):
        forward = dh.forward_sensitivity(system, (0, 100), rtol=rtol, atol=1e-4 * rtol).gradient["J"]
        adjoint = dh.adjoint_gradient(system, (0, 100), rtol=rtol, atol=1e-4 * rtol).gradient
        assert adjoint[0] == pytest.approx(forward[0], rel=5e2 * rtol)


def test_adjoint_behind_a_fast_transient() -> None:
    """A transient of 1e-4 before a smooth stretch of 100: interpolation needs short steps in the one only."""
    m = dh.HybridModel("transient")
    k, a, b = m.parameter("k", 1e4), m.parameter("a", 1.0), m.parameter("b", 1e-3)
    x, y = m.differential("x"), m.differential("y")
    m.initial(m.mode("run", ode={x: -k * (x - (a + b * m.time**2)), y: -b * y + x}), {x: 0.0, y: 0.0})
    m.functional("J", integrand=x**2 * y * 1e-3, terminal=y)
    system = m.build()
    for rtol in (1e-6, 1e-8, 1e-10):
        forward = dh.forward_sensitivity(system, (0, 100), rtol=rtol, atol=1e-4 * rtol)
        adjoint = dh.adjoint_gradient(system, (0, 100), rtol=rtol, atol=1e-4 * rtol, max_steps=100_000)
        assert np.abs(adjoint.gradient / forward.gradient["J"] - 1)[1:].max() < 1e2 * rtol


def test_adjoint_of_a_run_that_has_settled() -> None:
    """Nothing moves at the end: the tolerances of the adjoint must not be made from what is left there."""
    m = dh.HybridModel("settled")
    k, r, x, v = m.parameter("k", 2.0), m.parameter("r", 1.0), m.differential("x"), m.differential("v")
    m.initial(m.mode("run", ode={x: v, v: -k * (x - r) - 2 * v}), {x: 0.0, v: 0.0})
    m.functional("J", integrand=(x - r) ** 2)
    system = m.build()
    for end in (541.0, 637.0, 982.8282828282828):
        asa = dh.adjoint_gradient(system, (0, end), max_steps=20_000)
        assert asa.gradient == pytest.approx([-0.25, 1.5], rel=1e-6)


def test_derivatives_by_entries_of_a_vector() -> None:
    """G = exp(-k0 - 2 k1)."""
    m = dh.HybridModel("entries")
    k, x = m.parameter("k", [0.3, 0.2]), m.differential("x", size=2)
    m.initial(m.mode("run", ode={x: ca.vertcat(-k[0] * x[0], -2 * k[1] * x[1])}), {x: [1.0, 1.0]})
    m.functional("G", terminal=x[0] * x[1])
    system, exact = m.build(), np.exp(-0.7) * np.array([-1.0, -2.0])
    found = dh.adjoint_gradient(system, (0, 1), wrt=["k[1]", "k[0]"], rtol=1e-10)
    assert found.parameters == ("k[1]", "k[0]")
    np.testing.assert_allclose(found.gradient, exact[::-1], rtol=1e-8)
    forward = dh.forward_sensitivity(system, (0, 1), wrt="k[1]", rtol=1e-10)
    np.testing.assert_allclose(forward.gradient["G"], exact[1:], rtol=1e-8)
    for wrong, words in (("k[2]", "unknown parameter"), (["k", "k[0]"], "twice"), (["k[0]", "k"], "twice")):
        with pytest.raises(dh.ParameterError, match=words):
            dh.adjoint_gradient(system, (0, 1), wrt=wrong)


CANCELLING: dict[str, Any] = {
    "opposite": lambda a, b, u: (a - b) * sum(u),
    "shares": lambda a, b, u: a * u[0] + b * (1 - u[0]),
    "a ratio": lambda a, b, u: a / b * sum(u),
}


def cancelling(name: str, *, native: bool = True) -> dh.HybridSystem:
    """A state that follows algebraic variables, at a rate that depends on a ratio or a difference of parameters."""
    m = dh.HybridModel("cancelling")
    a, b, x = m.parameter("a", 2.0), m.parameter("b", 2.0), m.differential("x")
    u = [m.algebraic(f"u{k}", guess=0.0) for k in range(5)]
    known = [z + 0.1 * z**3 - (1 + 0.1 * k) * ca.sin(m.time) for k, z in enumerate(u)]
    m.initial(m.mode("run", ode={x: CANCELLING[name](a, b, u)}, algebraic=known), {x: 0.0})
    m.functional("G", terminal=x)
    return m.build(native=native, eliminate=False)


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("name", CANCELLING)
def test_integrands_that_cancel_are_resolved_one_by_one(name: str, native: bool) -> None:
    """The integrands of a and b are opposite: lambda is constant there, and steps were chosen by their sum, zero."""
    system = cancelling(name, native=native)
    exact = dh.forward_sensitivity(system, (0, 6), rtol=1e-9, atol=1e-11).gradient["G"]
    found = dh.adjoint_gradient(system, (0, 6), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.gradient, exact, rtol=1e-4)
    assert found.statistics["steps"] < 1000


@pytest.mark.parametrize("name", CANCELLING)
def test_errors_that_cancel_are_seen_by_duality(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With steps chosen by that sum, derivatives by a and b are off by 2 %, with opposite signs."""
    system = cancelling(name)
    options: dict[str, Any] = {"rtol": 1e-7, "atol": 1e-9, "duality": True}
    right = dh.adjoint_gradient(system, (0, 6), "G", **options).duality
    assert right is not None
    assert right.passed
    monkeypatch.setattr("dae_hybrid.adapters.sundials.adjoint.unlike_shares", np.ones)
    for check in (dh.adjoint_gradient, dh.forward_sensitivity):
        with pytest.raises(dh.DualityError, match="differ by"):
            check(system, (0, 6), **options)
