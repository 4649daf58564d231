"""Constraints of index 2 that contain variables of index 1, beside the same problem without these variables."""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh

TIGHT = {"rtol": 1e-9, "atol": 1e-10}
FORMS = ("substituted", "explicit", "implicit", "residual")


def bead(form: str) -> dh.HybridModel:
    """A bead on a circle whose radius grows with time, kept at the level of velocities, with an impact at x = 0.

    The constraint is (y . v) e^(-t / 5) = c(t). In all forms but the first it is stated by r = g(y . v), in the
    implicit ones by g^-1.
    """
    m = dh.HybridModel(f"bead, {form}")
    size, gravity, growth = m.parameter("L", 1.0), m.parameter("g", 9.81), m.parameter("c", 0.2)
    x, y, u, v = (m.differential(name) for name in "xyuv")
    pull = m.algebraic("pull")
    speed, target = x * u + y * v, growth * ca.sin(m.time)
    forces = {u: -x * pull, v: -gravity - y * pull}
    if form == "substituted":
        run = m.mode("run", ode={x: u, y: v, **forces}, constraint=[speed - target])
    else:
        r = m.algebraic("r", guess=0.1)
        equation = r - 2 * speed if form == "explicit" else r + r**3 - 2 * speed
        value = r / 2 if form == "explicit" else (r + r**3) / 2
        rows = [equation]
        if form == "residual":
            ode: dict[Any, Any] = {x: u, y: v}
            residual = [2 * (m.der(u) + x * pull), m.der(v) + gravity + y * pull]
            run = m.mode("run", ode=ode, residual=residual, algebraic=rows, constraint=[value - target])
        else:
            run = m.mode("run", ode={x: u, y: v, **forces}, algebraic=rows, constraint=[value - target])
    m.transition(run, run, guard=x, direction="falling", reset={u: -0.5 * u})
    m.initial(run, {x: 0.6 * size, y: -0.8 * size, u: 0.8})
    m.functional("G", integrand=pull, terminal=x * pull)
    return m


@pytest.mark.parametrize("index2", ["reduced", "direct"])
@pytest.mark.parametrize("form", FORMS[1:])
def test_the_numbers_are_those_without_the_variable(form: str, index2: Any) -> None:
    options: dict[str, Any] = TIGHT
    plain, coupled = bead("substituted").build(), bead(form).build(index2=index2)
    value, other = (dh.simulate(s, (0, 1.5), **options).functionals["G"] for s in (coupled, plain))
    assert np.isclose(value, other, rtol=1e-6)
    check = dh.check_gradient(coupled, (0, 1.5), "G", **options)
    reference = dh.forward_sensitivity(plain, (0, 1.5), **options).gradient["G"]
    assert check.difference("adjoint", "forward") < 1e-6, check
    assert check.difference("finite_difference", "forward") < 1e-4, check
    assert np.allclose(check.gradients["forward"], reference, rtol=1e-5)
    adjoint, same = (dh.adjoint_gradient(s, (0, 1.5), "G", **options).adjoint(0.1) for s in (coupled, plain))
    assert np.isclose(adjoint["x"], same["x"], rtol=1e-5)


@pytest.mark.parametrize("options", [{"native_events": False}, {"adapter": "scipy"}])
def test_another_engine_gives_the_same(options: dict[str, Any]) -> None:
    system = bead("implicit").build()
    one = dh.forward_sensitivity(system, (0, 1.5), **TIGHT)
    other = dh.forward_sensitivity(system, (0, 1.5), **TIGHT, **options)
    assert len(one.events) == len(other.events) == 1
    assert np.allclose(one.gradient["G"], other.gradient["G"], rtol=1e-6)


def test_a_run_stays_on_the_constraint() -> None:
    sol = dh.simulate(bead("implicit").build(), (0, 1.5), rtol=1e-6, atol=1e-6)
    x, y, u, v, r = (sol[name] for name in ("x", "y", "u", "v", "r"))
    assert np.allclose((r + r**3) / 2, 0.2 * np.sin(sol.t), atol=1e-9)
    assert np.allclose(x * u + y * v, 0.2 * np.sin(sol.t), atol=1e-9)


