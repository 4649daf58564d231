"""Scans: kinks and jumps where theory puts them, gaps, limits, refusals."""

from __future__ import annotations

from functools import cache
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.report.plotting import save

T, G = 2.0, 9.81


@cache
def ball() -> dh.HybridSystem:
    m = dh.HybridModel("ball")
    g, e = m.parameter("g", G), m.parameter("e", 0.8)
    y, v = m.differential("y"), m.differential("v")
    flight = m.mode("flight", ode={y: v, v: -g})
    m.transition(flight, flight, guard=y, direction="falling", reset={v: -e * v}, name="bounce")
    m.initial(flight, {y: 1.0, v: 0.0})
    m.functional("height", terminal=y)
    m.functional("speed", terminal=v)
    m.functional("path", integrand=v**2)
    m.functional("pair", terminal=ca.vertcat(y, v))
    return m.build()


def restitution(n: int) -> float:
    """Restitution at which bounce n takes place at T: sqrt(2/g) (1 + 2 (e + ... + e^(n-1))) = T."""
    total = (T / np.sqrt(2 / G) - 1) / 2
    roots = np.roots([*np.ones(n - 1), -total])
    return float(next(r.real for r in roots if abs(r.imag) < 1e-12 and r.real > 0))


def speed_before(n: int) -> float:
    """Speed before bounce n at that restitution."""
    return float(np.sqrt(2 * G) * restitution(n) ** (n - 1))


def test_kinks() -> None:
    found = dh.scan(ball(), (0, T), "height", along="e", values=np.linspace(0.72, 0.98, 14))
    assert [change.kind for change in found.changes] == ["kink", "kink"]
    for change, n in zip(found.changes, (4, 3), strict=True):
        assert change.at == pytest.approx(restitution(n), rel=1e-8)
        assert change.width < 1e-8
        left, right = change.slopes[:, 0]
        assert left / right == pytest.approx(
            -restitution(n), rel=1e-5
        )  # the rate of the height is -v before, e v after
        assert change.sequences[0].names == ("bounce",) * n
        assert change.sequences[1].names == ("bounce",) * (n - 1)
    assert found.kinks == found.changes
    assert found.jumps == ()


def test_jumps() -> None:
    found = dh.scan(ball(), (0, T), "speed", along="e", values=np.linspace(0.72, 0.98, 14))
    assert [change.kind for change in found.changes] == ["jump", "jump"]
    for change, n in zip(found.changes, (4, 3), strict=True):
        after, before = change.values[:, 0]
        assert before == pytest.approx(-speed_before(n), rel=1e-6)
        assert after == pytest.approx(restitution(n) * speed_before(n), rel=1e-6)


def test_a_change_may_be_smooth() -> None:
    m = dh.HybridModel("counter")
    k, x, n = m.parameter("k", 1.0), m.differential("x"), m.differential("n")
    run = m.mode("run", ode={x: k, n: 0.0})
    m.transition(run, run, guard=x - 1, direction="rising", reset={n: n + 1})
    m.initial(run, {x: 0.0, n: 0.0})
    m.functional("x", terminal=x)
    m.functional("n", terminal=n)
    m.functional("late", terminal=n * (x - 1))
    system = m.build()
    kinds = {
        name: [c.kind for c in dh.scan(system, (0, 1), name, along="k", values=[0.7, 0.9, 1.2]).changes]
        for name in ("x", "n", "late")
    }
    assert kinds == {"x": ["smooth"], "n": ["jump"], "late": ["kink"]}


def test_grazing_is_a_kink() -> None:
    """A guard touches zero at p = 3: the derivative is infinite on one side, and refused next to the touch."""
    from dae_hybrid.problems import hybrid_ode

    found = dh.scan(hybrid_ode.system(), (0, 5), "G", along="p", values=[2.9, 2.95, 3.05, 3.1])
    (change,) = found.changes
    assert change.kind == "kink"
    assert change.at == pytest.approx(3.0, abs=1e-6)
    assert abs(change.slopes[0, 0]) > 1e2 * abs(change.slopes[1, 0])
    assert change.slopes_at[1] >= change.right.at


def test_a_grazing_contact_is_smooth() -> None:
    """The force of a spring that is just touched grows from zero: the derivative is continuous, like a square root."""
    m = dh.HybridModel("contact")
    k, x, v = m.parameter("k", 2.0), m.differential("x"), m.differential("v")
    free, touch = (m.mode(n, ode={x: v, v: -k * x - s * 50 * (x - 1)}) for n, s in (("free", 0), ("touch", 1)))
    m.transition(free, touch, guard=x - 1, direction="rising")
    m.transition(touch, free, guard=x - 1, direction="falling")
    m.initial(free, {x: 0.0, v: 1.5})  # reaches x = 1 if k < 2.25
    m.functional("work", integrand=v**2)
    found = dh.scan(m.build(), (0, 2), "work", along="k", values=[2.0, 2.1, 2.4, 2.5], rtol=1e-10, atol=1e-12)
    (change,) = found.changes
    assert change.kind == "smooth"
    assert change.at == pytest.approx(2.25, rel=1e-6)
    assert change.slopes_at != (change.left.at, change.right.at)
    assert found.values[1] > 0


