"""Random hybrid systems whose solution is known in closed form, in situations that are hard to get right.

Contacts of several bodies at one instant, lift-offs, entries past several thresholds, singular points of algebraic
equations on the way, guards on derivatives of stiff states. A seed fixes a system; `truth` evaluates its cost in
complex arithmetic, so that one complex step gives each derivative to rounding.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from verdicts import Verdict

import dae_hybrid as dh
from dae_hybrid.mechanics import Index1, Index2, Mechanism, Reduced
from dae_hybrid.trajectory.diagnostics import ACCURACY

Vector = np.ndarray
STEP = 1e-30  # of complex differentiation: no difference is taken
#: errors allowed at rtol 1e-7 or less, relative to 1 + |value| and to the largest component of the gradient
VALUE_ERROR, GRADIENT_ERROR = 1e-5, 1e-4
#: times as much where the rate of a guard multiplies the errors of the state by the square of its stiffness: a run says
#: that of an event when the state follows within a fortieth of the run
AMPLIFIED = 10.0


@dataclass(frozen=True)
class ClosedForm:
    """A system with the true cost as a function of its parameters; `truth` is None where a run must be refused."""

    family: str
    build: Callable[..., dh.HybridSystem]
    span: tuple[float, float]
    parameters: Vector
    truth: Callable[[Vector], complex] | None
    refusals: tuple[type[dh.DaeHybridError], ...] = ()  # by which a run may be refused
    unlike: tuple[type[Exception], ...] = ()  # by which derivatives may be refused, or said to be doubtful
    unlike_adjoint: tuple[type[Exception], ...] = ()  # likewise, of the adjoint
    is_one_sided: bool = False  # derivatives must be refused as one-sided, or said to be
    options: Mapping[str, Any] = field(default_factory=dict)  # of runs
    amplifies: bool = False  # the guard, errors of the state: digits may be missing where the answer says so

    def gradient(self) -> Vector:
        """dG/dp by complex steps."""
        assert self.truth is not None
        steps = STEP * 1j * np.eye(self.parameters.size)
        return np.array([self.truth(self.parameters + step).imag / STEP for step in steps])


def balls(rng: np.random.Generator) -> ClosedForm:
    """Equal elastic balls on a line exchange velocities: sorted, they are where free particles would be.

    Positions and velocities are small integers, so that contacts of three and more at one instant, chains of contacts
    and contacts at the start are common.
    """
    n, end = int(rng.integers(3, 6)), 0.0
    while True:
        x0 = np.sort(rng.integers(0, 2 * n, n)).astype(float)
        v0 = rng.integers(-2, 3, n).astype(float)
        end = round(float(rng.uniform(1, 5)), 2)
        x, apart = np.sort(x0 + end * v0), np.diff(x0) > 0
        if np.diff(x).min() > 0.02 and (apart | (np.diff(v0) >= 0) | (rng.random() < 0.2)).all():
            break
    weights = rng.uniform(-1, 1, n).round(2)
    order = rng.permutation(n - 1)

    def build(**options: Any) -> dh.HybridSystem:
        m = dh.HybridModel("balls")
        start = [m.parameter(f"x0_{i}", x0[i]) for i in range(n)]
        speed = [m.parameter(f"v0_{i}", v0[i]) for i in range(n)]
        x, v = [m.differential(f"x{i}") for i in range(n)], [m.differential(f"v{i}") for i in range(n)]
        fly = m.mode("fly", ode={**dict(zip(x, v, strict=True)), **dict.fromkeys(v, 0.0)})
        for i in order:
            swap = {v[i]: v[i + 1], v[i + 1]: v[i]}
            m.transition(fly, fly, guard=x[i + 1] - x[i], direction="falling", reset=swap, name=f"hit{i}")
        m.initial(fly, {**dict(zip(x, start, strict=True)), **dict(zip(v, speed, strict=True))})
        m.functional("G", terminal=sum(w * q for w, q in zip(weights, x, strict=True)))
        return m.build(**options)

    def truth(p: Vector) -> complex:
        x = p[:n] + end * p[n:]
        return complex(weights @ x[np.argsort(x.real)])

    # two balls that touch at the start and part at other parameters: the contact exists on one side only
    touching = bool((np.diff(x0) == 0).any())
    unlike = (dh.EventError,) if touching else ()
    return ClosedForm("balls", build, (0.0, end), np.concatenate([x0, v0]), truth, unlike=unlike)


def lift_off(rng: np.random.Generator) -> ClosedForm:
    """A mass on a table that shakes: it lifts off where the table accelerates downwards with g, and lands again.

    The cost is the time of the landing. The gap and its first two rates are zero at lift-off.
    """
    A, w, g = round(float(rng.uniform(0.2, 0.6)), 3), round(float(rng.uniform(6, 12)), 3), 9.81
    A = max(A, 1.3 * g / w**2)
    form = [Index2(), Reduced(), Index2(), Index1(xi=1, omega=20)][int(rng.integers(4))]
    slide = float(rng.integers(0, 2))
    p0 = np.array([A, w, g])

    def times(p: Vector) -> tuple[complex, complex]:
        A, w, g = p
        lift = np.arcsin(g / (A * w**2)) / w

        def gap(t: Any) -> Any:
            s = t - lift
            height = A * np.sin(w * lift) + A * w * np.cos(w * lift) * s - g * s**2 / 2
            return height - A * np.sin(w * t)

        def rate(t: Any) -> Any:
            return A * w * np.cos(w * lift) - g * (t - lift) - A * w * np.cos(w * t)

        grid = lift.real + np.linspace(0.02, 3, 20_000) * 2 * np.pi / w.real
        land = complex(grid[np.argmax(gap(grid).real < 0)])
        for _ in range(20):
            land -= gap(land) / rate(land)
        return complex(lift), land

    end = times(p0.astype(complex))[1].real + 0.02 / w

    def build(**options: Any) -> dh.HybridSystem:
        mech = Mechanism("table")
        A, w, g = (mech.parameter(name, value) for name, value in zip("Awg", p0, strict=True))
        x, y = mech.coordinate("x"), mech.coordinate("y")
        mech.inertia([x, y], np.eye(2))
        mech.force({y: -g})
        surface = A * np.sin(w * mech.time)
        on, fly = mech.mode("on"), mech.mode("fly")
        push = on.constraint("table", surface - y)  # the multiplier is the force on the mass
        mech.event(on, fly, guard=push, direction="falling", name="lift")
        landing = mech.event(fly, on, guard=y - surface, direction="falling", name="land")
        mech.initial(on, {x: 0.0, y: 0.0}, {mech.velocity(x): slide, mech.velocity(y): A * w})
        mech.functional("G", at_events={landing: mech.time})
        return mech.build(form, **options)

    return ClosedForm(f"lift-off, {type(form).__name__}", build, (0.0, end), p0, lambda p: times(p.astype(complex))[1])


def entries(rng: np.random.Generator) -> ClosedForm:
    """A jump puts several guards past their thresholds, all of which fire on entry, in order of declaration.

    Each maps a number r to a r + b and moves its own quantity back before its threshold, or another one past its own.
    """
    n = int(rng.integers(2, 5))
    level = rng.integers(0, 3, n).astype(float)
    jump = rng.integers(-1, 4, n) + 0.5
    a, b = rng.uniform(0.5, 1.5, n).round(2), rng.uniform(-1, 1, n).round(2)
    # transition i may push a later or an earlier quantity past its threshold, once: its own ends far below
    pushed = [int(rng.integers(n)) if rng.random() < 0.4 else i for i in range(n)]
    at_start = bool(rng.random() < 0.3)
    p0 = np.concatenate([a, b])
    if not (jump > level).any():
        jump[0] = level[0] + 0.5

    def fire(r: complex, p: Vector) -> complex:
        q = jump.copy()
        while (due := np.flatnonzero(q > level)).size:
            i = int(due[0])
            r = p[i] * r + p[n + i]
            q[i] = -9.0
            if pushed[i] != i and q[pushed[i]] > -9.0:
                q[pushed[i]] = level[pushed[i]] + 0.25
        return complex(r)

    def build(**options: Any) -> dh.HybridSystem:
        m = dh.HybridModel("entries")
        a, b = m.parameter("a", p0[:n]), m.parameter("b", p0[n:])
        age, r = m.differential("age"), m.differential("r")
        q = [m.differential(f"q{i}") for i in range(n)]
        still = {age: 1.0, r: 0.0, **dict.fromkeys(q, 0.0)}
        before, after = m.mode("before", ode=still), m.mode("after", ode=still)
        m.transition(before, after, guard=age - 1, direction="rising", reset=dict(zip(q, jump, strict=True)))
        for i in range(n):
            j = pushed[i]
            reset = {r: a[i] * r + b[i], q[i]: -9.0}
            if j != i:  # one that has fired stays where it is
                reset[q[j]] = q[j] + (q[j] > -8) * (level[j] + 0.25 - q[j])
            m.transition(
                after, after, guard=q[i] - level[i], direction="rising", on_entry="fire", reset=reset, name=f"past{i}"
            )
        first = {age: 0.0, r: 1.0, **{q[i]: jump[i] if at_start else -9.0 for i in range(n)}}
        m.initial(after if at_start else before, first)
        m.functional("G", terminal=r)
        return m.build(**options)

    return ClosedForm("entries", build, (0.0, 2.0), p0, lambda p: fire(1.0 + 0j, p))


def singular(rng: np.random.Generator) -> ClosedForm:
    """Algebraic equations whose matrix is singular at c: refused after it, right before it."""
    c, k = round(float(rng.uniform(0.5, 1.5)), 3), round(float(rng.uniform(0.5, 2)), 3)
    beyond, eliminate = bool(rng.random() < 0.7), bool(rng.random() < 0.5)
    end = c + 0.7 if beyond else c - 0.2
    kind = ("pole", "removable", "branches", "cubic")[int(rng.integers(4))]
    p0 = np.array([k, c])

    def build(**options: Any) -> dh.HybridSystem:
        m = dh.HybridModel("singular")
        k, c = m.parameter("k", p0[0]), m.parameter("c", p0[1])
        x, s, z = m.differential("x"), m.differential("s"), m.algebraic("z", guess=float(solution(p0 + 0j, 0.0).real))
        d = x - c
        equation = {
            "pole": d * z - k,
            "removable": d * z - k * np.sin(d),
            "branches": (z - k * d) * (z + k * d),
            "cubic": (z - k * d) * (1 + z**2) * d,
        }[kind]
        run = m.mode("run", ode={x: 1.0, s: z**2 - s}, algebraic=[equation])
        m.initial(run, {x: 0.0, s: 0.0})
        m.functional("G", terminal=z)
        return m.build(eliminate=eliminate, **options)

    def solution(p: Vector, t: float) -> complex:
        k, d = p[0], t - p[1]
        return complex({"pole": k / d, "removable": k * np.sin(d) / d}.get(kind, k * d))

    return ClosedForm(
        f"singular, {'past' if beyond else 'before'}",
        build,
        (0.0, end),
        p0,
        None if beyond else lambda p: solution(p, end),
        refusals=(dh.ConsistencyError, dh.IntegrationError, dh.FormulationError) if beyond else (),
    )


def stiff_rate(rng: np.random.Generator) -> ClosedForm:
    """A guard on the derivative of a stiff state, x' = -L (x - cos t) - sin t: it fires at arcsin(s)."""
    L, s = float(10 ** rng.uniform(1, 5)), round(float(rng.uniform(0.2, 0.8)), 3)
    p0 = np.array([s, 1.0])

    def build(**options: Any) -> dh.HybridSystem:
        m = dh.HybridModel("stiff rate")
        s, a = m.parameter("s", p0[0]), m.parameter("a", p0[1])
        x, y, t = m.differential("x"), m.differential("y"), m.time
        fast = {x: -L * (x - np.cos(a * t)) - a * np.sin(a * t)}
        up, down = m.mode("up", ode={**fast, y: 1.0}), m.mode("down", ode={**fast, y: -1.0})
        m.transition(up, down, guard=m.der(x) + s, direction="falling", name="turn")
        m.initial(up, {x: 1.0, y: 0.0})
        m.functional("G", terminal=y)
        return m.build(**options)

    def truth(p: Vector) -> complex:  # y rises to the turn and falls after it
        s, a = p
        return complex(2 * np.arcsin(s / a) / a - 1.2)

    # where the rate of the state is noise nobody knows when the guard is zero
    return ClosedForm("stiff rate", build, (0.0, 1.2), p0, truth, refusals=(dh.EventError,), amplifies=True)


