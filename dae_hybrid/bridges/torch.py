"""Functionals and outputs as differentiable functions of PyTorch. Needs torch, on the CPU (extra ``[torch]``).

`reverse_mode` is for ``backward()``, `torch.func.grad` and `torch.func.jacrev`, `forward_mode` for `torch.func.jvp` and
`torch.func.jacfwd`. Both work within `torch.func.vmap`; the runs of a mapped call are made together, on all cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from dae_hybrid.bridges.errors import BridgeError
from dae_hybrid.bridges.host import SECOND, BridgeArguments, BridgeFunction, HostFunction, by_name
from dae_hybrid.errors import ParameterError, UnsupportedError
from dae_hybrid.system.system import HybridSystem

try:
    import torch
except ImportError as reason:
    raise BridgeError(
        f"This bridge needs torch, which cannot be imported ({reason}).",
        remedy='Install it by: pip install "dae-hybrid[torch]"',
    ) from reason


def reverse_mode(system: HybridSystem, t_span: Sequence[float], **arguments: Unpack[BridgeArguments]) -> TorchFunction:
    """Make a function for ``backward()``, `torch.func.grad` and `torch.func.jacrev`, by adjoint analysis.

    Parameters
    ----------
    functional : str, optional
        Name of the functional that is the result; optional if the model has only one.
    outputs : str or sequence of str, optional
        Variables, memories or signals that are the result instead, at the times `t_eval`.
    t_eval : array, shape (n_t,), optional
        Output times, strictly increasing.
    wrt : str or sequence of str, optional
        Parameters and initial values (``"x(0)"``) that are the inputs of the function; default all parameters.
    parameters : mapping or array, optional
        Values of the other parameters; default nominal.
    x0, start_mode
        As in `simulate`.
    on_failure : {"nan", "raise"}
        Result of a run that fails, and of a derivative that does not exist, whose value remains: NaN (default), or the
        error itself. `TorchFunction.last_errors` has the typed errors in both cases.
    workers : int, optional
        Number of threads; default the number of cores available to this process.
    adapter, strict, and options of a run
        As in `adjoint_gradient`.

    Returns
    -------
    TorchFunction
        A function of float64 inputs on the CPU, shape (..., n_wrt), or of a dict of those of one point by name.

    Raises
    ------
    ParameterError, OptionError, UnsupportedError
        An argument is invalid or not supported.

    Examples
    --------
    >>> import torch
    >>> from dae_hybrid.bridges.torch import reverse_mode
    >>> from dae_hybrid.problems import hybrid_ode
    >>> cost = reverse_mode(hybrid_ode.system(), (0, 5), functional="G", rtol=1e-10)
    >>> p = torch.tensor([2.9], dtype=torch.float64, requires_grad=True)
    >>> (cost(p) ** 2).backward()
    >>> p.grad.numpy().round(4)
    array([-92.6126])
    """
    host = HostFunction(system, t_span, **arguments)
    return TorchFunction(host, _Pulled)


def forward_mode(system: HybridSystem, t_span: Sequence[float], **arguments: Unpack[BridgeArguments]) -> TorchFunction:
    """Make a function for `torch.func.jvp` and `torch.func.jacfwd`; the arguments are those of `reverse_mode`.

    A tangent of outputs costs one direction of forward analysis, the Jacobian a run with n_wrt directions.

    Examples
    --------
    >>> import torch
    >>> from dae_hybrid.bridges.torch import forward_mode
    >>> from dae_hybrid.problems import hybrid_ode
    >>> x = forward_mode(hybrid_ode.system(), (0, 5), outputs="x", t_eval=[1.0, 4.0], rtol=1e-10)
    >>> torch.func.jacfwd(x)(torch.tensor([2.9], dtype=torch.float64)).shape  # n_t, n_outputs, n_wrt
    torch.Size([2, 1, 1])
    """
    host = HostFunction(system, t_span, **arguments)
    return TorchFunction(host, _Pushed)


class TorchFunction(BridgeFunction):
    """A functional, or outputs at times, as a function of PyTorch; made by `reverse_mode` and `forward_mode`.

    The argument is a tensor of shape (..., n_wrt), or a dict with a tensor for each parameter of `wrt`, of shape
    (size,), or () for a single entry; `torch.func.vmap` takes many points by name. The result has the same leading
    axes, followed by those of one result: (), (k,) of a vector functional, or (n_t, n_outputs). The function can be
    pickled and copied, also as a part of a `torch.nn.Module`.

    Attributes
    ----------
    shape : tuple of int
        Shape of the result at one point.
    wrt : tuple of str
        Names of the inputs, one per entry.
    """

    def __init__(self, host: HostFunction, rule: Any) -> None:
        super().__init__(host)
        self._rule = rule

    def __call__(self, inputs: Any) -> Any:
        """Return the values at these inputs.

        Raises
        ------
        ParameterError
            The inputs are not of type float64 on the CPU, or have another shape.
        """
        if isinstance(inputs, Mapping):
            given = {name: _checked(value) for name, value in inputs.items()}
            found = torch.cat(by_name(given, self._host.blocks()))
        else:
            found = _checked(inputs)
        if found.ndim == 0 or found.shape[-1] != self._host.size:
            raise ParameterError(
                f"Inputs: a tensor of shape (..., {self._host.size}) is needed ({', '.join(self.wrt)}), got shape "
                f"{tuple(found.shape)}."
            )
        if self._rule is _Pulled and not self._host.has_outputs and found.requires_grad and torch.is_grad_enabled():
            return _Linearized.apply(found, self._host)[0]  # the value is a by-product of the gradient
        return self._rule.apply(found, self._host)


def _checked(given: Any) -> Any:
    if not isinstance(given, torch.Tensor):
        raise ParameterError(f"Inputs must be tensors, got {type(given).__name__}.")
    if given.dtype != torch.float64 or given.device.type != "cpu":
        raise ParameterError(
            f"Inputs must be of type float64 on the CPU, got {given.dtype} on {given.device}.",
            remedy="Pass real numbers as float64: inputs.double().cpu(), or torch.set_default_dtype(torch.float64).",
        )
    return given


def _in_front(info: Any, in_dims: Sequence[int | None], *tensors: Any) -> list[Any]:
    """Move the axis of a mapped call to the front of every tensor; those that are not mapped are repeated."""
    found = []
    for tensor, dim in zip(tensors, in_dims, strict=False):
        found.append(tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0))
    return found


class _OnHost(torch.autograd.Function):
    """A call of NumPy with leading axes of all tensors alike. Its derivatives would be second derivatives."""

    @staticmethod
    def forward(host_call: Any, *tensors: Any) -> Any:
        try:
            arrays = [tensor.detach().numpy() for tensor in tensors]
        except RuntimeError as reason:  # the vmap within torch.autograd has no rule for functions
            if "batching rule" not in str(reason).lower():
                raise
            raise UnsupportedError(
                "Batched derivatives of torch.autograd (vectorize=True, is_grads_batched=True) are not supported.",
                remedy="Use torch.func.jacrev or torch.func.jacfwd, or torch.func.vmap of torch.func.vjp.",
            ) from reason
        return torch.from_numpy(host_call(*arrays))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, host_call: Any, *tensors: Any) -> tuple[Any, int]:
        return _OnHost.apply(host_call, *_in_front(info, in_dims[1:], *tensors)), 0

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        raise UnsupportedError(SECOND)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise UnsupportedError(SECOND)


class _Reverse(torch.autograd.Function):
    """A function with a backward pass only."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise UnsupportedError(
            "A function of reverse_mode has no derivative along tangents, and second derivatives are not implemented.",
            remedy="Use forward_mode for torch.func.jvp and torch.func.jacfwd.",
        )


