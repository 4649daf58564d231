"""Examples of samplers: gradients against a closed form, failed runs, and moments against quadrature on a grid."""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dae_hybrid as dh

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
POINTS = np.array([[0.0, 1.5], [0.11, 1.2], [-0.13, 2.3], [0.2, 0.9], [-0.2, 3.1]])
RESTS = np.array([0.0, -1.0])  # e = 0.27: bounces accumulate before the end


@pytest.fixture(autouse=True)
def found_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


@pytest.fixture
def posterior() -> Any:
    return importlib.import_module("ball_posterior")


@pytest.fixture
def system(posterior: Any) -> Any:
    return posterior.ball(posterior.measured())


@pytest.fixture(scope="module")
def grid() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        posterior = importlib.import_module("ball_posterior")
        return posterior.on_grid(posterior.ball(posterior.measured()))


def heights(h: float, e: float, times: np.ndarray) -> np.ndarray:
    """Heights of the bouncing ball, in closed form."""
    g, found = 9.81, []
    for t in times:
        start, speed, landing = 0.0, 0.0, np.sqrt(2 * h / g)
        height = h
        while t > landing:
            start, speed, height = landing, e * g * (landing - start) - e * speed, 0.0
            landing = start + 2 * speed / g
        found.append(height + speed * (t - start) - g * (t - start) ** 2 / 2)
    return np.array(found)


def exact(posterior: Any, q: np.ndarray) -> float:
    """The log-posterior in closed form, without constants."""
    residual = heights(np.exp(q[0]), 1 / (1 + np.exp(-q[1])), posterior.TIMES) - posterior.measured()
    prior = (q - posterior.MEAN) / posterior.SD
    return -np.sum((residual / posterior.NOISE) ** 2) / 2 - np.sum(prior**2) / 2


