"""A model of a service, with the calls of the library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dae_hybrid.client.results import (
    checked_gradients_of,
    decoded,
    forward_sensitivity_of,
    gradient_of,
    trajectory_of,
)
from dae_hybrid.client.transport import Transport
from dae_hybrid.client.typed_errors import warn
from dae_hybrid.errors import ModelFileError, ParameterError, ServiceError, UnsupportedError
from dae_hybrid.interface.gradient_check import GradientCheck
from dae_hybrid.interface.parameter_sets import ParameterTable
from dae_hybrid.interface.runs import Parameters
from dae_hybrid.interface.starts import StartChoice
from dae_hybrid.layout import IDLE
from dae_hybrid.numerics.arrays import scalar
from dae_hybrid.options import Options, check_time_span, check_times
from dae_hybrid.sensitivity.results import ForwardSensitivity, Gradient
from dae_hybrid.statement.declarations import Mode
from dae_hybrid.statement.model import HybridModel
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.trajectory.trajectory import Trajectory

#: options that a request can have
OPTIONS = (
    "rtol", "atol", "method", "max_step", "first_step", "max_steps", "max_order", "max_events",
    "max_transitions_per_instant", "simultaneous", "on_zeno",
)  # fmt: skip
#: arguments of the library
KNOWN = {"keep", "adapter", "algorithm", "duality", "step", *(field.name for field in fields(Options))}
NOT_FOUND = 404
#: for models whose results cannot become those of the library
REMEDY = "Read the answer of the service itself: POST /v1/models/{}/simulate."
#: stack level of the caller of a method of `RemoteModel`
CALLER = 3


class RemoteModel:
    """A model of a service. Its calls are those of the library, and return the same types.

    What an argument leaves out has the default of the served model: `t_span`, and the tolerances `defaults`.
    """

    def __init__(self, transport: Transport, name: str) -> None:
        self.name = name
        self._transport, self._lock = transport, Lock()
        self._system: HybridSystem | None = None

    def __repr__(self) -> str:
        return f"<RemoteModel '{self.name}' at {self._transport.url}>"

    @cached_property
    def description(self) -> Mapping[str, Any]:
        """What the service says about the model: parameters, variables, modes, transitions, functionals, limits."""
        found = self._transport.json(f"/v1/models/{self.name}")
        decoded(_described, found)
        if not {"title", "t_span", "rtol", "atol", "parameters"} <= set(found):
            raise ServiceError(f"The service does not describe the model {self.name!r} as expected.")
        return found

    @property
    def title(self) -> str:
        """Title of the model."""
        return str(self.description["title"])

    @property
    def parameters(self) -> dict[str, Any]:
        """Nominal values of the parameters by name: numbers, or arrays."""
        values = {own["name"]: own["value"] for own in self.description["parameters"]}
        return {name: np.array(value) if isinstance(value, list) else value for name, value in values.items()}

    @property
    def functionals(self) -> tuple[str, ...]:
        """Names of the functionals."""
        return tuple(own["name"] for own in self.description["functionals"])

    @property
    def t_span(self) -> tuple[float, float] | None:
        """Default interval of runs."""
        span = self.description["t_span"]
        return None if span is None else (span[0], span[1])

    @property
    def defaults(self) -> dict[str, Any]:
        """Default tolerances of runs."""
        return {name: self.description[name] for name in ("rtol", "atol")}

    @cached_property
    def model(self) -> HybridModel:
        """The statement of the model, read from its model file.

        Raises
        ------
        UnsupportedError
            The model cannot be written to a model file.
        """
        try:
            text = self._transport.text(f"/v1/models/{self.name}/file")
        except ServiceError as reason:
            if reason.__dict__.get("status") != NOT_FOUND:
                raise
            raise UnsupportedError(reason.message, remedy=REMEDY.format(self.name)) from reason
        try:
            return HybridModel.from_text(text, "json")
        except ModelFileError as reason:
            raise ServiceError(f"The service does not send a model file of {self.name!r}: {reason.message}") from reason

    @property
    def system(self) -> HybridSystem:
        """The model, built on this machine from its model file, on first use; nothing is compiled.

        Raises
        ------
        UnsupportedError
            The model cannot be written to a model file, or was built with options that the client does not know.
        """
        with self._lock:
            if self._system is None:
                self._system = self._built()
            return self._system

    def _built(self) -> HybridSystem:
        system = self.model.build(native=False)
        if _shape(system) != _described(self.description):
            raise UnsupportedError(
                f"The service has built the model {self.name!r} with other options than the defaults of build.",
                remedy=REMEDY.format(self.name),
            )
        return system

    def simulate(
        self, t_span: Sequence[float] | None = None, *, parameters: Parameters = None,
        x0: ParameterTable = None, start_mode: Mode | str | None = None, t_eval: ArrayLike | None = None,
        **options: Any,
    ) -> Trajectory:  # fmt: skip
        """Simulate; see `dae_hybrid.simulate`.

        Parameters
        ----------
        t_span : (float, float), optional
            Initial and final time.
        parameters, x0, start_mode, t_eval, **options
            As in `dae_hybrid.simulate`; the options are `OPTIONS`.

        Returns
        -------
        Trajectory
            Outputs, events, functionals, diagnostics and statistics. Steps and dense output stay with the service:
            ``sol(t)`` and ``sol.segments`` raise a `NotKeptError`.

        Raises
        ------
        ServiceError
            The service could not answer; `OverloadError` if it is overloaded, `LimitError` if the run exceeds a limit.
        DaeHybridError
            The typed errors of `dae_hybrid.simulate`.
        """
        start = self._start(x0, start_mode, None)
        body, call = self._call(t_span, start, parameters, options, t_eval)
        answer = self._ask("simulate", body)
        return decoded(trajectory_of, start.system, call, answer)

    def forward_sensitivity(
        self, t_span: Sequence[float] | None = None, *, wrt: str | Sequence[str] | None = None,
        parameters: Parameters = None, x0: ParameterTable = None, start_mode: Mode | str | None = None,
        t_eval: ArrayLike | None = None, strict: bool = True, **options: Any,
    ) -> ForwardSensitivity:  # fmt: skip
        """Simulate with forward sensitivities; see `dae_hybrid.forward_sensitivity` and `simulate`.

        Warns
        -----
        DerivativeWarning
            As in the library; with ``strict=False``, also if a condition for the derivatives fails.
        """
        start = self._start(x0, start_mode, wrt)
        body, call = self._call(t_span, start, parameters, options, t_eval)
        answer = self._ask("forward", body | start.wrt(wrt) | {"strict": strict})
        return decoded(forward_sensitivity_of, start.system, call, answer)

    def adjoint_gradient(
        self, t_span: Sequence[float] | None = None, functional: str | None = None, *,
        wrt: str | Sequence[str] | None = None, parameters: Parameters = None, x0: ParameterTable = None,
        start_mode: Mode | str | None = None, strict: bool = True, **options: Any,
    ) -> Gradient:  # fmt: skip
        """Compute the gradient of a functional; see `dae_hybrid.adjoint_gradient`.

        The result holds the gradient, the diagnostics, and the end of the run; its outputs and events, and adjoint
        variables, stay with the service.
        """
        start = self._start(x0, start_mode, wrt)
        body, call = self._call(t_span, start, parameters, options)
        name = self.system.functional_name(functional)
        answer = self._ask("gradient", body | start.wrt(wrt) | {"functional": name, "strict": strict})
        return decoded(gradient_of, start.system, call, answer)

    def check_gradient(
        self, t_span: Sequence[float] | None = None, functional: str | None = None, *,
        wrt: str | Sequence[str] | None = None, parameters: Parameters = None, x0: ParameterTable = None,
        start_mode: Mode | str | None = None, **options: Any,
    ) -> GradientCheck:  # fmt: skip
        """Compare forward, adjoint and finite-difference gradients; see `dae_hybrid.check_gradient`."""
        start = self._start(x0, start_mode, wrt)
        body, _ = self._call(t_span, start, parameters, options)
        name = self.system.functional_name(functional)
        answer = self._ask("check", body | start.wrt(wrt) | {"functional": name})
        return decoded(checked_gradients_of, answer)

    def _start(self, x0: ParameterTable, start_mode: Mode | str | None, wrt: str | Sequence[str] | None) -> _Start:
        """The start of a call, checked as the library does."""
        choice = StartChoice.of(self.system, x0, start_mode, wrt)
        values, entries = choice.single(x0), dict[str, Any]()
        if choice.layout.size:
            entries["x0"] = {name: plain(scalar(values[choice.layout[name]])) for name in choice.layout.names}
        if start_mode is not None:
            entries["start_mode"] = choice.mode
        return _Start(choice.system_at(values), entries)

    def _call(
        self, t_span: Sequence[float] | None, start: _Start, parameters: Parameters, options: Mapping[str, Any],
        t_eval: ArrayLike | None = None,
    ) -> tuple[dict[str, Any], Options]:  # fmt: skip
        """Check the arguments as the library does; return the body of the request, and all options of the run."""
        system, span = start.system, self.t_span if t_span is None else t_span
        if span is None:
            raise ParameterError(f"The model {self.name!r} has no default interval; t_span is required.")
        ends = check_time_span(span)
        times = check_times(t_eval, ends)
        refused = sorted((set(options) & KNOWN) - set(OPTIONS))
        if refused:
            raise UnsupportedError(
                f"Requests to a service cannot have the option {', '.join(map(repr, refused))}.",
                remedy=f"Legal options: {', '.join(OPTIONS)}.",
            )
        checked = Options.of(self.defaults | dict(options))
        given = {name: plain(getattr(checked, name)) for name in options if options[name] is not None}
        body: dict[str, Any] = {"t_span": list(ends), **given, **start.entries}
        if parameters is not None:
            p = system.parameter_vector(parameters)
            body["parameters"] = {name: plain(scalar(p[part])) for name, part in _parts(self.system)}
        if times is not None:
            body["t_eval"] = times.tolist()
        return body, checked

    def _ask(self, action: str, body: Mapping[str, Any]) -> dict[str, Any]:
        answer = self._transport.json(f"/v1/models/{self.name}/{action}", body)
        warn(answer, CALLER)
        return answer


@dataclass(frozen=True)
class _Start:
    """The system with the start of a call, and the entries of a request that say so."""

    system: HybridSystem
    entries: Mapping[str, Any]

    def wrt(self, names: str | Sequence[str] | None) -> dict[str, Any]:
        """The entry of a request for the parameters to differentiate by."""
        if names is None:
            return {}
        labels = self.system.parameters.labels()
        return {"wrt": [labels[i] for i in self.system.parameter_indices(names)]}


def _parts(system: HybridSystem) -> list[tuple[str, slice]]:
    return [(name, system.parameters[name]) for name in system.parameters.names]


def plain(value: Any) -> Any:
    """Entries of a request as JSON has them: numbers, lists, mappings."""
    if isinstance(value, Mapping):
        return {str(name): plain(own) for name, own in value.items()}
    if isinstance(value, list | tuple):
        return [plain(own) for own in value]
    if hasattr(value, "to_numpy"):  # of pandas and xarray
        return plain(value.to_numpy())
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    return None if isinstance(value, float) and np.isnan(value) else value


def _shape(system: HybridSystem) -> tuple[Any, ...]:
    """What the layout of results depends on."""
    sizes = {name: size for mode in system.modes for name, size in mode.variables.blocks if name != IDLE}
    sizes |= {name: 1 if system.signal(name) is not None else size for name, size in system.memory.blocks}
    return (
        sizes,
        [mode.name for mode in system.modes],
        list(dict.fromkeys(transition.name for transition in system.transitions)),
        [(name, size) for name, size in system.functionals.blocks],
    )


def _described(description: Mapping[str, Any]) -> tuple[Any, ...]:
    """The same of the description."""
    try:
        return (
            {own["name"]: own["size"] for own in description["variables"]},
            description["modes"],
            description["transitions"],
            [(own["name"], own["size"]) for own in description["functionals"]],
        )
    except (KeyError, TypeError) as reason:
        raise ServiceError(f"The service does not describe its model as expected: {reason!r}.") from reason
