"""Carry out requests, in a worker process: results as bytes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from dae_hybrid.cancellation import Cancelled
from dae_hybrid.compile.pipeline import begin_loops
from dae_hybrid.ensembles.worker import cancellation_of
from dae_hybrid.errors import DaeHybridError, OptionError, ParameterError
from dae_hybrid.interface.api import adjoint_gradient, forward_sensitivity, simulate
from dae_hybrid.interface.gradient_check import check_gradient
from dae_hybrid.interface.starts import for_call
from dae_hybrid.layout import Layout
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.records import EventRecord
from dae_hybrid.service.encoding import arrow_bytes, csv_bytes, json_bytes
from dae_hybrid.service.entries import at_path, pointer
from dae_hybrid.service.models import LoadedModel, ServedModel
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.trajectory.datasets import gradient_columns
from dae_hybrid.trajectory.diagnostics import Diagnostics
from dae_hybrid.trajectory.trajectory import Trajectory

#: vectors of an event in a response
SIDES = 4


class Limits(NamedTuple):
    """Limits of a run; see `Settings`."""

    max_outputs: int
    max_steps: int


class Result(NamedTuple):
    """A result: facts for JSON, and columns for CSV and Arrow."""

    facts: dict[str, Any]
    columns: Callable[[], Mapping[str, Any]]


_loaded: dict[ServedModel, LoadedModel] = {}


def loaded(served: ServedModel) -> LoadedModel:
    """The built model, built on first use."""
    if served not in _loaded:
        _loaded[served] = LoadedModel(served)
    return _loaded[served]


def describe(models: list[ServedModel]) -> list[tuple[dict[str, Any], str | None]]:
    """Build every model; return its description and its model file.

    The loop of the integrator is compiled, too: the time of requests is limited.
    """
    loops = begin_loops()
    found = [(model.describe(), model.file()) for model in map(loaded, models)]
    for loop in loops:
        loop.result()
    return found


@contextmanager
def supervised(token: str) -> Iterator[list[warnings.WarningMessage]]:
    """Collect warnings, and drop the partial results of errors, which are not sent.

    Raises
    ------
    Cancelled
        The token was cancelled.
    """
    try:
        with cancellation_of(token), warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            yield seen
    except DaeHybridError as error:
        error.release()
        raise


def carry_out(
    served: ServedModel, action: str, call: dict[str, Any], form: str, limits: Limits, token: str
) -> tuple[bytes, list[str]] | None:
    """Carry out a request.

    Parameters
    ----------
    action : {"simulate", "forward", "gradient", "check"}
    call : dict
        The body of the request, checked by `dae_hybrid.service.requests`.
    form : {"json", "csv", "arrow"}
    token : str
        Cancels the run.

    Returns
    -------
    (bytes, list of str) or None
        The response and the warnings; None if the run was cancelled.

    Raises
    ------
    DaeHybridError
        With the attribute `path` if one entry of the request is at fault: its JSON pointer.
    """
    try:
        with supervised(token) as seen:
            model = loaded(served)
            found = ACTIONS[action](model, dict(call), limits)
            found.facts["warnings"] = [str(warning.message) for warning in seen]
            found.facts["warning_kinds"] = [warning.category.__name__ for warning in seen]
            if form == "json":
                content = json_bytes(found.facts)
            else:
                content = csv_bytes(found.columns()) if form == "csv" else _arrow(found)
            return content, found.facts["warnings"]
    except Cancelled:
        return None
    except DaeHybridError as error:
        if not hasattr(error, "path"):
            error.path = _path(error, call)  # type: ignore[attr-defined]
        raise


def _arrow(found: Result) -> bytes:
    columns = found.columns()
    return arrow_bytes(columns, {key: v for key, v in found.facts.items() if key not in ("t", "modes", "values")})


def _path(error: DaeHybridError, call: Mapping[str, Any]) -> str | None:
    """The entry that a message of an option begins with."""
    word = re.match(r"\w+", error.message)
    at_fault = isinstance(error, OptionError | ParameterError) and word is not None and word[0] in call
    return f"/{word[0]}" if at_fault and word is not None else None


# -- arguments --------------------------------------------------------------------------------------------


def parameters_of(system: HybridSystem, given: Mapping[str, Any]) -> Array:
    """All parameters; an error has the path of the entry."""
    try:
        return system.parameter_vector(given)
    except ParameterError as error:
        for name, value in given.items():
            try:
                system.parameter_vector({name: value})
            except ParameterError:
                raise at_path(error, pointer(("parameters", name))) from None
        raise at_path(error, "/parameters") from None


def arguments_of(
    model: LoadedModel, call: dict[str, Any], limits: Limits
) -> tuple[HybridSystem, list[float], dict[str, Any]]:
    """System with the start of a run, interval and keyword arguments."""
    span = span_of(model, call.pop("t_span", None))
    options = model.defaults | call
    options["max_steps"] = min(options.get("max_steps", limits.max_steps), limits.max_steps)
    options["parameters"] = parameters_of(model.system, call.pop("parameters", {}))
    points = options.pop("points", None)
    if points is not None:
        if "t_eval" in options:
            raise at_path(OptionError("t_eval and points exclude each other."), "/points")
        if points > limits.max_outputs:
            raise at_path(OptionError(f"points must be at most {limits.max_outputs}, got {points}."), "/points")
        options["t_eval"] = np.linspace(span[0], span[1], points)
    start = options.pop("x0", None), options.pop("start_mode", None)
    system = for_call(model.system, *start, options.get("wrt"))
    return system, span, options


def span_of(model: LoadedModel, given: Sequence[float] | None) -> list[float]:
    """The interval of a request, that of the model by default."""
    span = given or model.t_span
    if span is None:
        message = f"The model {model.name!r} has no default interval; t_span is required."
        raise at_path(ParameterError(message), "/t_span")
    return list(span)


def _check_size(numbers: int, limits: Limits) -> None:
    if numbers > limits.max_outputs:
        raise OptionError(
            f"The response would have {numbers} numbers; at most {limits.max_outputs} are allowed.",
            remedy="Ask for fewer output times (t_eval or points).",
        )


def _check_rows(system: HybridSystem, rows: int, factor: int, limits: Limits, events: int = 0) -> None:
    """Check the numbers of outputs and of events, which have values and rates on both sides."""
    widths = {name: size for mode in system.modes for name, size in mode.variables.blocks}
    _check_size((rows + SIDES * events) * (sum(widths.values()) + system.memory.size) * factor, limits)


# -- the actions ------------------------------------------------------------------------------------------


def _simulate(model: LoadedModel, call: dict[str, Any], limits: Limits) -> Result:
    system, span, options = arguments_of(model, call, limits)
    _check_rows(system, len(options.get("t_eval", ())), 1, limits)
    sol = simulate(system, span, **options)
    _check_rows(system, sol.t.size, 1, limits, sol.n_events)
    return Result(_run(model, sol, sol.diagnostics), sol.columns)


def _forward(model: LoadedModel, call: dict[str, Any], limits: Limits) -> Result:
    system, span, options = arguments_of(model, call, limits)
    factor = 1 + len(system.parameter_indices(options.get("wrt")))
    _check_rows(system, len(options.get("t_eval", ())), factor, limits)
    fsa = forward_sensitivity(system, span, **options)
    _check_rows(system, fsa.t.size, factor, limits, fsa.trajectory.n_events)
    points = [p for p in fsa.trajectory.output_points if p.derivatives is not None]
    facts = _run(model, fsa.trajectory, fsa.diagnostics) | {
        "n_notes_of_run": len(fsa.trajectory.diagnostics),
        "n_checks_of_run": len(fsa.trajectory.diagnostics.checks),
        "wrt": fsa.parameters,
        "gradients": fsa.gradient,
        "sensitivities": {name: fsa[name] for name in fsa.trajectory.names},
        "coefficient_sensitivities": _coefficients(fsa.trajectory, [p.derivatives[2] for p in points if p.derivatives]),
        "event_time_sensitivity": fsa.event_time_sensitivity,
        "event_sensitivities": [
            {name: getattr(event, name) for name in ("state_minus", "state_plus", "memory_minus", "memory_plus")}
            for event in fsa.event_sensitivities
        ],
    }
    return Result(facts, lambda: fsa.trajectory.columns() | fsa.columns())


def _gradient(model: LoadedModel, call: dict[str, Any], limits: Limits) -> Result:
    system, span, options = arguments_of(model, call, limits)
    found = adjoint_gradient(system, span, options.pop("functional", None), **options)
    facts = _about(model, found.trajectory, found.diagnostics) | {
        "n_notes_of_run": len(found.trajectory.diagnostics),
        "n_checks_of_run": len(found.trajectory.diagnostics.checks),
        "functional": found.functional,
        "value": found.value,
        "wrt": found.parameters,
        "gradient": found.gradient,
        "backward_statistics": dict(found.statistics),
        "algorithm": found.algorithm,
    }
    return Result(facts, lambda: gradient_columns(found.functional, found.parameters, {"gradient": found.gradient}))


def _check(model: LoadedModel, call: dict[str, Any], limits: Limits) -> Result:
    system, span, options = arguments_of(model, call, limits)
    found = check_gradient(system, span, options.pop("functional", None), **options)
    facts = {
        "model": model.name,
        "functional": found.functional,
        "value": found.value,
        "wrt": found.parameters,
        "gradients": found.gradients,
        "differences": {way: found.difference(way, "forward") for way in found.gradients if way != "forward"},
        "same_events": found.same_events,
        "table": str(found),
    }
    return Result(facts, lambda: gradient_columns(found.functional, found.parameters, found.gradients))


ACTIONS: Mapping[str, Callable[[LoadedModel, dict[str, Any], Limits], Result]] = {
    "simulate": _simulate,
    "forward": _forward,
    "gradient": _gradient,
    "check": _check,
}


# -- results ----------------------------------------------------------------------------------------------


def _about(model: LoadedModel, sol: Trajectory, diagnostics: Diagnostics) -> dict[str, Any]:
    """Facts of a run without its outputs."""
    end, mode, x, memory = sol.final
    start = sol.start
    first = sol.system.modes.index(start.mode)
    return {
        "model": model.name,
        "t_span": list(sol.t_span),
        "t_end": end,
        "ended_by_event": sol.ended_by_event,
        "parameters": named_values(sol.system.parameters, sol.parameters),
        "functionals": dict(sol.functionals),
        "integrals": sol.integrals,
        "start": {
            "mode": start.mode.name,
            "values": _state(sol, first, start.x, start.at.m),
            "rates": named_values(start.mode.variables, start.at.xdot),
        },
        "final": {"mode": sol.system.modes[mode].name, "values": _state(sol, mode, x, memory)},
        "accumulation": sol.accumulation,
        "n_segments": sol.parts.n_segments,
        "n_events": sol.n_events,
        "statistics": dict(sol.statistics),
        "diagnostics": list(diagnostics),
        "checks": [
            {"name": check.name, "passed": check.passed, "detail": check.detail} for check in diagnostics.checks
        ],
    }


def _run(model: LoadedModel, sol: Trajectory, diagnostics: Diagnostics) -> dict[str, Any]:
    """Facts of a run with its outputs and events."""
    indices = {mode.name: i for i, mode in enumerate(sol.system.modes)}
    return _about(model, sol, diagnostics) | {
        "t": sol.t,
        "modes": sol.modes.tolist(),
        "values": {name: sol[name] for name in sol.names},
        "coefficients": _coefficients(sol, [point.memory for point in sol.output_points]),
        "events": [
            _event(sol, event, indices) | {"outputs_before": count}
            for event, count in zip(sol.events, sol.parts.outputs_before_events().tolist(), strict=True)
        ],
    }


def _coefficients(sol: Trajectory, memories: list[Array]) -> dict[str, Array]:
    """The coefficients of the signals in the memory at the outputs, or their derivatives, by name."""
    found = {}
    for name in (name for name in sol.system.memory.names if sol.system.signal(name) is not None):
        parts = [memory[:, sol.system.memory[name]] for memory in memories]
        found[name] = np.zeros((sol.t.size, *parts[0].shape[1:])) if parts else np.zeros(0)
        for point, own in zip(sol.output_points, parts, strict=True):
            found[name][point.places] = own
    return found


def _event(sol: Trajectory, event: EventRecord, indices: Mapping[str, int]) -> dict[str, Any]:
    before = indices[event.source]
    after = before if event.target is None else indices[event.target]
    names = ("time", "transition", "source", "target", "order", "direction", "guard", "rate", "rate_scale", "count",
             "follows", "index", "certified")  # fmt: skip
    return {name: getattr(event, name) for name in names} | {
        "unknowns": dict(event.unknowns),
        "xi": event.xi,
        "before": _state(sol, before, event.x_minus, event.memory_minus),
        "after": _state(sol, after, event.x_plus, event.memory_plus),
        "rates_before": named_values(sol.system.modes[before].variables, event.xdot_minus),
        "rates_after": named_values(sol.system.modes[after].variables, event.xdot_plus),
    }


def _state(sol: Trajectory, mode: int, x: Array, memory: Array) -> dict[str, Any]:
    system = sol.system
    return named_values(system.modes[mode].variables, x) | named_values(system.memory, memory)


def named_values(layout: Layout, values: Array) -> dict[str, Any]:
    """Numbers or arrays by name."""
    return {
        name: values[layout[name]] if size != 1 else float(values[layout[name].start]) for name, size in layout.blocks
    }
