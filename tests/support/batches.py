"""Batches beside single calls."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

import dae_hybrid as dh


def sets(system: dh.HybridSystem, count: int, spread: float = 0.05, seed: int = 0) -> np.ndarray:
    return system.nominal * (1 + spread * np.random.default_rng(seed).standard_normal((count, system.nominal.size)))


def single(system: dh.HybridSystem, span: Any, p: Any, gradient: str | None, **options: Any) -> tuple[Any, Any, Any]:
    """Values, gradients and the run of single calls."""
    if gradient is None:
        run = dh.simulate(system, span, parameters=p, **options)
        return run.functionals, {}, run
    if gradient == "forward":
        fsa = dh.forward_sensitivity(system, span, parameters=p, **options)
        return fsa.functionals, fsa.gradient, fsa.trajectory
    every = {
        name: dh.adjoint_gradient(system, span, name, parameters=p, duality=False, **options)
        for name in system.functionals.names
    }
    run = next(iter(every.values())).trajectory
    return {n: g.value for n, g in every.items()}, {n: g.gradient for n, g in every.items()}, run


def agree(system: dh.HybridSystem, span: Any, rows: np.ndarray, gradient: str | None, **options: Any) -> dh.Batch:
    """Every run of a batch is what single calls return or raise, and none that warns is native."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = dh.batch(system, span, parameters=rows, gradient=gradient, **options)
    for i, p in enumerate(rows):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                values, gradients, run = single(system, span, p, gradient, **options)
            except dh.DaeHybridError as error:
                values, reason = {}, error
            else:
                reason = None
        assert type(found.errors[i]) is type(reason), (i, reason, found.errors[i])
        assert str(found.errors[i]) == str(reason)
        if reason is not None:
            assert np.isnan(found.values[i]).all()
            continue
        assert not (found.native[i] and said), (i, said[0].message)
        for name, value in values.items():
            np.testing.assert_array_equal(found.functionals[name][i], value, err_msg=f"{name} of run {i}")
        for name, value in gradients.items():
            np.testing.assert_array_equal(found.gradient[name][i], value, err_msg=f"gradient of {name} of run {i}")
        assert found.n_events[i] == len(run.events)
        assert found.n_steps[i] == run.statistics["steps"]
        assert found.t_end[i] == run.final[0]
        if found.t is not None:
            for name in run.names:
                np.testing.assert_array_equal(found[name][i], run[name], err_msg=f"{name} of run {i}")
    return found