def test_relations_of_parameters_and_costs() -> None:
    m = dh.HybridModel("relations")
    a, x = m.parameter("a", 0.5), m.differential("x")
    m.initial(m.mode("run", ode={x: ca.if_else(a > 1, 2 * a, a)}), {x: 0.0})
    m.functional("end", terminal=ca.if_else(x > 0.5, 1.0 + x, 2 * x))
    found = dh.scan(m.build(), (0, 1), along="a", values=np.linspace(0.1, 1.4, 14) + 0.013)
    assert [(change.kind, round(change.at, 6)) for change in found.changes] == [("jump", 0.5), ("jump", 1.0)]
    assert found.changes[0].values[:, 0] == pytest.approx([1.0, 1.5])
    assert found.changes[1].values[:, 0] == pytest.approx([2.0, 3.0])


def test_measurements_count() -> None:
    m = dh.HybridModel("tooth")
    k, x = m.parameter("k", 1.0), m.differential("x")
    run = m.mode("run", ode={x: k})
    m.transition(run, run, guard=x - 0.75, direction="rising", reset={x: 0})
    m.initial(run, {x: 0.0})
    m.functional("fit", at_times={0.8: x})
    found = dh.scan(m.build(), (0, 1), "fit", along="k", values=[0.8, 0.9, 1.0])
    (change,) = found.changes
    assert change.kind == "jump"
    assert change.at == pytest.approx(0.75 / 0.8)
    assert change.values[:, 0] == pytest.approx([0.75, 0.0], abs=1e-6)
    assert {"measurement", "run->run"} == set(change.sequences[0].names)


@pytest.mark.parametrize("direction", [{"e": 1.0, "g": -3.0}, {"e": -0.2}])
def test_directions(direction: dict[str, float]) -> None:
    found = dh.scan(ball(), (0, T), "height", along=direction, values=np.linspace(-0.05, 0.05, 6), rtol=1e-10)
    step = 1e-5
    for s, derivative in zip(found.at, found.derivatives, strict=True):
        sides = [
            dh.simulate(ball(), (0, T), parameters=found.parameters(s + d), rtol=1e-10).functionals
            for d in (step, -step)
        ]
        assert derivative == pytest.approx((sides[0]["height"] - sides[1]["height"]) / (2 * step), rel=1e-5, abs=1e-5)


def test_points_equal_single_calls_and_both_analyses() -> None:
    at = np.linspace(0.75, 0.9, 5)
    found = dh.scan(ball(), (0, T), "path", along="e", values=at)
    for s, value, derivative in zip(at, found.values, found.derivatives, strict=True):
        single = dh.adjoint_gradient(ball(), (0, T), "path", parameters={"e": s})
        assert value == pytest.approx(single.value, rel=1e-7)
        assert derivative == pytest.approx(single.gradient[1], rel=1e-6)


def test_failures_are_gaps_with_reasons() -> None:
    found = dh.scan(ball(), (0, T), "height", along="e", values=[0.5, 0.6, 0.8, 0.85])
    assert np.isnan(found.values).tolist() == [True, True, False, False]
    assert isinstance(found.errors[0], dh.ZenoError)
    assert found.errors[2] is None
    assert found.sequences[0] is None
    assert found.sequences[2] is not None
    assert "2 failed" in repr(found)
    assert dh.scan(ball(), (0, T), "height", along="e", values=[0.5]).changes == ()


def test_times_that_do_not_exist_are_gaps() -> None:
    m = dh.HybridModel("relaxation")
    a, x = m.parameter("a", 1.0), m.differential("x")
    m.initial(m.mode("only", ode={x: a - x}), {x: 0.0})
    m.functional("rise", rise_time=(x, 0.1, 1.9))
    scan = dh.scan(m.build(), (0, 5), along="a", values=[1.5, 2.0])
    assert isinstance(scan.errors[0], dh.EventError)
    assert scan.errors[1] is None


