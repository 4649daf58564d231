"""Powers of a base that is zero: dG/dn of x^n, in closed form."""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dae_hybrid as dh
from dae_hybrid.compile.powers import power, with_powers

END = 1.7


def ramp(*, native: bool) -> dh.HybridSystem:
    """x = t and y' = k x^n, which is k t^(n + 1) / (n + 1), of two states at once, and z' = (x^n)^(n + 1)."""
    m = dh.HybridModel("ramp")
    k, n = m.parameter("k", 1.3), m.parameter("n", 2.4)
    x, y, z = m.differential("x", size=2), m.differential("y", size=2), m.differential("z")
    m.initial(m.mode("run", ode={x: ca.DM([1, 1]), y: k * x**n, z: (x[0] ** n) ** (n + 1)}), {x: 0.0, y: 0.0, z: 0.0})
    m.functional("G", terminal=y[0] + y[1])
    m.functional("H", terminal=z)
    return m.build(native=native)


def growth(n: float) -> np.ndarray:
    """END^(n + 1) / (n + 1) and its derivative by n."""
    whole = END ** (n + 1) / (n + 1)
    return np.array([whole, whole * (np.log(END) - 1 / (n + 1))])


WAYS: list[dict[str, Any]] = [
    *({"method": method} for method in ("bdf", "adams", "erk")),
    *({"adapter": adapter} for adapter in ("scipy", "casadi")),
]


@pytest.mark.parametrize(("way", "native"), [*((way, True) for way in WAYS), (WAYS[0], False)], ids=str)
def test_gradients_in_closed_form(way: dict[str, Any], native: bool) -> None:
    """The last way back to zero is that of an interpolant, which must not be below zero by rounding."""
    system, options = ramp(native=native), {"rtol": 1e-9, "atol": 1e-12, **way}
    for n in (1.0, 1.5, 2.0, 2.4):
        own, nested = growth(n), growth(n * (n + 1))
        expected = {"G": [2 * own[0], 2.6 * own[1]], "H": [0.0, (2 * n + 1) * nested[1]]}
        fsa = dh.forward_sensitivity(system, (0, END), parameters={"n": n}, **options)
        for name, gradient in expected.items():
            asa = dh.adjoint_gradient(system, (0, END), name, parameters={"n": n}, **options)
            for found in (fsa.gradient[name], asa.gradient):
                np.testing.assert_allclose(found, gradient, rtol=1e-6, atol=1e-6)


@given(st.floats(0.1, 9.0), st.floats(-3.0, 3.0))
def test_away_from_zero_it_is_the_power_to_the_last_bit(base: float, exponent: float) -> None:
    x, n = ca.MX.sym("x"), ca.MX.sym("n")
    by = ca.vertcat(x, n)
    own, plain = (ca.Function("f", [x, n], [v, ca.gradient(v, by)]) for v in (power(x, n), x**n))
    for one, other in zip(own(base, exponent), plain(base, exponent), strict=True):
        np.testing.assert_array_equal(np.array(one), np.array(other))


def test_numbers_as_exponents_stay_as_they_are() -> None:
    x = ca.MX.sym("x", 2)
    function = ca.Function("f", [x], [x**2.5 + x**2])
    assert with_powers(function) is function
