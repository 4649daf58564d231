"""Functionals and outputs as differentiable functions of JAX. Needs jax (extra ``[jax]``).

JAX takes one rule of differentiation for a function: `reverse_mode` is for `jax.grad`, `jax.vjp` and `jax.jacrev`,
`forward_mode` for `jax.jvp` and `jax.jacfwd`; JAX itself refuses the wrong one. Both work within `jax.jit` and
`jax.vmap`; the runs of a mapped call are made together, on all cores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from dae_hybrid.bridges.errors import BridgeError
from dae_hybrid.bridges.host import SECOND, BridgeArguments, BridgeFunction, HostFunction, by_name
from dae_hybrid.errors import ParameterError, UnsupportedError
from dae_hybrid.numeric_input import shown
from dae_hybrid.system.system import HybridSystem

try:
    import jax
    import jax.numpy as jnp
except ImportError as reason:
    raise BridgeError(
        "This bridge needs jax, which is not installed.", remedy='Install it by: pip install "dae-hybrid[jax]"'
    ) from reason


def reverse_mode(system: HybridSystem, t_span: Sequence[float], **arguments: Unpack[BridgeArguments]) -> JaxFunction:
    """Make a function for `jax.grad`, `jax.vjp` and `jax.jacrev`, by adjoint analysis.

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
        Result of a run that fails, and of a derivative that does not exist, whose value remains: NaN (default), or an
        exception. JAX wraps an exception of its own around it. `JaxFunction.last_errors` has the typed errors in both
        cases.
    workers : int, optional
        Number of threads; default the number of cores available to this process.
    adapter, strict, and options of a run
        As in `adjoint_gradient`.

    Returns
    -------
    JaxFunction
        A function of float64 inputs, shape (n_wrt,), or of a dict of them by name.

    Raises
    ------
    ParameterError, OptionError, UnsupportedError
        An argument is invalid or not supported.

    Examples
    --------
    >>> import jax
    >>> jax.config.update("jax_enable_x64", True)
    >>> from dae_hybrid.bridges.jax import reverse_mode
    >>> from dae_hybrid.problems import hybrid_ode
    >>> cost = reverse_mode(hybrid_ode.system(), (0, 5), functional="G", rtol=1e-10)
    >>> gradient = jax.jit(jax.grad(lambda q: cost(q) ** 2))
    >>> gradient(jax.numpy.array([2.9])).round(4).tolist()
    [-92.6126]
    """
    host = HostFunction(system, t_span, **arguments)
    return JaxFunction(host, _pulled if host.has_outputs else _linearized)


def forward_mode(system: HybridSystem, t_span: Sequence[float], **arguments: Unpack[BridgeArguments]) -> JaxFunction:
    """Make a function for `jax.jvp` and `jax.jacfwd`; the arguments are those of `reverse_mode`.

    A tangent of outputs costs one direction of forward analysis, the Jacobian a run with n_wrt directions.

    Examples
    --------
    >>> import jax
    >>> jax.config.update("jax_enable_x64", True)
    >>> from dae_hybrid.bridges.jax import forward_mode
    >>> from dae_hybrid.problems import hybrid_ode
    >>> x = forward_mode(hybrid_ode.system(), (0, 5), outputs="x", t_eval=[1.0, 4.0], rtol=1e-10)
    >>> jax.jacfwd(x)(jax.numpy.array([2.9])).shape  # n_t, n_outputs, n_wrt
    (2, 1, 1)
    """
    host = HostFunction(system, t_span, **arguments)
    return JaxFunction(host, _pushed)


class JaxFunction(BridgeFunction):
    """A functional, or outputs at times, as a function of JAX; made by `reverse_mode` and `forward_mode`.

    The argument is an array of shape (n_wrt,), or a dict with an array for each parameter of `wrt`, of shape (size,) or
    () for a single entry. The result has the shape (), (k,) of a vector functional, or (n_t, n_outputs). The function
    can be pickled and copied.

    Attributes
    ----------
    shape : tuple of int
        Shape of the result.
    wrt : tuple of str
        Names of the inputs, one per entry.
    """

    def __init__(self, host: HostFunction, rule: Callable[[HostFunction], Callable[[Any], Any]]) -> None:
        super().__init__(host)
        self._rule, self._function = rule, rule(host)

    def __reduce__(self) -> tuple[Any, ...]:
        return JaxFunction, (self._host, self._rule)

    def __call__(self, inputs: Any) -> Any:
        """Return the value at these inputs.

        Raises
        ------
        ParameterError
            The inputs are not of type float64, or have another shape.
        """
        if isinstance(inputs, Mapping):
            given = {name: _checked(value) for name, value in inputs.items()}
            return self._function(jnp.concatenate(by_name(given, self._host.blocks())))
        found = _checked(inputs)
        if found.shape != (self._host.size,):
            raise ParameterError(
                f"Inputs: an array of shape ({self._host.size},) is needed ({', '.join(self.wrt)}), got shape "
                f"{found.shape}.",
                remedy="Use jax.vmap for more than one point.",
            )
        return self._function(found)


def _checked(given: Any) -> Any:
    try:
        found = jnp.asarray(given)
    except (TypeError, ValueError, OverflowError) as reason:
        raise ParameterError(f"Inputs must be arrays of type float64, got {shown(given)}.") from reason
    if found.dtype != jnp.float64:
        raise ParameterError(
            f"Inputs must be of type float64, got {found.dtype}.",
            remedy='Pass real numbers as float64, after jax.config.update("jax_enable_x64", True).',
        )
    return found


def _callback(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Callable[..., Any]:
    """Call NumPy from JAX; a mapped call becomes one call with leading axes. It has no second derivatives."""
    result = [jax.ShapeDtypeStruct(shape, jnp.float64) for shape in shapes]
    whole = result[0] if len(shapes) == 1 else tuple(result)

    def on_host(*arrays: Any) -> Any:
        return function(*(np.asarray(array) for array in arrays))

    @jax.custom_jvp
    def call(*arrays: Any) -> Any:
        return jax.pure_callback(on_host, whole, *arrays, vmap_method="broadcast_all")

    @call.defjvp
    def refuse(_primals: Any, _tangents: Any) -> Any:
        raise UnsupportedError(SECOND)

    found: Callable[..., Any] = call
    return found


def _linearized(host: HostFunction) -> Callable[[Any], Any]:
    """A functional with its gradient, which adjoint analysis gives with the value."""
    value = _callback(host.values, host.shape)
    linearize = _callback(host.linearize, host.shape, (*host.shape, host.size))

    @jax.custom_vjp
    def function(p: Any) -> Any:
        return value(p)

    def back(by_p: Any, cotangents: Any) -> tuple[Any]:
        # a result that a loss leaves out has no derivative, whether its run has failed or not
        terms = jnp.where(cotangents[..., None] == 0, 0.0, cotangents[..., None] * by_p)
        return (terms.reshape(-1, host.size).sum(axis=0),)

    function.defvjp(linearize, back)
    return function


def _pulled(host: HostFunction) -> Callable[[Any], Any]:
    """Outputs with the adjoint of a weighted sum of them."""
    values, vjp = _callback(host.values, host.shape), _callback(host.vjp, (host.size,))

    @jax.custom_vjp
    def function(p: Any) -> Any:
        return values(p)

    function.defvjp(lambda p: (values(p), p), lambda p, cotangents: (vjp(p, cotangents),))
    return function


def _pushed(host: HostFunction) -> Callable[[Any], Any]:
    """Values with their derivatives along tangents."""
    values, jvp = _callback(host.values, host.shape), _callback(host.jvp, host.shape)

    @jax.custom_jvp
    def function(p: Any) -> Any:
        return values(p)

    @function.defjvp
    def push(primals: Any, tangents: Any) -> tuple[Any, Any]:
        return values(*primals), jvp(*primals, *tangents)

    return function