def test_a_refused_derivative_leaves_the_value() -> None:
    m = dh.HybridModel("beside")
    b, x = m.parameter("b", 0.5), m.differential("x")
    run = m.mode("run", ode={x: 1.0})
    m.transition(run, run, at=b, reset={x: 3 * x})
    m.initial(run, {x: 0.0})
    m.functional("fit", at_times={0.5: x})
    found = dh.scan(m.build(), (0, 1), along="b", values=[0.25, 0.5, 0.75])
    assert found.values == pytest.approx([1.0 - 0.25 + 0.25, 1.5, 0.5])
    assert np.isnan(found.derivatives).tolist() == [False, True, False]
    assert found.derivatives[[0, 2]] == pytest.approx([2.0, 0.0])
    assert isinstance(found.errors[1], dh.EventError)
    (change,) = found.changes
    assert change.kind == "jump"
    assert change.at == pytest.approx(0.5)


def test_bisection_is_limited() -> None:
    at = np.linspace(0.72, 0.98, 14)
    none = dh.scan(ball(), (0, T), "height", along="e", values=at, locate=False)
    assert none.changes == ()
    assert len(none.unlocated) == 2
    few = dh.scan(ball(), (0, T), "height", along="e", values=at, max_runs=5)
    (change,) = few.changes
    assert change.kind == "unresolved"
    assert "limit" in change.reason
    assert change.width == pytest.approx((at[1] - at[0]) / 2**5)
    assert len(few.unlocated) == 1


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"along": "z"}, dh.ParameterError, "not a parameter"),
        ({"along": {"e": 0.0}}, dh.ParameterError, "other than zero"),
        ({"along": {"e": np.inf}}, dh.ParameterError, "finite"),
        ({"along": {"e": [1.0, 2.0]}}, dh.ParameterError, "does not fit"),
        ({"along": 3}, dh.OptionError, "along"),
        ({"values": []}, dh.OptionError, "one-dimensional"),
        ({"values": [0.8, 0.8]}, dh.OptionError, "increase"),
        ({"values": [0.8, np.nan]}, dh.OptionError, "finite"),
        ({"values": "no"}, dh.OptionError, "values"),
        ({"functional": "pair"}, dh.UnsupportedError, "vector"),
        ({"max_runs": -1}, dh.OptionError, "max_runs"),
        ({"locate": "x"}, dh.OptionError, "locate"),
        ({"keep": "all"}, dh.OptionError, "keep"),
    ],
)
def test_bad_input(given: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        dh.scan(ball(), (0, T), **{"functional": "height", "along": "e", "values": [0.8], **given})


def test_pictures_and_tables(tmp_path: Any) -> None:
    import pandas as pd

    found = dh.scan(ball(), (0, T), "speed", along="e", values=[0.6, 0.74, 0.76, 0.89, 0.92])
    figure = found.plot()
    assert [axes.get_ylabel() for axes in figure.axes] == ["speed", "derivative"]
    assert save(figure, tmp_path / "scan.png").stat().st_size > 1000
    with pytest.raises(dh.OptionError, match="two axes"):
        found.plot(figure.axes[:1])
    table = found.to_dataframe()
    assert isinstance(table, pd.DataFrame)
    assert list(table.columns) == ["e", "value", "derivative", "digest", "error"]
    assert "jump" in found._repr_html_()
    assert "jump" in str(found)


def test_a_change_across_failed_points_is_not_located() -> None:
    m = dh.HybridModel("gap")
    p, x = m.parameter("p", 0.5), m.differential("x")
    run = m.mode("run", ode={x: ca.sqrt((p - 1) ** 2 - 0.01)})  # fails for 0.9 < p < 1.1
    m.initial(run, {x: 0.0})
    m.functional("end", terminal=ca.if_else(p > 1, 3.0, 1.0) + x)
    found = dh.scan(m.build(), (0, 1), along="p", values=[0.5, 0.8, 1.0, 1.2, 1.5])
    assert np.isnan(found.values).tolist() == [False, False, True, False, False]
    assert found.changes == ()
    assert found.unlocated == ((0.8, 1.2),)


def test_pictures_follow_derivatives_between_changes() -> None:
    found = dh.scan(ball(), (0, T), "height", along="e", values=[0.6, 0.74, 0.76, 0.89, 0.92])
    wide = dh.scan(ball(), (0, T), "height", along="e", values=[0.74, 0.92])
    assert len(wide.changes) == 2
    line = max(wide.plot().axes[0].lines, key=lambda own: len(own.get_xdata()))  # of three bounces, without a position
    at, drawn = line.get_xdata(), line.get_ydata()
    exact = [dh.simulate(ball(), (0, T), parameters={"e": e}).functionals["height"] for e in at[::8]]
    assert drawn[::8] == pytest.approx(exact, abs=0.02)
    assert max(exact) > 0.25  # a straight line would be at zero
    assert sum(own.get_marker() == "." for own in found.plot().axes[0].lines) == 1
    many = dh.scan(ball(), (0, T), "height", along="e", values=np.linspace(0.76, 0.8, 201), rtol=1e-4)
    assert not any(own.get_marker() == "." for own in many.plot().axes[0].lines)
