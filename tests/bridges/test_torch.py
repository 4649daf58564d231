"""Functions of PyTorch: gradients, Jacobians, vmap, and what is refused."""

from __future__ import annotations

import copy
import io
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bridged import folded, touching_ball

import dae_hybrid as dh
from dae_hybrid.problems import em_hysteresis

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own parts
    import torch

from dae_hybrid.bridges.host import HostFunction
from dae_hybrid.bridges.torch import forward_mode, reverse_mode

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.*:FutureWarning")
EM, BALL = em_hysteresis.system(), touching_ball().build()
TIMES = np.linspace(0.5, 4.0, 6)
TIGHT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-13}
OF_EM: dict[str, Any] = {"wrt": ["ka", "kb"], **TIGHT}
OF_BALL: dict[str, Any] = {"wrt": ["g", "e"], **TIGHT}
P = torch.tensor([9.81, 0.8], dtype=torch.float64)
Q = torch.tensor(EM.nominal[:2].copy())

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
    inputs, check = (p.clone().requires_grad_(),), {"eps": 1e-4 * float(p[-1]), "rtol": 1e-4, "atol": 1e-8}
    assert torch.autograd.gradcheck(reverse_mode(system, span, **call), inputs, **check)
    ahead = forward_mode(system, span, **call)
    assert torch.autograd.gradcheck(ahead, inputs, check_forward_ad=True, check_backward_ad=False, **check)


@ALL
def test_both_modes_have_the_same_jacobian(case: Any) -> None:
    system, span, call, p = case
    back = torch.func.jacrev(reverse_mode(system, span, **call))(p)
    ahead = torch.func.jacfwd(forward_mode(system, span, **call))(p)
    np.testing.assert_allclose(back, ahead, atol=1e-7 * float(ahead.abs().max()))


@ALL
def test_leading_axes_and_vmap_are_batches(case: Any) -> None:
    system, span, call, p = case
    function = reverse_mode(system, span, **call)
    points = p * torch.tensor([[1.0], [1.01], [0.98]], dtype=torch.float64)
    gradient = torch.func.grad(lambda q: (function(q) ** 2).sum())
    mapped = torch.func.vmap(gradient)(points)
    assert len(function.last_errors) == 3
    np.testing.assert_allclose(mapped, torch.stack([gradient(q) for q in points]), rtol=1e-7)
    leaf = points.clone().requires_grad_()
    (function(leaf) ** 2).sum().backward()
    np.testing.assert_allclose(leaf.grad, mapped, rtol=1e-7)


def test_inputs_by_name() -> None:
    cost = reverse_mode(BALL, (0, 2), functional="height", **OF_BALL)
    named = {"e": P[1].clone().requires_grad_(), "g": P[:1].clone().requires_grad_()}
    cost(named).backward()
    leaf = P.clone().requires_grad_()
    cost(leaf).backward()
    np.testing.assert_allclose([named["g"].grad[0], named["e"].grad], leaf.grad, rtol=1e-12)


@KINDS
def test_refusals_are_nan_with_a_reason(of: Any) -> None:
    call: dict[str, Any] = {"wrt": ["g", "top"], **TIGHT}
    points = torch.tensor([[9.81, 1.0], [9.81, 1.4]], dtype=torch.float64, requires_grad=True)
    function = reverse_mode(BALL, (0, 2), **of, **call)
    function(points).sum().backward()
    assert torch.isnan(points.grad[0]).all()
    assert torch.isfinite(points.grad[1]).all()
    assert isinstance(function.last_errors[0], dh.GrazingError)
    refusing = reverse_mode(BALL, (0, 2), on_failure="raise", **of, **call)
    with pytest.raises(dh.GrazingError):
        refusing(points).sum().backward()


@pytest.mark.parametrize("on_failure", ["nan", "raise"])
def test_values_do_not_depend_on_derivatives(monkeypatch: pytest.MonkeyPatch, on_failure: Any) -> None:
    system, points = folded().build(), torch.tensor([[0.9], [1.0], [1.1]], dtype=torch.float64)
    distance = reverse_mode(system, (0, 1), on_failure=on_failure, **TIGHT)
    expected = [
        dh.simulate(system, (0, 1), parameters={"p": q}, **TIGHT).functionals["distance"] for q in (0.9, 1, 1.1)
    ]
    leaf = points.clone().requires_grad_()
    with monkeypatch.context() as patch:
        patch.setattr(HostFunction, "linearize", None)  # no gradient, no adjoint analysis
        with torch.no_grad():
            np.testing.assert_allclose(distance(leaf), expected, rtol=1e-9)
        for values in (distance(points), torch.func.vmap(distance)(points)):
            np.testing.assert_allclose(values, expected, rtol=1e-9)
            assert not values.requires_grad


def test_a_refused_derivative_leaves_the_value() -> None:
    distance = reverse_mode(folded().build(), (0, 1), **TIGHT)
    points = torch.tensor([[0.9], [1.0], [1.1]], dtype=torch.float64)
    values, slopes = [1 + 0.1 * np.exp(-1), 1, 1 + 0.1 * np.exp(-1)], [-np.exp(-1), np.nan, np.exp(-1)]
    per_run, total = torch.func.grad_and_value(distance), lambda q: torch.func.vmap(distance)(q).sum()
    mapped, own = torch.func.vmap(per_run)(points)
    np.testing.assert_allclose(own, values, rtol=1e-8)
    np.testing.assert_allclose(mapped[:, 0], slopes, rtol=1e-7)
    of_total, found = torch.func.grad_and_value(total)(points)
    np.testing.assert_allclose(found, sum(values), rtol=1e-8)
    np.testing.assert_allclose(of_total[:, 0], slopes, rtol=1e-7)
    for call in (distance, torch.func.vmap(distance)):
        leaf = points.clone().requires_grad_()
        found = call(leaf)
        np.testing.assert_allclose(found.detach(), values, rtol=1e-8)
        found.sum().backward()
        np.testing.assert_allclose(leaf.grad[:, 0], slopes, rtol=1e-7)


