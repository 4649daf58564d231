"""Bodies of jobs as calls of the library, checked before they start."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import numpy as np

from dae_hybrid.ensembles.layout import ResultLayout
from dae_hybrid.errors import DaeHybridError, LimitError, OptionError, ParameterError
from dae_hybrid.fitting.experiment import Experiment
from dae_hybrid.interface.batch import checked_table, variable_sizes
from dae_hybrid.interface.parameter_sets import read_table
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import check_time_span
from dae_hybrid.service.entries import at_path, escaped
from dae_hybrid.service.evaluation import span_of
from dae_hybrid.service.job_requests import Design, Distribution, EnsembleBody, FitBody, JobBody
from dae_hybrid.service.models import LoadedModel
from dae_hybrid.service.settings import Settings

#: entries of a request that errors may begin with
ENTRIES = (
    "x0", "start_mode", "functional", "gradient", "wrt", "t_eval", "outputs", "t_span", "free", "local", "bounds",
    "scale", "priors", "optimizer", "derivatives", "starts", "rtol", "atol", "max_step", "first_step", "max_steps",
    "max_order", "max_events", "method", "simultaneous",
)  # fmt: skip


#: limit that nothing exceeds
ACCEPTED = 2**62


class EnsembleCall(NamedTuple):
    """Arguments of `ensemble`, and the number of runs."""

    span: list[float]
    options: dict[str, Any]
    runs: int


def ensemble_call(model: LoadedModel, body: EnsembleBody, settings: Settings) -> EnsembleCall:
    """Arguments of `ensemble`, checked.

    Raises
    ------
    DaeHybridError
        With the attribute `path`: the entry at fault, as a JSON pointer.
    """
    span = span_of(model, body.t_span)
    options: Any = _options(model, body)
    t_eval = _output_times(body, span, settings)
    call: dict[str, Any] = {
        "functional": body.functional, "gradient": body.gradient, "wrt": body.wrt, "t_eval": t_eval,
    }  # fmt: skip
    with _located():
        case, _ = checked_table(
            model.system, span, None, body.x0, body.start_mode, adapter="sundials", strict=True, duality=False,
            options=options, **call,
        )  # fmt: skip
        layout = ResultLayout.of(case, body.outputs)
    numbers = layout.bytes_per_run // 8 + model.system.parameters.size
    if isinstance(body.parameters, Design):
        _check_size(body.parameters.n, numbers, "/parameters/n", settings)
        parameters: Any = drawn(model, body.parameters)
    else:
        rows = _rows(model, body.parameters)
        _check_size(len(rows), numbers, "/parameters", settings)
        parameters = rows
    with _located():
        _, given = checked_table(
            model.system, span, parameters, body.x0, body.start_mode, adapter="sundials", strict=True, duality=False,
            options=options, **call,
        )  # fmt: skip
    _check_size(len(given), numbers, "/x0", settings)
    further = {"parameters": parameters, "x0": body.x0, "start_mode": body.start_mode, "outputs": body.outputs}
    return EnsembleCall(span, call | options | further, len(given))


def drawn(model: LoadedModel, design: Design) -> dict[str, Any]:
    """Parameters of all runs, drawn in the order of the distributions."""
    generator, found = np.random.default_rng(design.seed), {}
    layout = model.system.parameters
    for part, names in (("random", design.random), ("fixed", design.fixed)):
        for name in names:
            place = f"/parameters/{part}/{escaped(name)}"
            if name not in layout:
                _refuse(f"There is no parameter {name!r}.", place, layout.names)
            if part == "random" and layout[name].stop - layout[name].start != 1:
                _refuse(f"{name!r} is a vector; only numbers are drawn.", place, ())
            if part == "fixed" and name in design.random:
                _refuse(f"{name!r} is both drawn and fixed.", place, ())
    for name, own in design.random.items():
        found[name] = _sample(generator, own, design.n)
        if not np.isfinite(found[name]).all():
            _refuse(f"A value of {name!r} is too large to be represented.", f"/parameters/random/{escaped(name)}", ())
    for name, value in design.fixed.items():
        try:
            model.system.parameter_vector({name: value})
        except ParameterError as error:
            raise at_path(error, f"/parameters/fixed/{escaped(name)}") from None
        found[name] = np.broadcast_to(np.asarray(value, dtype=float), (design.n, *np.shape(value)))
    return found


def _sample(generator: np.random.Generator, own: Distribution, n: int) -> Array:
    if own.low is not None and own.high is not None:
        return own.low + (own.high - own.low) * generator.random(n)
    if own.mean is not None and own.sd is not None:
        return own.mean + own.sd * generator.standard_normal(n)
    assert own.median is not None
    assert own.sd is not None
    with np.errstate(over="ignore"):
        return np.asarray(own.median * np.exp(own.sd * generator.standard_normal(n)))


def fit_call(model: LoadedModel, body: FitBody, settings: Settings) -> tuple[list[Experiment], dict[str, Any]]:
    """Experiments and keyword arguments of `fit`; what needs runs is checked by the fit itself.

    Raises
    ------
    DaeHybridError
        With the attribute `path`: the entry at fault, as a JSON pointer.
    """
    system, size = model.system, 0
    if body.t_span is not None:
        try:
            check_time_span(body.t_span)
        except OptionError as error:
            raise at_path(error, "/t_span") from None
    names = {*variable_sizes(system), *(signal.data.name for signal in system.signals)}
    experiments = []
    for i, own in enumerate(body.experiments):
        place = f"/experiments/{i}"
        given = ({} if body.t_span is None else {"t_span": body.t_span}) | own.model_dump(exclude_none=True)
        for name in own.data:
            if name not in names:
                _refuse(f"There is no variable {name!r}.", f"{place}/data/{escaped(name)}", sorted(names))
        for name in own.functionals or {}:
            if name not in system.functionals:
                _refuse(
                    f"There is no functional {name!r}.", f"{place}/functionals/{escaped(name)}",
                    system.functionals.names,
                )  # fmt: skip
        given["data"] = {name: _numbers(name, values, place) for name, values in own.data.items()}
        if own.t is None and own.data:
            _refuse("t, the times of the values, is missing.", f"{place}/t", ())
        try:
            system.parameter_vector(own.parameters or {})
            experiments.append(Experiment(**given))
        except DaeHybridError as error:
            raise at_path(error, place) from None
        size += experiments[-1].size
    if size > settings.max_outputs:
        raise at_path(LimitError(f"The data have {size} values; at most {settings.max_outputs} are allowed."),
                      "/experiments")  # fmt: skip
    _check_free(model, body)
    known = {*system.parameters.names, *system.parameters.labels()}
    for entry, wanted in (("free", body.free), ("local", body.local), ("bounds", body.bounds or {}),
                          ("priors", body.priors or {}), ("parameters", body.parameters)):  # fmt: skip
        for name in wanted:
            if name not in known:
                _refuse(f"There is no parameter {name!r}.", f"/{entry}/{escaped(name)}", sorted(known))
    entries = ("local", "bounds", "scale", "priors", "parameters", "loss", "f_scale", "optimizer", "derivatives",
               "starts", "seed")  # fmt: skip
    given = body.model_dump(include=set(entries), exclude_none=True)
    options = _options(model, body)
    return experiments, {"free": body.free, **given, **options, "workers": settings.workers}


def _check_free(model: LoadedModel, body: FitBody) -> None:
    """Check free parameters, their starts, bounds and scales."""
    layout, names = model.system.parameters, list(body.free)
    if len(set(names)) < len(names):
        _refuse("A parameter is free twice.", "/free", ())
    for name, start in body.free.items() if isinstance(body.free, dict) else ():
        if name in layout and np.size(start) not in (1, layout[name].stop - layout[name].start):
            _refuse(f"The start of {name!r} has {np.size(start)} values.", f"/free/{escaped(name)}", ())
    for name, (lower, upper) in (body.bounds or {}).items():
        if lower is not None and upper is not None and not lower < upper:
            _refuse(f"The bounds of {name!r} are reversed or equal.", f"/bounds/{escaped(name)}", ())
    for name in body.scale if isinstance(body.scale, dict) else ():
        if name not in names:
            _refuse(f"{name!r} is not free.", f"/scale/{escaped(name)}", names)


def _numbers(name: str, values: list[Any], place: str) -> Array:
    try:
        return np.array([[np.nan if own is None else own for own in row] if isinstance(row, list)
                         else np.nan if row is None else row for row in values], dtype=float)  # fmt: skip
    except ValueError:
        error = ParameterError(f"data[{name!r}]: all entries need the same number of values.")
        raise at_path(error, f"{place}/data/{escaped(name)}") from None


def resolved[T: JobBody](body: T, settings: Settings) -> T:
    """Return a body with the limits of its runs, which a later server with other limits keeps."""
    limit = settings.max_steps
    return body.model_copy(update={"max_steps": limit if body.max_steps is None else min(body.max_steps, limit)})


def without_limits(settings: Settings) -> Settings:
    """Return settings for a job that has been accepted."""
    return replace(settings, max_steps=ACCEPTED, max_runs=ACCEPTED, max_outputs=ACCEPTED)


def _options(model: LoadedModel, body: JobBody) -> dict[str, Any]:
    return model.defaults | body.run_options()


def _output_times(body: EnsembleBody, span: list[float], settings: Settings) -> Array | None:
    if body.points is None:
        return None if body.t_eval is None else np.array(body.t_eval)
    if body.t_eval is not None:
        raise at_path(OptionError("t_eval and points exclude each other."), "/points")
    if body.points > settings.max_outputs:
        raise at_path(LimitError(f"points must be at most {settings.max_outputs}, got {body.points}."), "/points")
    return np.linspace(span[0], span[1], body.points)


def _rows(model: LoadedModel, given: Mapping[str, Any]) -> Array:
    layout, nominal = model.system.parameters, model.system.nominal
    for name, values in given.items():
        try:
            read_table("parameters", {name: _rectangular(name, values)}, layout, nominal)
        except ParameterError as error:
            raise at_path(error, f"/parameters/{escaped(name)}") from None
    try:
        return read_table("parameters", dict(given), layout, nominal)
    except ParameterError as error:
        raise at_path(error, "/parameters") from None


def _rectangular(name: str, values: Any) -> Any:
    lengths = {len(row) if isinstance(row, list) else -1 for row in values} if isinstance(values, list) else {-1}
    if len(lengths) > 1:
        raise ParameterError(f"parameters[{name!r}]: all entries need the same number of values.")
    if not lengths:
        raise ParameterError(f"parameters[{name!r}] has no values.")
    return values


def _check_size(runs: int, numbers: int, path: str, settings: Settings) -> None:
    if runs > settings.max_runs:
        raise at_path(LimitError(f"The job has {runs} runs; at most {settings.max_runs} are allowed."), path)
    if runs * numbers > settings.max_values:
        text = f"The results would have {runs * numbers} numbers; at most {settings.max_values} are allowed."
        raise at_path(LimitError(text, remedy="Ask for fewer runs, outputs or output times."), path)


def _refuse(text: str, path: str, legal: Any) -> NoReturn:
    raise at_path(ParameterError(text, remedy=f"They are {', '.join(legal)}." if legal else None), path)


@contextmanager
def _located() -> Iterator[None]:
    """Name the entry that the message of an error begins with."""
    try:
        yield
    except DaeHybridError as error:
        word = re.match(r"\w*", error.message)
        raise at_path(error, f"/{word[0]}" if word is not None and word[0] in ENTRIES else "") from None