def fast_guard(rng: np.random.Generator) -> ClosedForm:
    """Hundreds of crossings of a guard while the state moves evenly: all of them are counted."""
    turns = int(rng.integers(5, 500))
    T, level = 10.0, round(float(rng.uniform(-0.8, 0.8)), 3)
    p0 = np.array([1.0, level])

    def build(**options: Any) -> dh.HybridSystem:
        m = dh.HybridModel("fast guard")
        k, level = m.parameter("k", p0[0]), m.parameter("level", p0[1])
        x, n = m.differential("x"), m.memory("n", initial=0.0)
        run = m.mode("run", ode={x: k})
        wave = np.sin(2 * np.pi * turns / T * x)
        m.transition(run, run, guard=wave - level, direction="rising", memory={n: n + x}, name="count")
        m.initial(run, {x: 0.0})
        m.functional("G", terminal=n)
        return m.build(**options)

    def truth(p: Vector) -> complex:
        phase = np.arcsin(p[1]) / (2 * np.pi)
        places = (phase + np.arange(turns + 1)) * T / turns
        return complex(places[(places.real > 0) & (places.real < T * p[0].real)].sum())

    return ClosedForm("fast guard", build, (0.0, T), p0, truth)


FAMILIES: tuple[Callable[[np.random.Generator], ClosedForm], ...] = (
    balls, balls, lift_off, entries, entries, singular, stiff_rate, fast_guard,
)  # fmt: skip
#: adapters and methods that systems go through in turn, and whether their equations are compiled
WAYS: tuple[tuple[bool, dict[str, str]], ...] = (
    *((True, {"method": method}) for method in ("auto", "bdf", "adams", "erk")),
    *((False, {"method": method}) for method in ("auto", "bdf", "adams")),
    *((True, {"adapter": adapter}) for adapter in ("scipy", "casadi", "scikits-odes")),
)
TOLERANCES = (1e-8, 1e-9, 3e-10, 1e-7, 1e-10)


