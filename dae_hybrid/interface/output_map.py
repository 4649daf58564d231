"""Outputs at times as a differentiable function of the parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from dae_hybrid.conditions.amplification import lost_along
from dae_hybrid.conditions.certify import attach_trajectory, check_derivative_conditions
from dae_hybrid.conditions.error_estimate import SECOND_RUN_SHARE
from dae_hybrid.errors import EventError, ModelError, OptionError, ParameterError
from dae_hybrid.interface.api import RunOptions, forward_sensitivity, simulate
from dae_hybrid.interface.output_functional import OutputFunctional, outputs_of
from dae_hybrid.interface.parameter_sets import ParameterTable
from dae_hybrid.interface.runs import Parameters, RunBuilder
from dae_hybrid.interface.starts import parted, started
from dae_hybrid.numeric_input import real_array
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.sensitivity.forward import TangentState
from dae_hybrid.sensitivity.results import ForwardSensitivity
from dae_hybrid.statement.declarations import Mode
from dae_hybrid.system.derivative_conditions import Conditions
from dae_hybrid.system.system import HybridSystem, check_built
from dae_hybrid.trajectory.trajectory import Trajectory


class OutputMap:
    """Outputs at times as a differentiable function of the parameters.

    Parameters
    ----------
    system : HybridSystem
        As returned by `HybridModel.build`.
    t_span : (float, float)
        Start and end time.
    t_eval : array, shape (n_t,)
        Output times, strictly increasing, within `t_span`.
    names : str or sequence of str
        Variables, memories or signals, side by side in this order; a vector takes as many columns as it has entries.
    wrt : str or sequence of str, optional
        Parameters and initial values (``"x(0)"``) to differentiate by; default all parameters.
    x0, start_mode
        As in `simulate`.
    adapter, **options
        As in `simulate`.
    strict : bool
        As in `forward_sensitivity`.

    Attributes
    ----------
    shape : (int, int)
        ``(n_t, n_outputs)``.
    layout : Layout
        Names and sizes of the outputs; ``layout["x"]`` are the columns of x.
    labels : tuple of str
        Names of the columns: ``x``, or ``x[0]``, ``x[1]``, ... of a vector.
    wrt : tuple of str
        Names of the parameters to differentiate by, n_wrt of them.
    t : ndarray, shape (n_t,)
        Output times.

    Raises
    ------
    ParameterError, OptionError, UnsupportedError
        A name is unknown, or another argument is invalid or not supported.

    Notes
    -----
    Threads may share a map. At the time of an event an output is the value after it. If that time depends on the
    parameters, the derivative does not exist in general, and all analyses refuse it.

    `derivatives` and `jvp` are forward analyses. `vjp` is an adjoint analysis of the functional
    sum_k c_k . outputs(t_k). Both are made with a copy of the system, which has this functional and no other, and which
    is built when a derivative is computed for the first time.

    Examples
    --------
    >>> import numpy as np
    >>> import dae_hybrid as dh
    >>> from dae_hybrid.interface.output_map import OutputMap
    >>> m = dh.HybridModel("decay")
    >>> k, x = m.parameter("k", 0.5), m.differential("x")
    >>> m.initial(m.mode("run", ode={x: -k * x}), {x: 1.0})
    >>> outputs = OutputMap(m.build(), (0, 2), [1.0, 2.0], "x", rtol=1e-9, atol=1e-12)
    >>> outputs.values({"k": 1.0}).round(6).tolist()
    [[0.367879], [0.135335]]
    >>> outputs.vjp({"k": 1.0}, [[1.0], [0.0]]).round(6)  # d exp(-k)/dk
    array([-0.367879])
    """

    def __init__(
        self,
        system: HybridSystem,
        t_span: Sequence[float],
        t_eval: ArrayLike,
        names: str | Sequence[str],
        *,
        wrt: str | Sequence[str] | None = None,
        x0: ParameterTable = None,
        start_mode: Mode | str | None = None,
        adapter: str = "sundials",
        strict: bool = True,
        **options: Unpack[RunOptions],
    ) -> None:
        check_built(system)
        if "keep" in options:
            raise OptionError("keep= is an option of single calls: outputs at times are all that is kept.")
        if t_eval is None:
            raise OptionError("t_eval must be an array of output times.")
        self._adapter, self._strict, self._options = adapter, strict, options
        self._chosen = wrt if wrt is None or isinstance(wrt, str) else list(wrt)
        self._given = (
            (system, t_span, t_eval, names),
            {"wrt": self._chosen, "x0": x0, "start_mode": start_mode, "adapter": adapter, "strict": strict},
        )
        system, start = parted(system, x0, start_mode, wrt)
        self._system = system
        setup = RunBuilder(system, t_span, None, t_eval, adapter, options)
        RunBuilder(system, t_span, None, t_eval, adapter, options, "forward").conditions(strict=strict)
        self.span, self.t = setup.span, np.asarray(setup.t_eval)
        self.layout, columns = outputs_of(system, [names] if isinstance(names, str) else list(names))
        self._indices = system.parameter_indices(wrt)
        labels = system.parameters.labels()
        self.wrt = tuple(labels[i] for i in self._indices)
        self.labels, self.shape = self.layout.labels(), (self.t.size, self.layout.size)
        self._functional = OutputFunctional(system, self.t, self.layout, columns, **start)
        self._started = started(system, **start)

    def __reduce__(self) -> tuple[Any, ...]:
        positional, named = self._given
        return _output_map, (positional, {**named, **self._options})

    def __repr__(self) -> str:
        return (
            f"<OutputMap of '{self._system.name}': {', '.join(self.layout.names)} at {self.t.size} times, "
            f"{len(self.wrt)} parameters>"
        )

    def values(self, parameters: Parameters = None) -> Array:
        """Simulate, and return the outputs, shape (n_t, n_outputs).

        Parameters
        ----------
        parameters : mapping, labelled array or array, optional
            As in `simulate`.

        Raises
        ------
        DaeHybridError
            Any error of `simulate`.
        ModelError
            The mode that is active at an output time does not have the variable.
        EventError
            The run ends before the last output time.
        """
        return self._outputs(self.trajectory(parameters))

    def trajectory(self, parameters: Parameters = None) -> Trajectory:
        """Simulate, and return the run with outputs at the times."""
        # measurements of functionals may lie outside the span: the copy has none of the original
        own, system = self._functional, self._started
        options: dict[str, Any] = {**self._options}
        if self._system.measurements:
            system, options = own.system, own.options(options)
        return simulate(system, self.span, parameters=parameters, t_eval=self.t, adapter=self._adapter, **options)

    def derivatives(self, parameters: Parameters = None) -> tuple[Array, Array]:
        """Return the outputs and their derivatives, shape (n_t, n_outputs, n_wrt), by forward analysis.

        Raises
        ------
        DaeHybridError
            Any error of `values` and `forward_sensitivity`.
        """
        own = self._functional
        with self._explained(parameters):
            found = forward_sensitivity(
                own.system, self.span, wrt=self._chosen, parameters=parameters, t_eval=self.t,
                adapter=self._adapter, strict=self._strict, **own.options(self._options),
            )  # fmt: skip
        return self._with_derivatives(found)

    def jvp(self, parameters: Parameters, direction: ArrayLike) -> tuple[Array, Array]:
        """Return the outputs and their derivative along a direction, both (n_t, n_outputs), by forward analysis.

        Parameters
        ----------
        direction : array, shape (n_wrt,)
            Change of the parameters `wrt`. The cost is that of one parameter.

        Raises
        ------
        ParameterError
            The direction does not consist of n_wrt finite numbers.
        DaeHybridError
            Any error of `values` and `forward_sensitivity`.
        """
        v = _checked("direction", direction, (len(self.wrt),))
        if not v.any():
            values = self.values(parameters)
            return values, np.zeros_like(values)
        with self._explained(parameters):
            found = self._along(parameters, v)
        values, by_v = self._with_derivatives(found)
        return values, by_v[:, :, 0]

    def vjp(self, parameters: Parameters, cotangents: ArrayLike) -> Array:
        """Return the derivative of sum(cotangents * outputs), shape (n_wrt,), by one adjoint analysis.

        Parameters
        ----------
        cotangents : array, shape (n_t, n_outputs)
            Weights of the outputs.

        Raises
        ------
        ParameterError
            The cotangents do not have this shape, or are not finite.
        DaeHybridError
            Any error of `values` and `adjoint_gradient`.
        """
        weights = _checked("cotangents", cotangents, self.shape)
        largest = float(np.abs(weights).max(initial=0.0))
        if not largest:
            self.values(parameters)
            return np.zeros(len(self.wrt))
        own = self._functional
        call: dict[str, Any] = {
            "t_span": self.span, "wrt": self._chosen, "adapter": self._adapter, "strict": self._strict,
            **own.options(self._options),
        }  # fmt: skip
        p = self._system.parameter_vector(parameters)
        with self._explained(p), own.weighted(weights / largest, **call) as gradient:
            return gradient(p).gradient[own.name] * largest

    # -- parts ----------------------------------------------------------------------------------------------------

    def _along(self, parameters: Parameters, v: Array) -> ForwardSensitivity:
        own = self._functional
        return directional(
            own.system, self.span, parameters, self._indices, v, t_eval=self.t, adapter=self._adapter,
            strict=self._strict, **own.options(self._options),
        )  # fmt: skip

    def _outputs(self, run: Trajectory) -> Array:
        """Return the outputs of a run, complete and finite."""
        if run.t.size < self.t.size or run.final[0] < self.t[-1]:
            last = run.events[-1] if run.ended_by_event else None
            raise EventError(
                f"The run ends at t = {run.final[0]:.12g}, before the last output time, {self.t[-1]:.12g}.",
                mode=run.system.modes[run.final[1]].name,
                transition=None if last is None else last.transition,
                time=run.final[0],
                remedy="Ask for outputs until then, or state the transition with a mode behind it.",
            )
        found = np.hstack([run[name].reshape(self.t.size, -1) for name in self.layout.names])
        bad = np.argwhere(~np.isfinite(found))
        if len(bad):
            row, column = bad[0].tolist()
            mode, label = str(run.modes[row]), self.labels[column]
            raise ModelError(
                f"Output '{label}' does not exist in the mode that is active at t = {self.t[row]:.12g}.",
                mode=mode,
                time=float(self.t[row]),
                variables=[label],
                remedy="Give the mode an equation for it, or ask for outputs at other times.",
            )
        return found

    def _with_derivatives(self, found: ForwardSensitivity) -> tuple[Array, Array]:
        values, count = self._outputs(found.trajectory), len(found.parameters)
        columns = [found[name].reshape(self.t.size, -1, count) for name in self.layout.names]
        return values, np.concatenate(columns, axis=1)

    @contextmanager
    def _explained(self, parameters: Parameters) -> Iterator[None]:
        """Raise the error of `values` instead of that of a measurement that cannot be taken."""
        try:
            yield
        except (ModelError, EventError):
            self.values(parameters)
            raise


def directional(
    system: HybridSystem, span: Sequence[float], parameters: Parameters, indices: Sequence[int], v: Array, *,
    t_eval: ArrayLike | None = None, adapter: str = "sundials", strict: bool = True, **options: Unpack[RunOptions],
) -> ForwardSensitivity:  # fmt: skip
    """Forward analysis in one direction, with the checks of `forward_sensitivity`.

    Parameters
    ----------
    indices : sequence of int
        Indices of parameters, n of them.
    v : ndarray, shape (n,)
        Their change, not zero. The cost is that of one parameter.

    Returns
    -------
    ForwardSensitivity
        With one direction: gradients have shape (k, 1), k = 1 for a number.
    """
    setup = RunBuilder(system, span, parameters, t_eval, adapter, options, "forward")
    conditions, columns = setup.conditions(strict=strict), setup.columns(tuple(indices)) @ v[:, None]
    parts = system.functionals

    def directions(conditions: Conditions) -> TangentState:
        return TangentState(system, setup.p, columns, setup.span[0], conditions)

    def by_name(gradient: Array) -> dict[str, Array]:
        return {name: gradient[parts[name]] for name in parts.names}

    def looser(factor: float) -> dict[str, Array]:
        state = directions(Conditions(strict=False))
        return by_name(state.gradient(setup.looser(factor).run(state)))

    state = directions(conditions)
    run = setup.run(state)
    with attach_trajectory(run):
        gradient = by_name(state.gradient(run))
        verdict = check_derivative_conditions(
            run, conditions, lambda: (run, state), {},
            lost_along(run, gradient, setup.scales(columns), looser, sampled=t_eval is not None), parts.names,
            lambda: setup.looser(SECOND_RUN_SHARE).run(),
        )  # fmt: skip
    return ForwardSensitivity(
        trajectory=run, parameters=("direction",), gradient=gradient, duality={}, _directions=state,
        _verdict=verdict,
    )  # fmt: skip


def _output_map(positional: tuple[Any, ...], named: dict[str, Any]) -> OutputMap:
    """Create the map of a pickle."""
    return OutputMap(*positional, **named)


def _checked(what: str, given: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Return finite numbers of this shape."""
    try:
        found = real_array(given)
    except ValueError as reason:
        raise ParameterError(f"{what} {reason}.") from None
    if found.shape != shape:
        raise ParameterError(f"{what}: an array of shape {shape} is needed, got shape {found.shape}.")
    if not np.isfinite(found).all():
        raise ParameterError(f"{what} must be finite, got {found[~np.isfinite(found)][0]}.")
    return found