@KINDS
def test_a_loss_may_leave_out_runs_that_failed(of: Any) -> None:
    points = torch.tensor([[9.81, 0.8], [np.nan, 0.8]], dtype=torch.float64, requires_grad=True)
    torch.nansum(reverse_mode(BALL, (0, 2), **of, **OF_BALL)(points)).backward()
    assert torch.isfinite(points.grad[0]).all()
    np.testing.assert_array_equal(points.grad[1], [0.0, 0.0])


@KINDS
def test_second_derivatives_are_refused(of: Any) -> None:
    cost, leaf = reverse_mode(BALL, (0, 2), **of, **OF_BALL), P.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((cost(leaf) ** 2).sum(), leaf, create_graph=True)
    with pytest.raises(dh.UnsupportedError, match="second derivative"):
        gradient.sum().backward()
    with pytest.raises(dh.UnsupportedError, match="second derivative"):
        torch.func.grad(lambda p: torch.func.grad(lambda q: cost(q).sum())(p).sum())(P)
    ahead = forward_mode(BALL, (0, 2), **of, **OF_BALL)
    with pytest.raises(dh.UnsupportedError, match="second derivative"):
        torch.func.jacfwd(torch.func.jacfwd(ahead))(P)


@KINDS
def test_wrong_directions_are_refused(of: Any) -> None:
    cost, ahead = (mode(BALL, (0, 2), **of, **OF_BALL) for mode in (reverse_mode, forward_mode))
    with pytest.raises(dh.UnsupportedError, match="forward_mode"):
        torch.func.jvp(cost, (P,), (P,))
    with pytest.raises(dh.UnsupportedError, match="second derivatives"):
        torch.func.hessian(cost)(P)
    with pytest.raises(dh.UnsupportedError, match="reverse_mode"):
        torch.func.grad(lambda p: ahead(p).sum())(P)


def test_batched_derivatives_of_autograd() -> None:
    leaf, of = P.clone().requires_grad_(), {"outputs": "y", "t_eval": [0.4, 1.9], **OF_BALL}
    position, ahead = (mode(BALL, (0, 2), **of) for mode in (reverse_mode, forward_mode))
    cost = reverse_mode(BALL, (0, 2), functional="height", **OF_BALL)
    jacobian = torch.autograd.functional.jacobian
    np.testing.assert_allclose(jacobian(cost, leaf, vectorize=True), torch.func.grad(cost)(P), rtol=1e-7)
    np.testing.assert_allclose(jacobian(position, leaf), torch.func.jacrev(position)(P), rtol=1e-7)
    for refused in (
        lambda: jacobian(position, leaf, vectorize=True),
        lambda: torch.autograd.grad(position(leaf), leaf, torch.ones(3, 2, 1).double(), is_grads_batched=True),
        lambda: jacobian(ahead, leaf, vectorize=True, strategy="forward-mode"),
    ):
        with pytest.raises(dh.UnsupportedError, match=r"torch\.func"):
            refused()


@KINDS
@pytest.mark.parametrize("mode", [reverse_mode, forward_mode])
def test_a_module_can_be_copied_and_saved(of: Any, mode: Any) -> None:
    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p, self.function = torch.nn.Parameter(P.clone()), mode(BALL, (0, 2), **of, **OF_BALL)

        def forward(self) -> Any:
            return self.function(self.p)

    module, file = Module(), io.BytesIO()
    torch.save(module.function, file)
    file.seek(0)
    expected = module().detach()
    np.testing.assert_array_equal(copy.deepcopy(module)().detach(), expected)
    np.testing.assert_array_equal(torch.load(file, weights_only=False)(P), expected)


def test_many_points_by_name_are_mapped() -> None:
    cost = reverse_mode(BALL, (0, 2), functional="height", **OF_BALL)
    points = {"g": P[:1].repeat(3, 1), "e": torch.tensor([0.7, 0.8, 0.85], dtype=torch.float64)}
    expected = cost(torch.cat([points["g"], points["e"][:, None]], dim=1))
    np.testing.assert_array_equal(torch.func.vmap(cost)(points), expected)
    with pytest.raises(dh.ParameterError, match="vmap"):
        cost(points)


def test_other_types_are_refused() -> None:
    cost = reverse_mode(BALL, (0, 2), functional="height", **OF_BALL)
    for bad, got in (
        (P.float(), "float64 on the CPU, got torch.float32 on cpu"),
        (torch.ones(2, dtype=torch.int64), "got torch.int64 on cpu"),
        (P + 0j, "got torch.complex128"),
        (P.to("meta"), "on meta"),
        (P.numpy(), "tensors, got ndarray"),
    ):
        with pytest.raises(dh.ParameterError, match=got):
            cost(bad)
    with pytest.raises(dh.ParameterError, match="shape"):
        cost(torch.ones(3, dtype=torch.float64))


def test_the_example_of_the_page() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "bridges.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    assert names["values"].shape == (2, 3, 2)
    assert torch.isfinite(names["stiffness"].grad).all()