Families = Sequence[Callable[[np.random.Generator], ClosedForm]]


def closed_form(seed: int, families: Families = FAMILIES) -> ClosedForm:
    """The system of a seed."""
    rng = np.random.default_rng([2026, seed])
    return families[seed % len(families)](rng)


def judge_closed_form(seed: int, families: Families = FAMILIES) -> Verdict:
    """Run, differentiate both ways and compare with the closed form; seeds go through all `WAYS` in turn."""
    drawn = closed_form(seed, families)
    count = seed // len(families)
    (native, way), rtol = WAYS[count % len(WAYS)], TOLERANCES[count // len(WAYS) % len(TOLERANCES)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            outcome, stage, events = _judge(drawn, rtol, way, native)
        except Exception as error:  # whatever else comes out is a defect, and the verdict says which
            outcome, stage, events = f"DEFECT: {type(error).__name__}: {error}", "", 0
    return Verdict(
        seed=seed,
        outcome=outcome,
        stage=stage,
        events=events,
        forms=(drawn.family,),
        notes=(f"{way}, rtol {rtol:g}, native {native}",),
    )


def _judge(drawn: ClosedForm, rtol: float, way: dict[str, Any], native: bool) -> tuple[str, str, int]:
    system = drawn.build(native=native)
    options = {"parameters": drawn.parameters, "rtol": rtol, "atol": rtol / 100, **way, **drawn.options}
    try:
        sol = dh.simulate(system, drawn.span, max_events=5000, **options)
    except (dh.UnsupportedError, dh.AdapterError, *drawn.refusals) as error:
        return f"refused: {type(error).__name__}: {error}", "simulate", 0
    except dh.DaeHybridError as error:
        return f"DISAGREE refused without need: {type(error).__name__}: {error}", "simulate", 0
    count = len(sol.events)
    if drawn.truth is None:
        return f"DISAGREE not refused: G is {sol.functionals['G']}", "simulate", count
    value, gradient = drawn.truth(drawn.parameters.astype(complex)).real, drawn.gradient()
    off = abs(float(sol.functionals["G"]) - value) / (1 + abs(value))
    said = drawn.amplifies and any(c.name == ACCURACY and not c.passed for c in sol.diagnostics.checks)
    if not off <= VALUE_ERROR and said:
        return f"refused: Check: {ACCURACY}", "simulate", count
    if not off <= VALUE_ERROR:
        return f"DISAGREE G is off by {off:.1e}: {sol.functionals['G']} instead of {value}", "simulate", count
    scale = max(1.0, float(np.abs(gradient).max())) * (AMPLIFIED if drawn.amplifies else 1.0)
    verdict = "agree", "compare", count
    for stage, unlike in (("forward", drawn.unlike), ("adjoint", (*drawn.unlike, *drawn.unlike_adjoint))):
        try:
            if stage == "forward":
                found = dh.forward_sensitivity(system, drawn.span, max_events=5000, **options).gradient["G"]
            else:
                found = dh.adjoint_gradient(system, drawn.span, "G", max_events=5000, **options).gradient
        except (dh.DaeHybridError, dh.DerivativeWarning, dh.ConditionWarning) as error:
            told = drawn.is_one_sided and (isinstance(error, dh.DerivativeWarning) or getattr(error, "is_one_sided", 0))
            inaccurate = said and isinstance(error, (dh.EventError, dh.ConditionWarning))
            if not (told or inaccurate or isinstance(error, unlike)):
                return f"DISAGREE refused without need: {type(error).__name__}: {error}", stage, count
            verdict = f"refused: {type(error).__name__}: {error}", stage, count
            continue
        off = float(np.abs(found - gradient).max()) / scale
        if drawn.is_one_sided:
            return f"DISAGREE not said to be one-sided: dG/dp = {found}", stage, count
        if not off <= GRADIENT_ERROR:
            return f"DISAGREE dG/dp is off by {off:.1e}: {found} instead of {gradient}", stage, count
    return verdict