def exact_gradient(posterior: Any, q: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Its gradient by central differences."""
    return np.array([exact(posterior, q + s) - exact(posterior, q - s) for s in step * np.eye(2)]) / (2 * step)


def check(sample: Any, grid: Any) -> None:
    """Means and standard deviations agree with the grid within five Monte Carlo standard errors."""
    from emcee.autocorr import integrated_time

    flat = sample.draws.reshape(-1, 2)
    effective = len(flat) / integrated_time(sample.draws, quiet=True)
    assert (effective > 100).all()
    squares = (flat - grid.mean) ** 2
    assert np.all(np.abs(flat.mean(0) - grid.mean) < 5 * grid.sd / np.sqrt(effective))
    assert np.all(np.abs(squares.mean(0) - grid.sd**2) < 5 * squares.std(0) / np.sqrt(effective))


def test_the_gradient_of_the_log_posterior_is_that_of_its_closed_form(posterior: Any, system: Any) -> None:
    found = posterior.LogPosterior(system, gradient=True)(POINTS)
    assert found[:, 0] == pytest.approx([exact(posterior, q) for q in POINTS], rel=1e-6)
    assert found[:, 1:] == pytest.approx(np.array([exact_gradient(posterior, q) for q in POINTS]), rel=1e-5, abs=1e-5)
    assert posterior.LogPosterior(system)(POINTS) == pytest.approx(found[:, 0], rel=1e-6)


def test_a_failed_run_has_no_likelihood_and_is_counted(posterior: Any, system: Any) -> None:
    log_posterior = posterior.LogPosterior(system, gradient=True)
    found = log_posterior(np.array([POINTS[0], RESTS]))
    assert np.isfinite(found[0]).all()
    assert found[1].tolist() == [-np.inf, 0.0, 0.0]
    assert log_posterior.failures == {"ZenoError": 1}


def test_a_gradient_beside_a_kink_is_one_sided_with_a_warning(posterior: Any, system: Any) -> None:
    h = 9.81 * posterior.TIMES[0] ** 2 / 2  # the first bounce is at the first measurement
    beside = np.array([[np.log(h) + 1e-9, 1.5]])
    with pytest.warns(dh.DerivativeWarning, match="one-sided"):
        found = posterior.LogPosterior(system, gradient=True)(beside)
    assert found[0, 0] == pytest.approx(exact(posterior, beside[0]), rel=1e-6)


def test_the_grid_has_converged_and_contains_the_posterior(posterior: Any, system: Any, grid: Any) -> None:
    coarse = posterior.on_grid(system, n=41)
    assert coarse.mean == pytest.approx(grid.mean, abs=2e-4)
    assert coarse.sd == pytest.approx(grid.sd, abs=2e-4)
    edges = [grid.density[0], grid.density[-1], grid.density[:, 0], grid.density[:, -1]]
    assert max(edge.max() for edge in edges) < 1e-5 * grid.density.max()
    assert set(grid.failures) == {"ZenoError"}


def test_the_laplace_approximation_is_at_the_maximum_of_the_posterior(posterior: Any) -> None:
    mean, covariance = posterior.laplace(posterior.measured())
    assert exact_gradient(posterior, mean) * np.sqrt(np.diag(covariance)) == pytest.approx([0, 0], abs=1e-3)


def test_emcee_draws_what_is_finite_and_moves() -> None:
    for sample in importlib.import_module("sample_emcee").main(steps=10, warmup=2):
        assert np.isfinite(sample.draws).all()
        assert len(np.unique(sample.draws.reshape(-1, 2), axis=0)) > 10


@pytest.mark.campaign
def test_emcee_samples_the_posterior(grid: Any) -> None:
    stretch, langevin = importlib.import_module("sample_emcee").main(steps=600, warmup=100)
    check(stretch, grid)
    check(langevin, grid)


def test_numpyro(posterior: Any, system: Any) -> None:
    import jax
    import numpyro

    example = importlib.import_module("sample_numpyro")
    misfit = example.cost(system)

    def energy(q: Any) -> Any:
        return numpyro.infer.util.potential_energy(partial(example.model, misfit), (), {}, {"q": q})

    slope = jax.grad(energy)
    for q in POINTS:
        assert -slope(q) == pytest.approx(exact_gradient(posterior, q), rel=1e-5, abs=1e-5)
    assert energy(RESTS) == np.inf
    assert slope(RESTS) == pytest.approx((RESTS - posterior.MEAN) / posterior.SD**2)


@pytest.mark.campaign
def test_numpyro_samples_the_posterior(grid: Any) -> None:
    check(importlib.import_module("sample_numpyro").main(steps=300, warmup=150), grid)


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTensor compiles into a folder of the test."""
    monkeypatch.setenv("PYTENSOR_FLAGS", f"base_compiledir={tmp_path}")


@pytest.mark.usefixtures("own_folder")
def test_pymc(posterior: Any, system: Any) -> None:
    example = importlib.import_module("sample_pymc")
    likelihood = example.LogLikelihood(system)
    model = example.posterior(likelihood)
    log_posterior, slope = model.compile_logp(mode=example.MODE), model.compile_dlogp(mode=example.MODE)
    for q in POINTS:
        assert slope({"q": q}) == pytest.approx(exact_gradient(posterior, q), rel=1e-5, abs=1e-5)
    assert log_posterior({"q": RESTS}) == -np.inf
    assert likelihood.failures == {"ZenoError": 1}
    with pytest.raises(dh.UnsupportedError, match="no derivatives"):
        model.compile_d2logp(negate_output=False)


@pytest.mark.campaign
@pytest.mark.usefixtures("own_folder")
def test_pymc_samples_the_posterior(grid: Any) -> None:
    check(importlib.import_module("sample_pymc").main(steps=400, warmup=200), grid)


@pytest.mark.operation
@pytest.mark.usefixtures("own_folder")
def test_pymc_through_the_service(posterior: Any, grid: Any) -> None:
    example = importlib.import_module("sample_umbridge")
    with example.serving("ball_posterior:ball") as url:
        heights = example.Heights(url)
        model = example.posterior(heights, posterior.measured())
        slope = model.compile_dlogp(mode=example.MODE)
        for q in POINTS:
            assert slope({"q": q}) == pytest.approx(exact_gradient(posterior, q), rel=1e-5, abs=1e-5)
        assert np.isnan(model.compile_logp(mode=example.MODE)({"q": RESTS}))
        assert heights.failures == {"failed run": 1}
    check(example.main(steps=200, warmup=100), grid)


def test_ranks_of_parameters() -> None:
    example = importlib.import_module("rank_parameters")
    found = example.main(n=64)
    closer = example.main(n=64, delta=1e-4)
    off, less = (np.abs(own["differences"] / own["exact"] - 1) for own in (found, closer))
    assert off.max() < 0.01
    assert less.max() < 0.2 * off.max()  # an error of first order
    assert closer["exact"] == pytest.approx(found["exact"], rel=1e-12)
    assert np.all(found["total"] <= found["bound"] + found["error"])
