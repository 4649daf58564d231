"""Functions of JAX: gradients, Jacobians, vmap, jit, and what is refused."""

from __future__ import annotations

import copy
import pickle
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.test_util as test_util
import numpy as np
import pytest
from bridged import folded, touching_ball

import dae_hybrid as dh
from dae_hybrid.problems import em_hysteresis

jax.config.update("jax_enable_x64", True)
jnp = jax.numpy

from dae_hybrid.bridges.jax import forward_mode, reverse_mode  # noqa: E402

EM, BALL = em_hysteresis.system(), touching_ball().build()
TIMES = np.linspace(0.5, 4.0, 6)
TIGHT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-13}
OF_EM: dict[str, Any] = {"wrt": ["ka", "kb"], **TIGHT}
Q = jnp.array(EM.nominal[:2])
OF_BALL: dict[str, Any] = {"wrt": ["g", "e"], **TIGHT}
P = jnp.array([9.81, 0.8])
POINTS = jnp.array([[9.81, 0.8], [9.5, 0.7], [10.0, 0.75]])

CASES = {
    "functional of a material with memory": (EM, (0, 4), {"functional": "G", **OF_EM}, Q),
    "outputs of a material with memory": (EM, (0, 4), {"outputs": ["u", "z"], "t_eval": TIMES, **OF_EM}, Q),
    "functional of a ball": (BALL, (0, 2), {"functional": "height", **OF_BALL}, P),
    "outputs of a ball": (BALL, (0, 2), {"outputs": ["y", "v"], "t_eval": [0.4, 0.7, 1.9], **OF_BALL}, P),
}
ALL = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
KINDS = pytest.mark.parametrize("of", [{"functional": "height"}, {"outputs": "y", "t_eval": [0.4, 1.9]}], ids=str)


@ALL
def test_gradients_agree_with_differences(case: Any) -> None:
    system, span, call, p = case
    check = {"order": 1, "rtol": 1e-4, "atol": 1e-8, "eps": 1e-4 * float(p[-1])}
    test_util.check_grads(reverse_mode(system, span, **call), (p,), modes=["rev"], **check)
    test_util.check_grads(forward_mode(system, span, **call), (p,), modes=["fwd"], **check)


@ALL
def test_both_modes_have_the_same_jacobian(case: Any) -> None:
    system, span, call, p = case
    back = jax.jacrev(reverse_mode(system, span, **call))(p)
    ahead = jax.jit(jax.jacfwd(forward_mode(system, span, **call)))(p)
    assert back.shape == ahead.shape
    np.testing.assert_allclose(back, ahead, atol=1e-7 * float(jnp.abs(ahead).max()))


def test_a_composed_loss_is_differentiated() -> None:
    system, span, call, _ = CASES["outputs of a ball"]
    y, data = reverse_mode(system, span, **call), jnp.array([[0.5, -2.0], [0.2, 1.0], [0.4, 1.0]])

    def loss(p: Any, scale: Any) -> Any:
        return jnp.log(1 + jnp.sum((scale * y(p) - data) ** 2))

    value, (by_p, by_scale) = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(P, 1.1)
    for k, step in enumerate(np.eye(2) * 1e-5):
        np.testing.assert_allclose((loss(P + step, 1.1) - loss(P - step, 1.1)) / 2e-5, by_p[k], rtol=1e-5)
    np.testing.assert_allclose((loss(P, 1.1 + 1e-6) - loss(P, 1.1 - 1e-6)) / 2e-6, by_scale, rtol=1e-5)
    assert np.isfinite(value)


@ALL
def test_a_mapped_gradient_is_one_batch(case: Any) -> None:
    system, span, call, p = case
    function = reverse_mode(system, span, **call)
    points = p * jnp.array([[1.0], [1.01], [0.98]])
    gradient = jax.grad(lambda q: jnp.sum(function(q) ** 2))
    mapped = jax.jit(jax.vmap(gradient))(points)
    assert len(function.last_errors) == 3
    np.testing.assert_allclose(mapped, [gradient(q) for q in points], rtol=1e-7)


def test_inputs_by_name() -> None:
    cost = reverse_mode(BALL, (0, 2), functional="height", **OF_BALL)
    by_name = jax.grad(cost)({"e": P[1], "g": P[:1]})
    np.testing.assert_allclose([by_name["g"][0], by_name["e"]], jax.grad(cost)(P), rtol=1e-12)
    over = jax.vmap(jax.grad(cost), in_axes=({"g": 0, "e": None},))({"g": POINTS[:, 0], "e": P[1]})
    assert over["e"].shape == (3,)
    with pytest.raises(dh.ParameterError, match="must be g, e"):
        cost({"g": P[0]})


@KINDS
def test_refusals_are_nan_with_a_reason(of: Any) -> None:
    call: dict[str, Any] = {"wrt": ["g", "top"], **TIGHT}
    points = jnp.array([[9.81, 1.0], [9.81, 1.4]])
    function = reverse_mode(BALL, (0, 2), **of, **call)
    assert jnp.isfinite(jax.vmap(function)(points)).all()
    found = jax.vmap(jax.grad(lambda p: jnp.sum(function(p))))(points)
    assert jnp.isnan(found[0]).all()
    assert jnp.isfinite(found[1]).all()
    assert isinstance(function.last_errors[0], dh.GrazingError)
    assert function.last_errors[1] is None
    assert function.statistics["failed"] == 1
    ahead = forward_mode(BALL, (0, 2), **of, **call)
    assert jnp.isnan(jax.jacfwd(ahead)(points[0])).all()


