"""Samples: closed forms of statistics and gradients, differences with common random numbers, failed runs, jumps."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import casadi as ca
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_parameters import SPAN, TIGHT, ball, closed_form, crossings, fragile
from scipy import stats

import dae_hybrid as dh
from dae_hybrid.ensembles.scheduling import Campaign
from dae_hybrid.report.plotting import new_figure
from dae_hybrid.uncertainty import jumps
from dae_hybrid.uncertainty.statistics import cvar, tail_weights

LINE = closed_form({"a": 1.0, "b": 2.0, "d": 1.0}, lambda a, b, d: d * a + b)
NORMALS = dh.Inputs(LINE, {"a": stats.norm(1, 3), "b": stats.norm(2, 4)})
BALL, FRAGILE = ball(), fragile()
DROPS = dh.Inputs(BALL, {"e": stats.uniform(0.8, 0.15), "g": stats.norm(9.81, 0.05)})
T = (0.0, 2.0)
RUN: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}


def normal_sample(n: int = 8192, **options: Any) -> dh.MonteCarlo:
    return dh.monte_carlo(LINE, SPAN, NORMALS, n, **options)


def test_statistics_of_a_normal() -> None:
    found = normal_sample()
    mean, std, level = 3.0, 5.0, 0.95
    density = stats.norm.pdf(stats.norm.ppf(level))
    exact = {
        "mean": (found.mean, mean), "std": (found.std, std), "variance": (found.variance, std**2),
        "skewness": (found.skewness, 0.0), "kurtosis": (found.kurtosis, 0.0),
        "quantile": (found.quantile(level), stats.norm.ppf(level, mean, std)),
        "cvar": (found.cvar(level), mean + std * density / (1 - level)),
        "lower": (found.cvar(level, "lower"), mean - std * density / (1 - level)),
        "above": (found.probability(above=8.0), stats.norm.sf(1)),
        "below": (found.probability(below=-2.0), stats.norm.cdf(-1)),
    }  # fmt: skip
    for name, (estimate, value) in exact.items():
        assert abs(estimate.value - value) < 5 * estimate.standard_error + 1e-12, name
        assert estimate.standard_error < 0.05 * max(1, abs(value)), name
    assert abs(found.mean.value - mean) < 1e-3  # quasi-Monte Carlo: 0.055 for pseudo-random points


def test_moments_of_a_lognormal() -> None:
    system = closed_form({"a": 1.0}, lambda a: ca.exp(a))
    found = dh.monte_carlo(system, SPAN, dh.Inputs(system, {"a": stats.norm(0.2, 0.4)}), 8192)
    exact = stats.lognorm(0.4, scale=np.exp(0.2))
    assert abs(found.mean.value - exact.mean()) < 1e-3
    assert abs(found.std.value - exact.std()) < 5e-3
    assert abs(found.quantile(0.9).value - exact.ppf(0.9)) < 5e-3


def test_standard_errors_are_those_of_the_estimates() -> None:
    found = [normal_sample(256, sampler="random", replicates=16, seed=seed) for seed in range(60)]
    for of in (lambda s: s.mean, lambda s: s.std, lambda s: s.cvar(0.75), lambda s: s.probability(above=5.0)):
        estimates = [of(own) for own in found]
        spread = np.std([own.value for own in estimates], ddof=1)
        claimed = np.sqrt(np.mean([own.standard_error**2 for own in estimates]))
        assert 0.7 < claimed / spread < 1.4


@pytest.mark.parametrize(("n", "replicates"), [(64, 32), (256, 8)])
def test_standard_errors_of_small_replicates(n: int, replicates: int) -> None:
    """The statistics of a replicate of two runs say nothing of those of the sample: its skewness is 0, of any two."""
    system = closed_form({"a": 1.0}, lambda a: a)
    inputs = dh.Inputs(system, {"a": stats.lognorm(0.5)})
    found = [
        dh.monte_carlo(system, SPAN, inputs, n, replicates=replicates, sampler="random", seed=seed)
        for seed in range(60)
    ]  # fmt: skip
    claims: list[tuple[Any, float]] = [
        (lambda s: s.skewness, 1.4), (lambda s: s.std, 1.4), (lambda s: s.cvar(0.95), 1.4),
        (lambda s: s.quantile(0.9), 2.0),  # a jackknife that omits few runs overstates that of a quantile
    ]  # fmt: skip
    for of, most in claims:
        estimates = [of(own) for own in found]
        spread = np.std([own.value for own in estimates], ddof=1)
        claimed = np.sqrt(np.mean([own.standard_error**2 for own in estimates]))
        assert 0.7 < claimed / spread < most
    assert np.isnan(found[0].cvar(0.999).standard_error)
    assert np.isnan(found[0].quantile(0.001).standard_error)


def test_gradients_of_a_normal() -> None:
    """G = d a + b: mean 3, variance 9 d^2 + 16."""
    found = normal_sample(gradient=True)
    assert found.wrt == ("a", "b", "d")
    z = stats.norm.ppf(0.9)
    slope = stats.norm.pdf(z) / 0.1
    exact = {"mean": [1, 1, 1], "variance": [0, 0, 18], "std": [0, 0, 9 / 5], "cvar": [1, 1, 1 + 9 / 5 * slope]}
    for of, value in exact.items():
        estimate = found.gradient(of, level=0.9 if of == "cvar" else None)  # type: ignore[arg-type]
        np.testing.assert_allclose(estimate.value, value, atol=0.02 * np.max(np.abs(value)))
        assert (np.abs(estimate.value - value) <= 6 * estimate.standard_error + 1e-9).all()


@pytest.mark.parametrize(("of", "level", "tail"), [
    ("mean", None, "upper"), ("variance", None, "upper"), ("std", None, "upper"), ("cvar", 0.9, "upper"),
    ("cvar", 0.9, "lower"), ("cvar", 0.913, "upper"), ("cvar", 0.0, "upper"),
])  # fmt: skip
@pytest.mark.parametrize("analysis", ["forward", "adjoint"])
def test_gradients_are_those_of_the_sample(of: Any, level: Any, tail: Any, analysis: Any) -> None:
    """Differences with common random numbers agree to the accuracy of the differences."""
    common: Any = {"functional": "height", "seed": 5, **RUN}
    found = dh.monte_carlo(BALL, T, DROPS, 128, gradient=analysis, wrt=["h", "e"], **common)
    exact = found.gradient(of, level=level, tail=tail).value

    def statistic(h: float, shift: float) -> float:
        inputs = dh.Inputs(BALL, {"e": stats.uniform(0.8 + shift, 0.15), "g": stats.norm(9.81, 0.05)})
        own = dh.monte_carlo(BALL, T, inputs, 128, parameters={"h": h}, **common)
        np.testing.assert_array_equal(own.errors, [None] * 128)
        return (own.cvar(level, tail) if of == "cvar" else getattr(own, of)).value

    step = 1e-6  # below the distance to the next value at the edge of the tail
    differences = [
        (statistic(1 + step, 0) - statistic(1 - step, 0)) / (2 * step),
        (statistic(1, step) - statistic(1, -step)) / (2 * step),
    ]
    np.testing.assert_allclose(exact, differences, rtol=1e-5, atol=2e-5 * np.abs(exact).max())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-5, 5), min_size=2, max_size=30), st.floats(0, 0.99))
def test_weights_of_a_tail(values: list[int], level: float) -> None:
    """The CVaR is that of Rockafellar and Uryasev: the minimum over q of q + E max(G - q, 0) / (1 - level)."""
    own = np.array(values, dtype=float)
    weights, _ = tail_weights(own, level, "upper")
    assert abs(weights.sum() - 1) < 1e-12
    assert (weights >= 0).all()
    assert weights.max() <= 1 / (own.size * (1 - level)) + 1e-12 or own.size * (1 - level) < 1
    least = min(q + np.maximum(own - q, 0).mean() / (1 - level) for q in own)
    assert abs(cvar(own, level, "upper") - least) < 1e-9
    assert abs(cvar(-own, level, "lower") + least) < 1e-9


def test_a_jump_within_the_sample_refuses_gradients() -> None:
    """The velocity jumps where a bounce takes place at the end; the derivative of its mean has a term of the jump."""
    found = dh.monte_carlo(BALL, T, DROPS, 128, functional="speed", gradient=True, **RUN)
    with pytest.raises(dh.AssumptionError, match="'speed' jumps from"):
        found.gradient("mean")
    assert any(change.kind == "jump" for change in found.changes())
    with pytest.warns(dh.DerivativeWarning, match="lacks the contribution"):
        sample = found.gradient("mean", strict=False).value

    def mean(shift: float) -> float:  # that of the distribution: the jump moves through it
        inputs = dh.Inputs(BALL, {"e": stats.uniform(0.8 + shift, 0.15), "g": stats.norm(9.81, 0.05)})
        return dh.monte_carlo(BALL, T, inputs, 4096, functional="speed", **RUN).mean.value

    true = (mean(0.01) - mean(-0.01)) / 0.02
    assert abs(true - sample[found.wrt.index("e")]) > 0.5 * abs(true)  # the refusal is needed


def test_kinks_within_the_sample_do_not() -> None:
    found = dh.monte_carlo(BALL, T, DROPS, 128, functional="height", gradient=True, **RUN)
    assert {change.kind for change in found.changes()} == {"kink"}
    assert len(set(found.digest.tolist())) > 1
    assert np.isfinite(found.gradient("mean").value).all()


@pytest.mark.parametrize("seed", range(6))
def test_a_jump_between_two_kinks(seed: int) -> None:
    """The most frequent sequences have kinks beside them; the derivative of the mean has the term 0.5 p(1)."""
    system = crossings({}, {"one": 0.9, "jump": 1.0, "two": 1.1}, [1, 2, 2, 1], {"jump": lambda: 0.5})
    inputs = dh.Inputs(system, {"k": stats.norm(1.0, 0.1)})
    found = dh.monte_carlo(system, SPAN, inputs, 64, gradient=True, seed=seed, **RUN)
    assert [change.kind for change in found.changes()].count("jump") == 1
    with pytest.raises(dh.AssumptionError, match="'G' jumps from"):
        found.gradient("mean")


def test_a_jump_at_the_last_of_many_sequences() -> None:
    places = {f"kink{i}": place for i, place in enumerate(np.linspace(0.8, 1.1, 19).tolist())} | {"jump": 1.25}
    system = crossings({}, places, 1 + 0.1 * np.arange(21), {"jump": lambda: 200.0})
    inputs = dh.Inputs(system, {"k": stats.norm(1.0, 0.1)})
    found = dh.monte_carlo(system, SPAN, inputs, 512, gradient=True, **RUN)
    assert len(set(found.digest.tolist())) == 21
    with pytest.raises(dh.AssumptionError, match="'G' jumps from"):
        found.gradient("mean")


@pytest.mark.parametrize(("law", "size"), [
    (stats.norm(0, 1), lambda b: 1 / (1 + ca.exp(-40 * (b - 1)))), (stats.uniform(0, 2), lambda b: b**9),
])  # fmt: skip
@pytest.mark.parametrize("seed", range(3))
def test_a_jump_on_a_part_of_a_border(law: Any, size: Any, seed: int) -> None:
    """The same two sequences are adjacent everywhere, and the jump vanishes on most of the border."""
    system = crossings({"b": 0.0}, {"jump": 1.0}, [0, 0], {"jump": size})
    inputs = dh.Inputs(system, {"k": stats.norm(1.0, 0.1), "b": law})
    found = dh.monte_carlo(system, SPAN, inputs, 256, gradient=True, seed=seed, wrt="k")
    assert found.wrt == ("k",)
    with pytest.raises(dh.AssumptionError, match="'G' jumps from"):
        found.gradient("mean")


@pytest.mark.parametrize("jump", [0.0, 0.05])
def test_jumps_and_kinks_of_many_parameters(jump: float) -> None:
    names = [f"p{i}" for i in range(20)]
    system = crossings(
        dict.fromkeys(names, 0.0), {"jump": 1.0}, [1, 2], {"jump": lambda *p: jump + 0 * sum(p)}
    )  # fmt: skip
    laws = {"k": stats.norm(1.0, 0.1)} | dict.fromkeys(names, stats.norm())
    found = dh.monte_carlo(system, SPAN, dh.Inputs(system, laws), 256, gradient=True, wrt="k", **RUN)
    assert {change.kind for change in found.changes()} == ({"jump"} if jump else {"kink"})
    if not jump:  # E(k) + E max(k - 1, 0): the derivative is 1 + 1/2
        assert abs(found.gradient("mean").value[0] - 1.5) < 0.02


def test_many_small_jumps_are_a_slope() -> None:
    """A staircase on an offset of 300: each step is below 100 tolerances, and their sum is the derivative 2e-4."""
    m = dh.HybridModel("staircase")
    k, th, c = m.parameter("k", 50.0), m.differential("th"), m.differential("c")
    turn = m.mode("turn", ode={th: k, c: 0.0})
    m.transition(turn, turn, guard=th - 1, direction="rising", reset={th: 0.0, c: c + 2e-4}, name="step")
    m.initial(turn, {th: 0.0, c: 300.0})
    m.functional("G", terminal=c)
    system = m.build()
    inputs = dh.Inputs(system, {"k": stats.norm(50.3, 1)})
    rough = dh.monte_carlo(system, SPAN, inputs, 256, gradient=True)
    with pytest.warns(dh.DerivativeWarning, match="within the error of the integration"):
        assert rough.gradient("mean").value == 0
    fine = dh.monte_carlo(system, SPAN, inputs, 256, gradient=True, **RUN)
    with pytest.raises(dh.AssumptionError, match="'G' jumps from"):
        fine.gradient("mean")


def test_pairs_that_are_not_searched_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jumps, "LEAST_RUNS", 0)
    bent = crossings({}, {"kink": 1.0}, [1, 9], {})
    kinks = dh.monte_carlo(bent, SPAN, dh.Inputs(bent, {"k": stats.norm(1, 1)}), 16, gradient=True, **RUN)
    with pytest.warns(dh.DerivativeWarning, match="of 1 pair of adjacent sequences could not be searched"):
        kinks.gradient("mean")
    assert kinks.changes() == ()
    speeds = dh.monte_carlo(BALL, T, DROPS, 128, functional="speed", gradient=True, **RUN)
    with pytest.raises(dh.AssumptionError, match="more than the gradients of the runs explain"):
        speeds.gradient("mean")
    with pytest.warns(dh.DerivativeWarning, match="may jump between values"):
        speeds.gradient("mean", strict=False)


def test_a_jump_is_refused_after_an_unresolved_change() -> None:
    found = dh.monte_carlo(BALL, T, DROPS, 128, functional="speed", gradient=True, **RUN)
    jump = next(change for change in found.changes() if change.kind == "jump")
    search = found._searches[False]
    found._searches[False] = replace(search, changes=(replace(jump, kind="unresolved", reason="test"), jump))
    with pytest.raises(dh.AssumptionError, match="'speed' jumps from"):
        found.gradient("mean")


def test_jumps_are_those_of_the_system_that_was_run() -> None:
    """Inputs may be made with another variant of the model that has the same parameters."""
    smooth = crossings({}, {"jump": 1.0}, [1, 1], {})
    steep = crossings({}, {"jump": 1.0}, [1, 1], {"jump": lambda: 5.0})
    inputs = dh.Inputs(smooth, {"k": stats.norm(1.0, 0.1)})
    with pytest.raises(dh.AssumptionError, match="'G' jumps from"):
        dh.monte_carlo(steep, SPAN, inputs, 64, gradient=True, **RUN).gradient("mean")


def test_a_jump_outside_the_tail_is_of_no_account() -> None:
    """G = a + 10 (a > 0) + ...: the jump at a = 0 is between the values 0 and -10, far from the upper tail."""
    m = dh.HybridModel("step")
    a, x = m.parameter("a", 1.0), m.differential("x")
    low, high = m.mode("low", ode={x: 1.0}), m.mode("high", ode={x: 1.0})
    m.transition(low, high, guard=x - 1, direction="rising", reset={x: x + 10})
    m.initial(low, {x: a})
    m.functional("G", terminal=x)
    system = m.build()
    found = dh.monte_carlo(
        system, (0.0, 1.0), dh.Inputs(system, {"a": stats.uniform(-1, 1.9)}), 128, gradient=True, **TIGHT
    )
    with pytest.raises(dh.AssumptionError):
        found.gradient("mean")
    np.testing.assert_allclose(found.gradient("cvar", level=0.9).value, 1.0)


def test_equal_values_at_the_edge_of_the_tail() -> None:
    system = closed_form({"a": 1.0, "d": 1.0}, lambda a, d: ca.if_else(a > 0, a * d, 0.0))
    inputs = dh.Inputs(system, {"a": stats.uniform(-1, 1.5)})
    found = dh.monte_carlo(system, SPAN, inputs, 64, gradient=True, **TIGHT)
    assert (found.values == 0).sum() > 30
    assert abs(found.gradient("cvar", level=0.5).value[1] - found.cvar(0.5).value) < 1e-9  # all slopes at 0 are 0
    tied = closed_form({"a": 1.0, "d": 0.0}, lambda a, d: d * a)
    refused = dh.monte_carlo(tied, SPAN, dh.Inputs(tied, {"a": stats.norm(1, 1)}), 64, gradient=True)
    with pytest.raises(dh.AssumptionError, match="same value"):
        refused.gradient("cvar", level=0.5)
    with pytest.raises(dh.AssumptionError, match="no gradient"):
        refused.gradient("std")


def test_failed_runs_are_reported_and_refused_above_a_share() -> None:
    inputs = dh.Inputs(FRAGILE, {"a": stats.uniform(0.48, 1.0)})  # 2 % fail
    with pytest.warns(dh.UncertaintyWarning, match="of 512 failed"):
        found = dh.monte_carlo(FRAGILE, SPAN, inputs, 512, gradient=True, **RUN)
    failed = found.parameters[:, 0] < 0.5
    np.testing.assert_array_equal(~found.ok, failed)
    assert all((error is not None) == bad for error, bad in zip(found.errors, failed, strict=True))
    assert abs(found.failed_share - 0.02) < 0.01
    root = np.sqrt(found.parameters[~failed, 0] - 0.5)
    np.testing.assert_allclose(found.mean.value, root.mean(), rtol=1e-7)
    with pytest.warns(dh.DerivativeWarning, match="conditional on success"):
        slope = found.gradient("mean", strict=False).value
    np.testing.assert_allclose(slope, [(0.5 / root).mean(), root.mean()], rtol=1e-6)
    with pytest.warns(dh.UncertaintyWarning):
        refused = dh.monte_carlo(FRAGILE, SPAN, inputs, 512, max_failed=0.01, gradient=True, **RUN)
    for of in (lambda: refused.mean, lambda: refused.cvar(0.9), lambda: refused.gradient("mean")):
        with pytest.raises(dh.UncertaintyError, match=r"At most 1\.00%"):
            of()
    np.testing.assert_array_equal(refused.values, found.values)  # nothing is lost
    assert "refused" in refused._repr_html_()
    assert str(refused) == repr(refused)


def test_a_border_of_runs_that_fail_is_that_of_a_jump() -> None:
    """The mean of a normal a given a < 1.8, by a shift of a: 0.846, and the mean of the derivatives is 1."""
    system = closed_form({"a": 0.0}, lambda a: a + 1e-30 * ca.sqrt(1.8 - a))
    with pytest.warns(dh.UncertaintyWarning, match="failed"):
        found = dh.monte_carlo(system, SPAN, dh.Inputs(system, {"a": stats.norm()}), 512, gradient=True, **RUN)
    with pytest.raises(dh.AssumptionError, match="border beyond which runs fail"):
        found.gradient("mean")
    with pytest.warns(dh.DerivativeWarning, match="border beyond which runs fail"):
        assert abs(found.gradient("mean", strict=False).value[0] - 1) < 1e-6

    def exact(shift: float) -> float:
        return stats.truncnorm(-np.inf, 1.8 - shift, shift).mean()

    assert abs((exact(1e-4) - exact(-1e-4)) / 2e-4 - 0.846) < 1e-3


def test_if_all_runs_fail() -> None:
    inputs = dh.Inputs(FRAGILE, {"a": stats.uniform(0.1, 0.1)})
    with pytest.warns(dh.UncertaintyWarning, match="16 runs of 16"):
        found = dh.monte_carlo(FRAGILE, SPAN, inputs, 16)
    with pytest.raises(dh.UncertaintyError):
        _ = found.mean


def test_an_event_beyond_the_sample_has_no_standard_error() -> None:
    found = normal_sample(64)
    assert found.probability(above=1e3).value == 0
    assert np.isnan(found.probability(above=1e3).standard_error)


def test_table_picture_pickle_and_words() -> None:
    found = normal_sample(64, gradient=True)
    table = found.to_dataframe()
    assert list(table.columns) == ["a", "b", "d", "G", "replicate", "error"]
    assert len(table) == len(found) == 64
    axes = new_figure().axes[0]
    figure = found.plot(0.9, axes=axes)
    assert [line.get_xdata()[0] for line in axes.lines] == [
        found.mean.value, found.quantile(0.9).value, found.cvar(0.9).value
    ]  # fmt: skip
    assert sum(bar.get_height() for bar in axes.patches) == 64
    assert figure is axes.figure
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.gradient("mean").value, found.gradient("mean").value)
    assert repr(found) == "<MonteCarlo of 'G': 64 runs, 0 failed>"
    assert "skewness" in str(found)
    assert "standard error" in found._repr_html_()
    assert "+-" in repr(found.mean)
    assert float(found.mean) == found.mean.value
    assert np.asarray(found.gradient("mean")).shape == (3,)


@pytest.mark.parametrize("name", ["error", "replicate", "G"])
def test_two_columns_of_one_name_are_refused(name: str) -> None:
    system = closed_form({name: 1.0}, lambda **given: given[name])
    found = dh.monte_carlo(system, SPAN, dh.Inputs(system, {name: stats.norm()}), 16)
    with pytest.raises(dh.OptionError, match=f"two columns of one name: '{name}'"):
        found.to_dataframe()


def test_a_constant_functional_has_no_shape() -> None:
    system = closed_form({"a": 1.0}, lambda a: 3 + 0 * a)
    found = dh.monte_carlo(system, SPAN, dh.Inputs(system, {"a": stats.norm()}), 16, gradient=True)
    assert np.isnan([found.skewness.value, found.skewness.standard_error, found.kurtosis.value]).all()
    assert found.gradient("mean").value == 0
    assert "nan" in str(found)


def test_a_store_keeps_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ended sample continues, with the same numbers."""
    monkeypatch.setattr(Campaign, "chunk_length", lambda self: 32)

    def stop(progress: Any) -> None:
        raise StopIteration

    whole = normal_sample(256, gradient=True)
    with pytest.raises(dh.UncertaintyError, match="same call continues") as caught:
        normal_sample(256, gradient=True, store=tmp_path / "one", progress=stop, workers=1)
    assert not caught.value.ensemble.complete  # type: ignore[attr-defined]
    for _ in range(2):
        found = normal_sample(256, gradient=True, store=tmp_path / "one")
        np.testing.assert_array_equal(found.values, whole.values)
        np.testing.assert_array_equal(found.gradients, whole.gradients)
    with pytest.raises(dh.StoreError):
        normal_sample(256, gradient=True, store=tmp_path / "one", seed=1)