class _Linearized(_Reverse):
    """A functional with its gradient, which adjoint analysis gives with the value."""

    @staticmethod
    def forward(p: Any, host: HostFunction) -> tuple[Any, Any]:
        values, by_p = host.linearize(p.detach().numpy())
        return torch.from_numpy(values.copy()), torch.from_numpy(by_p.copy())

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1])
        ctx.inner = len(inputs[1].shape)

    @staticmethod
    def vmap(info: Any, in_dims: Any, p: Any, host: HostFunction) -> Any:
        return _Linearized.apply(*_in_front(info, in_dims, p), host), (0, 0)

    @staticmethod
    def backward(ctx: Any, cotangents: Any, of_derivatives: Any) -> Any:
        if of_derivatives is not None:
            raise UnsupportedError(SECOND)
        if cotangents is None:
            return None, None
        (by_p,) = ctx.saved_tensors
        factor = cotangents.unsqueeze(-1)
        # a result that a loss leaves out has no derivative, whether its run has failed or not
        terms = torch.where(factor == 0, torch.zeros_like(by_p), factor * by_p)
        return terms.sum(dim=-2) if ctx.inner else terms, None


def _values(p: Any, host: HostFunction) -> Any:
    """The values, as the forward pass of a rule."""
    return torch.from_numpy(host.values(p.detach().numpy()).copy())


class _Pulled(_Reverse):
    """Values with the adjoint of a weighted sum of them, which is computed in the backward pass."""

    forward = staticmethod(_values)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.host = inputs[1]
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def vmap(info: Any, in_dims: Any, p: Any, host: HostFunction) -> Any:
        return _Pulled.apply(*_in_front(info, in_dims, p), host), 0

    @staticmethod
    def backward(ctx: Any, cotangents: Any) -> Any:
        return _OnHost.apply(ctx.host.vjp, *ctx.saved_tensors, cotangents), None


class _Pushed(torch.autograd.Function):
    """Values with their derivatives along tangents."""

    forward = staticmethod(_values)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.host = inputs[1]
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def vmap(info: Any, in_dims: Any, p: Any, host: HostFunction) -> Any:
        return _Pushed.apply(*_in_front(info, in_dims, p), host), 0

    @staticmethod
    def backward(ctx: Any, cotangents: Any) -> Any:
        raise UnsupportedError("A function of forward_mode has no backward pass.", remedy="Use reverse_mode.")

    @staticmethod
    def jvp(ctx: Any, tangents: Any, _: Any) -> Any:
        return _OnHost.apply(ctx.host.jvp, *ctx.saved_tensors, tangents)
