"""Singular matrices of capacitances and masses: refused at build, group by group, with a way out that works."""

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.errors import FormulationError


def ladder(groups: int, *, grounded: tuple[int, ...] = (), bent: bool = False) -> dh.HybridModel:
    """Pairs of nodes, each joined by a capacitor and each with a resistor to ground; some have one to ground too.

    Without that the two rows of [[c, -c], [-c, c]] depend on each other, and c may depend on the voltage.
    """
    m = dh.HybridModel("ladder")
    c, r = m.parameter("c", 1e-9), m.parameter("r", 1e3)
    residual, start = [], {}
    for k in range(groups):
        a, b = m.differential(f"a{k}"), m.differential(f"b{k}")
        capacitance = c * (1 + (a - b) ** 2) if bent else c
        through = capacitance * (m.der(a) - m.der(b))
        to_ground = c * m.der(b) if k in grounded else 0
        residual += [through + a / r - 1e-3 * ca.sin(m.time), -through + to_ground + b / r]
        start |= {a: 0.0, b: 0.0}
    only = m.mode("only", residual=residual)
    m.initial(only, start)
    m.functional("G", terminal=sum(start))
    return m


@pytest.mark.parametrize("bent", [False, True])
def test_each_group_is_named_by_itself(bent: bool) -> None:
    with pytest.raises(FormulationError, match="singular whatever the values") as caught:
        ladder(4, grounded=(1, 3), bent=bent).build()
    text = str(caught.value)
    for k in (0, 2):
        rows = f"residual equation {2 * k}, residual equation {2 * k + 1}"
        assert f"{rows} depend on each other, which leaves der(a{k}), der(b{k}) open (1 too few)" in text
    assert "a1" not in text
    assert "b3" not in text
    assert caught.value.variables == ("der(a0)", "der(b0)", "der(a2)", "der(b2)")
    assert "across its capacitors" in text
    assert "algebraic" in text


def test_a_long_list_is_cut_short() -> None:
    with pytest.raises(FormulationError) as caught:
        ladder(60).build()
    assert len(str(caught.value)) < 2500
    assert "and 52 more" in str(caught.value)


def test_what_is_regular_builds() -> None:
    for bent in (False, True):
        dh.simulate(ladder(2, grounded=(0, 1), bent=bent).build(), (0, 1e-4))


def test_the_way_out() -> None:
    """c w' + a/r = s, -c w' + (a - w)/r = 0: a = (w + r s) / 2 and 2 r c w' + w = r s, by the voltage w = a - b."""
    m = dh.HybridModel("way out")
    c, r, s = m.parameter("c", 1e-3), m.parameter("r", 1e3), m.parameter("s", 2e-3)
    w, a = m.differential("w"), m.algebraic("a")
    only = m.mode("only", residual=[c * m.der(w) + a / r - s, -c * m.der(w) + (a - w) / r])
    m.initial(only, {w: 0.0})
    m.functional("G", terminal=a)
    found = dh.adjoint_gradient(m.build(), (0, 1), "G", rtol=1e-10)
    left = np.exp(-0.5)
    assert found.value == pytest.approx((2.0 * (1 - left) + 2.0) / 2)
    assert found.gradient[2] == pytest.approx(1e3 * (2 - left) / 2)


def test_masses() -> None:
    """A mass matrix that depends on the place, of rank one everywhere."""
    m = dh.HybridModel("masses")
    q, v = m.differential("q", size=2), m.differential("v", size=2)
    dq, dv = m.der(q), m.der(v)
    direction = ca.vertcat(ca.cos(q[0]), ca.sin(q[0]))
    residual = [dq - v, direction * ca.dot(direction, dv) + q]
    only = m.mode("only", residual=residual)
    m.initial(only, {q: [0.1, 0.2], v: [0.0, 0.0]})
    m.functional("G", terminal=q[0])
    with pytest.raises((FormulationError, dh.ConsistencyError), match="singular"):
        dh.simulate(m.build(), (0, 1))


def test_a_matrix_that_is_singular_somewhere_is_left_to_the_run() -> None:
    m = dh.HybridModel("somewhere")
    x, y = m.differential("x"), m.differential("y")
    only = m.mode("only", residual=[m.der(x) + m.der(y) - 1, x * m.der(x) + m.der(y) - y])
    m.initial(only, {x: 0.0, y: 0.5})
    m.functional("G", terminal=x)
    assert dh.simulate(m.build(), (0, 0.1)).functionals["G"] > 0
