"""Bodies of jobs: ensembles and fits."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from dae_hybrid.service.requests import (
    NUMBER,
    WRT,
    Body,
    Interval,
    Names,
    Number,
    Numbers,
    RunOptionsBody,
    Values,
    finite_number,
)


def _column(value: Any) -> Any:
    if not isinstance(value, list):
        return finite_number(value)
    return [_column_entry(i, entry) for i, entry in enumerate(value)]


def _column_entry(i: int, entry: Any) -> Any:
    try:
        return [finite_number(own) for own in entry] if isinstance(entry, list) else finite_number(entry)
    except ValueError as reason:
        raise ValueError(f"entry {i} {reason}") from None


def _data(value: Any) -> Any:
    if not isinstance(value, list):
        raise ValueError("must be a list of numbers; null is a missing value")  # noqa: TRY004  # pydantic reports it
    found = []
    for i, entry in enumerate(value):
        try:
            found.append([_number_or_nan(own) for own in entry] if isinstance(entry, list) else _number_or_nan(entry))
        except ValueError as reason:
            raise ValueError(f"entry {i} {reason}") from None
    return found


def _number_or_nan(value: Any) -> float | None:
    return None if value is None else finite_number(value)


NUMBERS = {"type": "array", "items": NUMBER}
MISSING = {"type": "array", "items": {"type": ["number", "null"]}}
#: values of a parameter: one for all runs, one per run, or a list per run for a vector
Column = Annotated[
    Any,
    PlainValidator(_column),
    WithJsonSchema({"anyOf": [NUMBER, NUMBERS, {"type": "array", "items": NUMBERS}]}),
]
#: measured values at the times `t`, a list per time for a vector; null where there is none
Data = Annotated[Any, PlainValidator(_data), WithJsonSchema({"anyOf": [MISSING, {"type": "array", "items": MISSING}]})]
Spread = Annotated[
    Any,
    PlainValidator(lambda value: _spread(value)),
    WithJsonSchema({"anyOf": [NUMBER, {"type": "object", "additionalProperties": {"anyOf": [NUMBER, NUMBERS]}}]}),
]
#: a Literal would take 1 for true
Analysis = Annotated[
    Any, PlainValidator(lambda value: _analysis(value)), WithJsonSchema({"enum": ["forward", "adjoint", True]})
]
Side = Annotated[float | None, Field(allow_inf_nan=False)]


def _spread(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _column(own) for name, own in value.items()}
    return finite_number(value)


def _analysis(value: Any) -> Any:
    if value is True or (isinstance(value, str) and value in ("forward", "adjoint")):
        return value
    raise ValueError("must be 'forward', 'adjoint' or true")


class JobBody(RunOptionsBody):
    """What all jobs have."""

    model: str = Field(description="name of a served model")

    def run_options(self) -> dict[str, Any]:
        """The options of the runs that were given."""
        return self.model_dump(include=set(RunOptionsBody.model_fields) - {"parameters", "t_span"}, exclude_none=True)


class EnsembleBody(JobBody):
    """An ensemble, with the parameters of each run."""

    kind: Literal["ensemble"]
    parameters: dict[str, Column] = Field(
        default_factory=dict, description="one value, or one per run, by name; others keep their nominal values"
    )
    x0: dict[str, Column] | None = Field(None, description="initial values by name, in the same forms")
    start_mode: str | None = Field(None, description="initial mode of all runs; default that of the model")
    functional: Names | None = Field(None, description="functionals to report; default all")
    gradient: Analysis | None = Field(None, description="analysis of gradients, if any")
    wrt: Names | None = Field(None, description=WRT)
    t_eval: Numbers | None = Field(None, description="output times, increasing")
    points: Annotated[int, Field(ge=2)] | None = Field(None, description="number of equidistant output times")
    outputs: Names | None = Field(None, description="variables to keep at the output times; default all")


class Distribution(Body):
    """Distribution of a parameter."""

    distribution: Literal["uniform", "normal", "lognormal"]
    low: Number | None = Field(None, description="of uniform")
    high: Number | None = Field(None, description="of uniform")
    mean: Number | None = Field(None, description="of normal")
    sd: Annotated[Number, Field(ge=0)] | None = Field(None, description="of normal; of the logarithm for lognormal")
    median: Annotated[Number, Field(gt=0)] | None = Field(None, description="of lognormal")

    @model_validator(mode="after")
    def _entries(self) -> Distribution:
        needed = {"uniform": {"low", "high"}, "normal": {"mean", "sd"}, "lognormal": {"median", "sd"}}
        wanted, given = needed[self.distribution], set(self.model_dump(exclude_none=True)) - {"distribution"}
        if given != wanted:
            raise ValueError(f"{self.distribution} has the entries {', '.join(sorted(wanted))}")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ValueError("low must be less than high")
        return self


class Design(Body):
    """Parameters drawn at random, independently."""

    random: dict[str, Distribution] = Field(min_length=1, description="distribution by scalar parameter")
    n: Annotated[int, Field(ge=1)] = Field(description="number of runs")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    fixed: dict[str, Values] = Field(default_factory=dict, description="values of other parameters")


class DesignBody(EnsembleBody):
    """An ensemble, with parameters drawn at random."""

    parameters: Design  # type: ignore[assignment]


class ExperimentBody(Body):
    """Data of an experiment; see `Experiment` of the library."""

    t: Numbers | None = Field(None, description="times of all values, in any order")
    data: dict[str, Data] = Field(default_factory=dict, description="measured values by variable, memory or signal")
    functionals: dict[str, Values] | None = Field(None, description="measured values of functionals")
    t_span: Interval | None = None
    sigma: Spread | None = Field(None, description="standard deviations, one or by name")
    weights: Spread | None = Field(None, description="relative weights, one or by name")
    parameters: dict[str, Values] | None = Field(None, description="values of parameters in this experiment")
    x0: dict[str, Values] | None = Field(None, description="initial values in this experiment")
    at_events: Literal["before", "after"] | None = None
    name: Annotated[str, Field(max_length=100)] | None = None


class FitBody(JobBody):
    """A fit by least squares; see `fit` of the library."""

    kind: Literal["fit"]
    experiments: Annotated[list[ExperimentBody], Field(fail_fast=True)] = Field(min_length=1, max_length=1000)
    free: Annotated[
        Any,
        PlainValidator(lambda value: _free(value)),
        WithJsonSchema(
            {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "object"}]},
        ),
    ] = Field(description="parameters to estimate, or their starts by name")
    local: Names = Field(default_factory=list, description="free parameters with a value for every experiment")
    bounds: dict[str, Annotated[list[Side], Field(min_length=2, max_length=2)]] | None = Field(
        None, description="lower and upper bound by name, null for none"
    )
    scale: Literal["linear", "log", "logit"] | dict[str, Literal["linear", "log", "logit"]] = "linear"
    priors: dict[str, Interval] | None = Field(
        None, description="mean and standard deviation by name, in the scale of the parameter"
    )
    loss: Literal["linear", "soft_l1", "huber", "cauchy", "arctan"] = "linear"
    f_scale: Annotated[Number, Field(gt=0)] = 1.0
    optimizer: Literal["trf", "dogbox", "L-BFGS-B", "SLSQP"] | None = None
    derivatives: Literal["forward", "adjoint"] | None = None
    starts: Annotated[int, Field(ge=1, le=1000)] = 1
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


def _free(value: Any) -> Any:
    if isinstance(value, list) and value and all(isinstance(name, str) for name in value):
        return value
    if isinstance(value, dict) and value:
        return {name: _column(own) for name, own in value.items()}
    raise ValueError("must be a list of names, or an object with starts by name")


KINDS = {"ensemble": EnsembleBody, "fit": FitBody}


def body_class(content: Any) -> type[EnsembleBody | FitBody]:
    """The class of a job's body.

    Raises
    ------
    ValueError
        Its kind is none of the legal ones.
    """
    kind = content.get("kind") if isinstance(content, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}")
    parameters = content.get("parameters")
    if kind == "ensemble" and isinstance(parameters, dict) and isinstance(parameters.get("random"), dict):
        return DesignBody
    return KINDS[kind]  # type: ignore[return-value]
