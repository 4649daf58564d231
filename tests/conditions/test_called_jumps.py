"""Jumps of functions that nobody can look into: derivatives across them are refused, values are told of."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh


class Called(ca.Callback):
    """A function of one number with its derivative, in Python."""

    def __init__(self, name: str, value: Callable[[float], float], slope: Callable[[float], float]) -> None:
        ca.Callback.__init__(self)
        self.value, self.slope = value, slope
        self.inner: list[Called] = []
        self.construct(name, {"enable_fd": True} if name.startswith("jac") else {})

    def get_n_in(self) -> int:
        return 2 if self.name().startswith("jac") else 1

    def get_n_out(self) -> int:
        return 1

    def eval(self, arguments: Any) -> list[float]:
        return [self.value(float(arguments[0]))]

    def has_jacobian(self) -> bool:
        return not self.name().startswith("jac")

    def get_jacobian(self, name: str, *_: Any) -> ca.Function:
        self.inner.append(Called(f"jac_{name}", self.slope, lambda _: 0.0))
        return self.inner[-1]


def moved(function: Callable[[Any], Any], place: str = "equation", **build: Any) -> dh.HybridSystem:
    """x' = p from -1, and G the integral of f(x): dG/dp = -G + 5 f(4) at p = 1 to t = 5."""
    m = dh.HybridModel("called")
    p, x, y = m.parameter("p", 1.0), m.differential("x"), m.differential("y")
    value = function(x)
    if place == "algebraic":
        z = m.algebraic("z")
        run = m.mode("run", ode={x: p, y: z}, residual=[z + 0 * z**3 - value])
    else:
        run = m.mode("run", ode={x: p, y: value if place == "equation" else 0.0})
    m.initial(run, {x: -1.0, y: 0.0})
    m.functional("G", **({"integrand": value} if place == "integrand" else {"terminal": y}))
    return m.build(**{"native": False} | build)


step = Called("step", lambda u: 1.0 if u > 0.3 else -1.0, lambda u: 0.0)
small = Called("small", lambda u: math.sin(u) + (1e-3 if u > 0.3 else 0.0), math.cos)
steep = Called(
    "steep", lambda u: math.tanh(200 * (u - 0.3)), lambda u: 200 / math.cosh(min(200 * abs(u - 0.3), 50)) ** 2
)
in_steep = Called("in_steep", lambda u: steep.value(u) - (0.01 if u > 0.3 else 0.0), steep.slope)
kink = Called("kink", lambda u: abs(u - 0.3), lambda u: math.copysign(1.0, u - 0.3))
root = Called("root", lambda u: math.copysign(abs(u - 0.3) ** 1.5, u - 0.3), lambda u: 1.5 * abs(u - 0.3) ** 0.5)


@pytest.mark.parametrize("options", [{}, {"method": "bdf"}, {"adapter": "scipy"}, {"adapter": "casadi"}], ids=str)
@pytest.mark.parametrize("function", [step, small, in_steep], ids=lambda f: str(f.name()))
def test_a_jump_is_refused(function: Called, options: dict[str, Any]) -> None:
    system = moved(function)
    with pytest.raises(dh.EventError, match=f"'{function.name()}', a function that nobody can look into, jumps"):
        dh.forward_sensitivity(system, (0, 5), **options)
    with pytest.raises(dh.EventError, match="Derivatives leave out how that instant moves"):
        dh.adjoint_gradient(system, (0, 5), "G", rtol=1e-8, atol=1e-10, **options)


@pytest.mark.parametrize("place", ["integrand", "equation"])
def test_a_jump_is_found_in_every_way_to_call(place: str) -> None:
    system = moved(step, place)
    sol = dh.simulate(system, (0, 5))
    assert not sol.diagnostics.check("called functions").passed
    assert "jumps from -1 to 1 at t = 1.3 in mode 'run'" in sol.diagnostics[-1]
    for derivatives in ("forward", "adjoint"):
        case = dh.prepare(system, (0, 5), functional="G", derivatives=derivatives)
        with pytest.raises(dh.EventError, match="jumps from -1 to 1"):
            case([1.0])
    with pytest.warns(dh.DerivativeWarning, match="jumps from -1 to 1"):
        dh.forward_sensitivity(system, (0, 5), strict=False)


@pytest.mark.parametrize("place", ["equation", "integrand", "algebraic"])
@pytest.mark.parametrize("function", [steep, kink, root], ids=lambda f: str(f.name()))
def test_what_does_not_jump_is_not_refused(function: Called, place: str) -> None:
    parts = np.linspace(-1, 4, 200_001)
    exact = -np.trapezoid(np.vectorize(function.value)(parts), parts) + 5 * function.value(4.0)
    system = moved(function, place)
    for rtol in (1e-4, 1e-8):
        asa = dh.adjoint_gradient(system, (0, 5), "G", rtol=rtol, atol=rtol * 1e-2)
        assert np.isclose(asa.gradient[0], exact, rtol=200 * rtol)
        assert asa.diagnostics.check("called functions").passed