def kinked(offset: str) -> dh.HybridModel:
    """y = c t - |x - a| by r = |x - a| and a multiplier z = y', which jumps where x passes a."""
    m = dh.HybridModel("kink")
    a, c = m.parameter("a", 0.7), m.parameter("c", 0.3)
    x, y, z, r = m.differential("x"), m.differential("y"), m.algebraic("z"), m.algebraic("r")
    size = ca.fabs(x - a)
    given, kept = (size, r) if offset == "of the variable" else (x - a, ca.fabs(r))
    run = m.mode("run", ode={x: 1.0, y: z}, algebraic=[r - given], constraint=[kept + y - c * m.time])
    m.initial(run, {x: 0.0})
    m.functional("G", integrand=(z - 1) ** 2)
    return m


@pytest.mark.parametrize("offset", ["of the variable", "of the constraint"])
def test_a_kink_is_an_event(offset: str) -> None:
    """G = a c^2 + (1 - a) (c - 2)^2 at t = 1."""
    asa = dh.adjoint_gradient(kinked(offset).build(), (0, 1), "G", **TIGHT)
    a, c = 0.7, 0.3
    assert np.isclose(asa.value, a * c**2 + (1 - a) * (c - 2) ** 2, rtol=1e-8)
    assert np.allclose(asa.gradient, [c**2 - (c - 2) ** 2, 2 * a * c + 2 * (1 - a) * (c - 2)], rtol=1e-6)


def test_a_variable_that_depends_on_a_multiplier_is_refused() -> None:
    m = dh.HybridModel("refused")
    y, z, r = m.differential("y"), m.algebraic("z"), m.algebraic("r")
    m.initial(m.mode("run", ode={y: z}, algebraic=[r - z], constraint=[("level", r - y)]), {y: 1.0})
    with pytest.raises(dh.FormulationError, match="Level contains r, which the equations without multipliers do not"):
        m.build()


def test_index_3_is_refused() -> None:
    m = dh.HybridModel("index 3")
    x, v, z, r = m.differential("x"), m.differential("v"), m.algebraic("z"), m.algebraic("r")
    m.initial(m.mode("run", ode={x: v, v: z}, algebraic=[r - x**2], constraint=[r - 1]), {x: 1.0, v: 0.0})
    with pytest.raises(dh.FormulationError, match="the index is 3 or higher"):
        m.build()


def rope(how: str, *, coupled: bool) -> dh.HybridModel:
    """A ball flies until a rope is taut; its velocity then follows a constraint with a memory.

    The coupled form states the constraint by q, which an implicit equation with a signal determines.
    """
    m = dh.HybridModel(f"rope {how} {coupled}")
    length, turns = m.parameter("L", 1.0), m.memory("turns", initial=1.0)
    x, y, u, v = (m.differential(name) for name in "xyuv")
    pull, gravity = m.algebraic("pull"), m.signal("g", [0.0, 0.5, 1.1, 3.0], [9.0, 10.0, 9.5, 9.8])
    kept = x * u + y * v - 0.1 * turns
    rows: dict[str, Any] = {"constraint": [kept]}
    if coupled:
        q = m.algebraic("q")
        rows = {"algebraic": [q + 0.3 * ca.sin(q) + 0.1 * q**3 - kept * (1 + 0.2 * gravity)], "constraint": [q]}
    free = m.mode("free", ode={x: u, y: v, u: 0.0, v: -gravity})
    taut = m.mode("taut", ode={x: u, y: v, u: -x * pull, v: -gravity - y * pull}, **rows)
    impulse = m.unknown("P")
    arrival: dict[str, Any] = {"project": [u, v]}
    if how == "implicit":
        arrival = {"reset": [m.post(u) - u - x * impulse, m.post(v) - v - y * impulse]}
    m.transition(free, taut, guard=x**2 + y**2 - length**2, direction="rising", memory={turns: turns + 1}, **arrival)
    m.transition(taut, free, at=1.3)
    m.initial(free, {x: 0.3, y: -0.2, u: 0.5, v: 0.0})
    m.functional("G", integrand=u**2 + y, terminal=x + v)
    return m


@pytest.mark.parametrize("index2", ["reduced", "direct"])
@pytest.mark.parametrize("how", ["project", "implicit"])
def test_a_mode_is_entered_by_a_projection_or_an_impact(how: str, index2: Any) -> None:
    plain = dh.forward_sensitivity(rope(how, coupled=False).build(), (0, 1.8), **TIGHT)
    system = rope(how, coupled=True).build(index2=index2)
    check = dh.check_gradient(system, (0, 1.8), "G", **TIGHT)
    assert np.isclose(check.value, plain.trajectory.functionals["G"], rtol=1e-7)
    assert np.allclose(check.gradients["forward"], plain.gradient["G"], rtol=1e-6)
    assert check.difference("adjoint", "forward") < 1e-6, check