@KINDS
def test_a_loss_may_leave_out_runs_that_failed(of: Any) -> None:
    points = jnp.array([[9.81, 0.8], [jnp.nan, 0.8]])
    function = reverse_mode(BALL, (0, 2), **of, **OF_BALL)
    found = jax.grad(lambda q: jnp.nansum(jax.vmap(function)(q)))(points)
    np.testing.assert_allclose(found[0], jax.grad(lambda p: jnp.sum(function(p)))(P), rtol=1e-9)
    np.testing.assert_array_equal(found[1], [0.0, 0.0])


def test_a_masked_loss_has_the_same_value_under_value_and_grad() -> None:
    distance, points = reverse_mode(folded().build(), (0, 1), **TIGHT), jnp.array([[0.9], [1.0], [1.1]])

    def loss(q: Any) -> Any:
        found = jax.vmap(distance)(q)
        return jnp.sum(jnp.where(jnp.isfinite(found), found, 0.0)) / jnp.sum(jnp.isfinite(found))

    value, gradient = jax.value_and_grad(loss)(points)
    np.testing.assert_allclose([value, loss(points)], 1 + 0.2 * np.exp(-1) / 3, rtol=1e-8)
    np.testing.assert_allclose(gradient[:, 0] * 3, [-np.exp(-1), np.nan, np.exp(-1)], rtol=1e-7)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_failure_may_be_raised() -> None:
    cost = reverse_mode(BALL, (0, 2), functional="height", wrt=["g", "top"], on_failure="raise", **TIGHT)
    with pytest.raises(jax.errors.JaxRuntimeError, match="GrazingError"):
        jax.grad(cost)(jnp.array([9.81, 1.0]))
    assert isinstance(cost.last_errors[0], dh.GrazingError)


def test_second_derivatives_are_refused() -> None:
    for of in ({"functional": "height"}, {"outputs": "y", "t_eval": [0.4, 1.9]}):
        cost = reverse_mode(BALL, (0, 2), **of, **OF_BALL)
        ahead = forward_mode(BALL, (0, 2), **of, **OF_BALL)

        def loss(p: Any, cost: Any = cost) -> Any:
            return jnp.sum(cost(p) ** 2)

        for second in (
            lambda loss=loss: jax.hessian(loss)(P),
            lambda loss=loss: jax.grad(lambda p: jax.grad(loss)(p).sum())(P),
            lambda ahead=ahead: jax.jacfwd(jax.jacfwd(ahead))(P),
        ):
            with pytest.raises(dh.UnsupportedError, match="second derivative"):
                second()
    with pytest.raises(TypeError, match="forward-mode"):  # of JAX itself
        jax.jvp(cost, (P,), (P,))
    with pytest.raises(ValueError, match="do not support transpose"):  # of JAX itself
        jax.grad(lambda p: ahead(p).sum())(P)


@KINDS
@pytest.mark.parametrize("mode", [reverse_mode, forward_mode])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda function: pickle.loads(pickle.dumps(function))])
def test_a_function_can_be_copied(of: Any, mode: Any, copied: Any) -> None:
    function = mode(BALL, (0, 2), **of, **OF_BALL)
    jacobian = jax.jacrev if mode is reverse_mode else jax.jacfwd
    np.testing.assert_array_equal(jacobian(copied(function))(P), jacobian(function)(P))


def test_other_types_are_refused() -> None:
    cost = reverse_mode(BALL, (0, 2), functional="height", **OF_BALL)
    for bad, got in ((P.astype(jnp.float32), "float32"), (jnp.ones(2, int), "int64"), (P + 0j, "complex128")):
        with pytest.raises(dh.ParameterError, match=f"float64, got {got}"):
            cost(bad)
    for odd in ("a", None, {"g": "a", "e": 0.8}):
        with pytest.raises(dh.ParameterError, match="arrays of type float64, got"):
            cost(odd)
    with pytest.raises(dh.ParameterError, match=r"jax\.vmap"):
        cost(POINTS)


def test_jax_without_double_precision_is_refused() -> None:
    code = """if True:
        from dae_hybrid.bridges.jax import reverse_mode
        from dae_hybrid.problems import hybrid_ode
        try:
            reverse_mode(hybrid_ode.system(), (0, 5))([2.9])
        except ValueError as error:
            print(error)
        """
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "jax_enable_x64" in found.stdout


@pytest.mark.campaign
def test_a_neural_force_is_learnt_with_a_coefficient_of_restitution() -> None:
    example = runpy.run_path(str(Path(__file__).resolve().parents[2] / "examples" / "train_neural_ode.py"))
    found = example["main"](steps=40)
    assert found["weights"] == 337
    assert found["runs"] >= 40 * 16
    assert found["impacts"] >= 16
    assert found["loss after"] < 0.1 * found["loss before"]
    assert found["unseen after"] < 0.5 * found["unseen before"]