@pytest.mark.parametrize(("options", "error", "message"), [
    ({"n": 1000}, dh.OptionError, "512 and 1024"),
    ({"n": 8}, dh.OptionError, "at least two runs"),
    ({"n": 64, "replicates": 1}, dh.OptionError, "replicates"),
    ({"n": 66, "replicates": 4}, dh.OptionError, "multiple"),
    ({"n": 64, "functional": "H"}, dh.ParameterError, "Unknown functional"),
    ({"n": 64, "gradient": "both"}, dh.OptionError, "gradient"),
    ({"n": 64, "wrt": "q"}, dh.ParameterError, "q"),
    ({"n": 64, "max_failed": 1.0}, dh.OptionError, "max_failed"),
    ({"n": 64, "max_failed": np.nan}, dh.OptionError, "max_failed"),
    ({"n": 64, "sampler": "lattice"}, dh.OptionError, "sampler"),
    ({"n": 64, "parameters": {"a": 1.0}}, dh.ParameterError, "is random"),
    ({"n": 64, "rtol": -1.0}, dh.OptionError, "rtol"),
    ({"n": 64, "store": 3}, dh.OptionError, "store must be the path of a directory"),
    ({"n": 64, "store": "sample", "seed": None}, dh.OptionError, "needs a seed"),
    ({"n": 64, "x0": {"unit": 1.0}}, dh.OptionError, "Unknown option 'x0'"),
])  # fmt: skip
def test_bad_calls_are_refused(options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        dh.monte_carlo(LINE, SPAN, NORMALS, **options)


def test_other_inputs_are_refused() -> None:
    with pytest.raises(dh.OptionError, match="differ"):
        dh.monte_carlo(LINE, SPAN, DROPS, 64)
    with pytest.raises(dh.OptionError, match="inputs must be"):
        dh.monte_carlo(LINE, SPAN, {"a": stats.norm()}, 64)  # type: ignore[arg-type]


def test_bad_statistics_are_refused() -> None:
    found, values = normal_sample(64, gradient=True), normal_sample(64)
    refusals: list[tuple[Any, Any]] = [
        (dh.OptionError, lambda: found.quantile(1.0)), (dh.OptionError, lambda: found.quantile(np.nan)),
        (dh.OptionError, lambda: found.cvar(1.0)), (dh.OptionError, lambda: found.cvar(0.5, "left")),  # type: ignore[arg-type]
        (dh.OptionError, lambda: found.probability()), (dh.OptionError, lambda: found.probability(above=1, below=2)),
        (dh.OptionError, lambda: found.probability(above=np.inf)),
        (dh.UnsupportedError, lambda: found.gradient("quantile", level=0.9)),  # type: ignore[arg-type]
        (dh.UnsupportedError, lambda: found.gradient("probability")),  # type: ignore[arg-type]
        (dh.OptionError, lambda: found.gradient("median")), (dh.OptionError, lambda: found.gradient("cvar")),  # type: ignore[arg-type]
        (dh.OptionError, lambda: found.gradient("mean", level=0.5)), (dh.OptionError, lambda: values.gradient("mean")),
        (dh.OptionError, lambda: found.gradient(np.array(["mean"]))),  # type: ignore[arg-type]
        (dh.OptionError, lambda: found.gradient(["mean"])),  # type: ignore[arg-type]
        (dh.OptionError, lambda: found.gradient("mean", tail="x")),  # type: ignore[arg-type]
        (dh.OptionError, lambda: found.gradient("mean", tail="lower")),
        (dh.OptionError, lambda: found.changes("std", level=0.5)),
        (dh.OptionError, lambda: found.gradient("mean", strict="x")),  # type: ignore[arg-type]
    ]  # fmt: skip
    for error, of in refusals:
        with pytest.raises(error):
            of()


def test_vectors_are_refused() -> None:
    m = dh.HybridModel("pair")
    a, y = m.parameter("a", 1.0), m.differential("y")
    m.initial(m.mode("run", ode={y: a}), {y: 0.0})
    m.functional("pair", terminal=ca.vertcat(y, a))
    system = m.build()
    with pytest.raises(dh.UnsupportedError, match="vector"):
        dh.monte_carlo(system, SPAN, dh.Inputs(system, {"a": stats.norm()}), 64)
