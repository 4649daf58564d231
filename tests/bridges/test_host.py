"""The NumPy side of the bridges: values and derivatives for arrays of parameter sets, with errors kept."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from bridged import folded, touching_ball
from models import em

import dae_hybrid as dh
from dae_hybrid.bridges.host import HostFunction, by_name
from dae_hybrid.interface.output_map import OutputMap

TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
SPAN, TIMES = (0.0, 2.0), [0.4, 0.7, 1.9]
SYSTEM = touching_ball().build()
P = np.array([[9.81, 0.8], [9.5, 0.7], [10.0, 0.75], [9.81, 0.8], [9.0, 0.85]])
WRT: dict[str, Any] = {"wrt": ["g", "e"], **TIGHT}


def functional(**more: Any) -> HostFunction:
    return HostFunction(SYSTEM, SPAN, functional="height", **(WRT | more))


def outputs(**more: Any) -> HostFunction:
    return HostFunction(SYSTEM, SPAN, outputs=["y", "v"], t_eval=TIMES, **(WRT | more))


def test_values_and_derivatives_of_a_functional() -> None:
    host = functional()
    assert (host.shape, host.size, host.wrt) == ((), 2, ("g", "e"))
    values, by_p = host.linearize(P)
    for p, value, gradient in zip(P, values, by_p, strict=True):
        single = dh.adjoint_gradient(
            SYSTEM, SPAN, "height", wrt=["g", "e"], parameters=dict(zip("ge", p, strict=True)), **TIGHT
        )
        np.testing.assert_allclose(value, single.value, rtol=1e-8)
        np.testing.assert_allclose(gradient, single.gradient, rtol=1e-6)
    np.testing.assert_allclose(host.values(P), values, rtol=1e-8)
    c, v = np.random.default_rng(0).normal(size=(2, 5, 2))
    np.testing.assert_allclose(host.vjp(P, c[:, 0]), c[:, :1] * by_p, rtol=1e-6)
    np.testing.assert_allclose(host.jvp(P, v), np.einsum("ni,ni->n", by_p, v), rtol=1e-6)
    assert host.last_errors == (None,) * 5
    assert host.statistics["failed"] == 0


def test_values_and_derivatives_of_outputs() -> None:
    host, single = outputs(), OutputMap(SYSTEM, SPAN, TIMES, ["y", "v"], **WRT)
    c = np.random.default_rng(1).normal(size=(5, *host.shape))
    v = np.random.default_rng(2).normal(size=(5, 2))
    values, gradients, tangents = host.values(P), host.vjp(P, c), host.jvp(P, v)
    assert values.shape == tangents.shape == (5, 3, 2)
    for i, p in enumerate(P):
        found, by_p = single.derivatives({"g": p[0], "e": p[1]})
        np.testing.assert_allclose(values[i], found, rtol=1e-7)
        np.testing.assert_allclose(gradients[i], np.einsum("tj,tjk->k", c[i], by_p), rtol=1e-6)
        np.testing.assert_allclose(tangents[i], by_p @ v[i], rtol=1e-6)


@pytest.mark.parametrize("make", [functional, outputs])
def test_leading_axes(make: Any) -> None:
    host, rng = make(), np.random.default_rng(3)
    grid = P[:4].reshape(2, 2, 2)
    assert host.values(P[0]).shape == host.shape
    assert host.values(grid).shape == (2, 2, *host.shape)
    np.testing.assert_array_equal(host.values(grid).reshape(4, *host.shape), host.values(P[:4]))
    c, v = rng.normal(size=(3, *host.shape)), rng.normal(size=(3, 2))  # at one point: that is a Jacobian
    assert host.vjp(P[0], c).shape == (3, 2)
    assert host.jvp(P[0], v).shape == (3, *host.shape)
    np.testing.assert_allclose(host.jvp(P[0], v)[1], host.jvp(P[0], v[1]), rtol=1e-6)
    np.testing.assert_allclose(np.vdot(host.jvp(P[1], v[0]), c[0]), host.vjp(P[1], c[0]) @ v[0], rtol=1e-6)
    assert host.values(np.zeros((0, 2))).shape == (0, *host.shape)


@pytest.mark.parametrize("make", [functional, outputs])
def test_failed_runs_are_nan_with_their_errors(make: Any) -> None:
    host, c = make(), np.ones((3, *make().shape))
    some = np.array([P[0], [np.nan, 0.8], P[1]])
    values = host.values(some)
    assert np.isnan(values[1]).all()
    assert np.isfinite(values[[0, 2]]).all()
    assert [type(error) for error in host.last_errors] == [type(None), dh.ParameterError, type(None)]
    gradients = host.vjp(some, c)
    assert np.isnan(gradients[1]).all()
    assert np.isfinite(gradients[[0, 2]]).all()
    np.testing.assert_allclose(gradients[[0, 2]], host.vjp(some[[0, 2]], c[[0, 2]]), rtol=1e-9)
    assert isinstance(host.last_errors[0], type(None))
    assert np.isnan(host.jvp(some, np.ones((3, 2)))[1]).all()
    assert host.statistics["failed"] >= 2


@pytest.mark.parametrize("make", [functional, outputs])
def test_a_grazing_run_has_values_and_no_derivatives(make: Any) -> None:
    host = make(wrt=["g", "top"])
    touching, clear = [9.81, 1.0], [9.81, 1.4]
    assert np.isfinite(host.values(touching)).all()
    gradients = host.vjp([touching, clear], np.ones((2, *host.shape)))
    assert np.isnan(gradients[0]).all()
    assert np.isfinite(gradients[1]).all()
    assert isinstance(host.last_errors[0], dh.GrazingError)
    assert host.last_errors[1] is None
    assert np.isnan(host.jvp(touching, [1.0, 1.0])).all()
    refusing = make(wrt=["g", "top"], on_failure="raise")
    with pytest.raises(dh.GrazingError):
        refusing.vjp(touching, np.ones(host.shape))
    np.testing.assert_array_equal(refusing.vjp(touching, np.zeros(host.shape)), [0.0, 0.0])  # left out by the loss


def test_a_refused_derivative_leaves_the_value() -> None:
    host, points = HostFunction(folded().build(), (0, 1), **TIGHT), [[0.9], [1.0], [np.nan], [1.1]]
    values, by_p = host.linearize(points)
    assert [type(error) for error in host.last_errors[:3]] == [type(None), dh.EventError, dh.ParameterError]
    off = 0.1 * np.exp(-1)
    np.testing.assert_allclose(values, [1 + off, 1, np.nan, 1 + off], rtol=1e-7)
    np.testing.assert_allclose(by_p[:, 0], [-np.exp(-1), np.nan, np.nan, np.exp(-1)], rtol=1e-7)
    np.testing.assert_allclose(values, host.values(points), rtol=1e-9)


@pytest.mark.parametrize(("tangents", "expected"), [(1, {"jvp": 1}), (2, {"derivatives": 1}), (3, {"derivatives": 1})])
def test_many_tangents_at_a_point_are_one_run(
    monkeypatch: pytest.MonkeyPatch, tangents: int, expected: dict[str, int]
) -> None:
    host, along, made = outputs(), np.random.default_rng(5).normal(size=(tangents, 2)), dict[str, int]()
    single = [host.jvp(P[0], v) for v in along]
    for name, run in {name: getattr(OutputMap, name) for name in ("jvp", "derivatives")}.items():

        def counted(*given: Any, name: str = name, run: Any = run) -> Any:
            made[name] = made.get(name, 0) + 1
            return run(*given)

        monkeypatch.setattr(OutputMap, name, counted)
    np.testing.assert_allclose(host.jvp(P[0], along), single, rtol=1e-7, atol=1e-9)
    assert made == expected


def test_a_refused_jacobian_leaves_the_tangents_that_exist() -> None:
    host = HostFunction(SYSTEM, SPAN, outputs="y", t_eval=[0.2, 0.4], wrt=["e", "top"], **TIGHT)
    found = host.jvp([0.8, 1.0], np.eye(2))  # it touches the ceiling, which does not depend on e
    single = [host.jvp([0.8, 1.0], v) for v in np.eye(2)]
    np.testing.assert_array_equal(found, single)


def test_outputs_of_a_run_that_ends_early() -> None:
    m = dh.HybridModel("stops")
    p, x = m.parameter("p", 1.0), m.differential("x")
    run = m.mode("run", ode={x: 1.0})
    m.transition(run, None, guard=x - p, direction="rising", name="full")
    m.initial(run, {x: 0.0})
    host = HostFunction(m.build(), (0, 2), outputs="x", t_eval=[0.5, 1.5], **TIGHT)
    values = host.values([[1.0], [1.9]])
    assert np.isnan(values[0]).all()
    np.testing.assert_allclose(values[1, :, 0], [0.5, 1.5], rtol=1e-8)
    assert isinstance(host.last_errors[0], dh.EventError)


def test_a_vector_functional() -> None:
    m = dh.HybridModel("pair")
    a, x = m.parameter("a", [0.5, 1.5], size=2), m.differential("x", size=2)
    m.initial(m.mode("run", ode={x: -a * x}), {x: [1.0, 2.0]})
    m.functional("ends", terminal=x)
    host = HostFunction(m.build(), (0, 1), **TIGHT)
    values, by_p = host.linearize([[0.5, 1.5]])
    exact = np.array([1.0, 2.0]) * np.exp([-0.5, -1.5])
    np.testing.assert_allclose(values, [exact], rtol=1e-7)
    np.testing.assert_allclose(by_p, [np.diag(-exact)], atol=1e-7)
    np.testing.assert_allclose(host.vjp([0.5, 1.5], [1.0, -2.0]), [-exact[0], 2 * exact[1]], rtol=1e-6)
    np.testing.assert_allclose(host.jvp([0.5, 1.5], [1.0, -2.0]), [-exact[0], 2 * exact[1]], rtol=1e-6)


def test_fixed_parameters_and_initial_values() -> None:
    host = HostFunction(
        SYSTEM, SPAN, functional="height", wrt="e", parameters={"g": 9.5}, x0={"y": 0.9, "v": 0.0}, **TIGHT
    )
    found = dh.batch(
        SYSTEM, SPAN, parameters={"g": 9.5, "e": 0.7}, x0={"y": 0.9, "v": 0.0}, gradient="adjoint", **TIGHT
    )
    values, by_p = host.linearize([0.7])
    np.testing.assert_allclose(values, found.functionals["height"][0], rtol=1e-12)
    np.testing.assert_allclose(by_p, found.gradient["height"][0, [1]], rtol=1e-9)


def test_threads_share_a_function() -> None:
    host = HostFunction(em().build(), (0, 2), outputs=["u", "z"], t_eval=[0.5, 1.1, 1.9], rtol=1e-8, atol=1e-11)
    p = em().build().nominal
    c = np.random.default_rng(4).normal(size=(8, 4, *host.shape))
    alone = [host.vjp(p, own) for own in c]
    with ThreadPoolExecutor(4) as pool:
        np.testing.assert_array_equal(list(pool.map(lambda own: host.vjp(p, own), c)), alone)


@pytest.mark.parametrize("make", [functional, outputs])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda host: pickle.loads(pickle.dumps(host))])
def test_a_function_can_be_copied(make: Any, copied: Any) -> None:
    host, weights = make(), np.ones(make().shape)
    gradient = host.vjp(P[0], weights)
    host.values([np.nan, 0.8])
    again = copied(host)
    assert isinstance(again.last_errors[0], dh.ParameterError)
    np.testing.assert_array_equal(again.vjp(P[0], weights), gradient)
    assert (again.statistics["runs"], host.statistics["runs"]) == (3, 2)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"outputs": "y"}, dh.OptionError, "belong together"),
        ({"t_eval": [1.0]}, dh.OptionError, "belong together"),
        ({"outputs": "y", "t_eval": [1.0], "functional": "height"}, dh.OptionError, "not both"),
        ({"outputs": 3, "t_eval": [1.0]}, dh.OptionError, "outputs must be"),
        ({"outputs": ["y", None], "t_eval": [1.0]}, dh.OptionError, "outputs must be"),
        ({"functional": "none"}, dh.ParameterError, "Unknown functional"),
        ({"on_failure": "ignore"}, dh.OptionError, "on_failure"),
        ({"wrt": "none"}, dh.ParameterError, "unknown parameter"),
        ({"parameters": {"none": 1.0}}, dh.ParameterError, "Unknown parameter"),
        ({"x0": {"none": 1.0}}, dh.ParameterError, "no variable"),
        ({"workers": 0}, dh.OptionError, "workers"),
        ({"rtol": 2.0}, dh.OptionError, "rtol"),
    ],
)
def test_invalid_arguments(change: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        HostFunction(SYSTEM, SPAN, **change)


def test_invalid_inputs() -> None:
    host = outputs()
    for bad in (1.0, [1.0], np.ones((2, 3)), "text"):
        with pytest.raises(dh.ParameterError, match="Inputs"):
            host.values(bad)
    with pytest.raises(dh.ParameterError, match="Cotangents"):
        host.vjp(P[0], np.ones(3))
    with pytest.raises(dh.ParameterError, match="must be e, g"):
        by_name({"e": np.ones(1)}, {"e": 1, "g": 1})
    with pytest.raises(dh.ParameterError, match="a number"):
        by_name({"e": np.ones(2)}, {"e": 1})


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_a_missing_framework_is_named_with_the_command_that_installs_it(name: str) -> None:
    code = f"""if True:
        import sys
        import dae_hybrid.bridges.host
        sys.modules["{name}"] = None
        try:
            import dae_hybrid.bridges.{name}
        except ImportError as error:
            print(error)
        """
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f'pip install "dae-hybrid[{name}]"' in found.stdout