def test_a_jump_that_is_not_met_or_is_marked_is_not_refused() -> None:
    never = Called("never", lambda u: 1.0 if u > 4.5 else 0.0, lambda u: 0.0)
    fsa = dh.forward_sensitivity(moved(never), (0, 5))
    assert np.allclose(fsa.gradient["G"], 0)
    marked = dh.forward_sensitivity(moved(lambda x: dh.smooth(step(x))), (0, 5))
    assert marked.gradient["G"] == pytest.approx(
        -2.4 + 5 - 2 * 1.3, abs=1e-3
    )  # without what the jump adds: the user's word


def test_a_root_finder_that_changes_its_root() -> None:
    """Newton's method for z**2 = 1 finds the root on the side of its guess."""
    z, u = ca.SX.sym("z"), ca.SX.sym("u")
    solve = ca.rootfinder("solve", "fast_newton", {"x": z, "p": u, "g": z**2 - u}, {"max_iter": 200})
    with pytest.raises(dh.EventError, match="'solve', a function that nobody can look into, jumps"):
        dh.forward_sensitivity(moved(lambda x: solve(x - 0.31, 1.0), native=True), (0, 5))
    fsa = dh.forward_sensitivity(moved(lambda x: solve(2.0, 1 + x**2), native=True), (0, 5))
    integral = lambda x: (x * math.sqrt(1 + x**2) + math.asinh(x)) / 2
    assert np.isclose(fsa.gradient["G"][0], -(integral(4) - integral(-1)) + 5 * math.sqrt(17), rtol=1e-5)


SHAPES: dict[str, Callable[[float, float], tuple[Callable[[float], float], Callable[[float], float]]]] = {
    "wave": lambda c, k: (lambda u: math.sin(3 * u), lambda u: 3 * math.cos(3 * u)),
    "steep": lambda c, k: (lambda u: math.tanh(k * (u - c)), lambda u: k / math.cosh(min(k * abs(u - c), 50)) ** 2),
    "kink": lambda c, k: (lambda u: abs(u - c), lambda u: math.copysign(1.0, u - c)),
    "root": lambda c, k: (
        lambda u: math.copysign(abs(u - c) ** 1.5, u - c),
        lambda u: 1.5 * abs(u - c) ** 0.5,
    ),
}


def judged(seed: int) -> str:
    """An oscillator beside a called function, which may jump: 'right', or what is wrong with the answer."""
    rng = np.random.default_rng(seed)
    level, height, jumps = rng.uniform(-0.8, 0.8), rng.choice([-1, 1]) * 10 ** rng.uniform(-3, 0.5), rng.random() < 0.5
    smooth, slope = SHAPES[str(rng.choice(list(SHAPES)))](level, 10 ** rng.uniform(0, 3))
    value = (lambda u: smooth(u) + (height if u > level else 0.0)) if jumps else smooth
    called = Called(f"called{seed}", value, slope)
    m = dh.HybridModel("random")
    w, x, v, y = m.parameter("w", rng.uniform(0.3, 2)), *(m.differential(name) for name in "xvy")
    place = str(rng.choice(["rate", "force", "integrand"]))
    force = 0.2 * called(x) if place == "force" else 0.0
    run = m.mode("run", ode={x: v, v: force - w**2 * x - 0.1 * v, y: called(x) if place == "rate" else x})
    m.initial(run, {x: 1.0, v: 0.0, y: 0.0})
    m.functional("G", **({"integrand": called(x) * x} if place == "integrand" else {"terminal": y + x}))
    system, end, rtol = m.build(native=False), rng.uniform(3, 8), 10 ** -rng.uniform(6, 9)
    ways: list[dict[str, Any]] = [
        {},
        {"method": "bdf"},
        {"method": "adams"},
        {"adapter": "scipy"},
        {"adapter": "casadi"},
    ]
    options = {"rtol": rtol, "atol": rtol / 100, **ways[int(rng.integers(len(ways)))]}
    try:
        positions = dh.forward_sensitivity(system, (0, end), **options).trajectory["x"]
    except dh.EventError as error:
        return "right" if jumps and "jumps from" in str(error) else f"needless: {error}"
    crosses = positions.min() < level - 1e-4 and positions.max() > level + 1e-4
    return "missed" if jumps and crosses else "right"


@pytest.mark.campaign
@pytest.mark.parametrize("start", range(0, 100, 20))
def test_many_seeds_are_refused_where_they_jump_and_nowhere_else(start: int) -> None:
    found = {seed: judged(seed) for seed in range(start, start + 20)}
    assert not {seed: said for seed, said in found.items() if said != "right"}
