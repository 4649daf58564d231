"""Bodies of requests. Unknown entries, numbers as text and numbers that are not finite are refused."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema


def finite_number(value: Any) -> float:
    """Return a number that is neither text nor a truth value.

    Raises
    ------
    ValueError
        It is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("must be a finite number")
    return float(value)


def _numbers(value: Any) -> float | list[Any]:
    if not isinstance(value, list):
        return finite_number(value)
    if value and all(isinstance(row, list) for row in value):  # a matrix
        return [[finite_number(entry) for entry in row] for row in value]
    for i, entry in enumerate(value):
        try:
            finite_number(entry)
        except ValueError as reason:
            raise ValueError(f"entry {i} {reason}") from None
    return [float(entry) for entry in value]


def _tolerance(value: Any) -> float | dict[str, float]:
    return (
        {name: finite_number(own) for name, own in value.items()} if isinstance(value, dict) else finite_number(value)
    )


NUMBER = {"type": "number"}
ROW = {"type": "array", "items": NUMBER}
Number = Annotated[float, Field(allow_inf_nan=False)]
#: the errors of a million entries would fill the memory
Numbers = Annotated[list[Number], Field(fail_fast=True)]
Names = Annotated[list[str], Field(fail_fast=True)]
Interval = Annotated[list[Number], Field(fail_fast=True, min_length=2, max_length=2)]
#: a number or a list of numbers; a union of pydantic's own would name its members in the paths of errors
Values = Annotated[
    Any,
    PlainValidator(_numbers),
    WithJsonSchema({"anyOf": [NUMBER, {"type": "array", "items": NUMBER}, {"type": "array", "items": ROW}]}),
]
Tolerance = Annotated[
    Any,
    PlainValidator(_tolerance),
    WithJsonSchema({"anyOf": [NUMBER, {"type": "object", "additionalProperties": NUMBER}]}),
]
STRICT = "whether to refuse derivatives if a condition for them fails (default), or to return them with warnings"
WRT = "parameters and initial values, x(0), to differentiate by; default all parameters"
#: entries of a request that are not options of the run
NOT_OPTIONS = ("parameters", "x0", "start_mode", "t_span", "t_eval", "points", "functional", "wrt", "strict")


class Body(BaseModel):
    """Base of all bodies."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    def given(self) -> dict[str, Any]:
        """The entries that were given."""
        return self.model_dump(exclude_none=True)


class RunOptionsBody(Body):
    """Interval, parameters and options of a run; what is left out has the default of the model or of the library."""

    parameters: dict[str, Values] = Field(
        default_factory=dict, description="values by name; others keep their nominal values"
    )
    t_span: Interval | None = Field(None, description="initial and final time; required if the model has no default")
    rtol: Number | None = Field(None, description="relative tolerance")
    atol: Tolerance | None = Field(None, description="absolute tolerance, one for all or by name")
    method: str | None = Field(None, description="integration method; by default chosen along the run")
    max_step: Number | None = None
    first_step: Number | None = None
    max_steps: int | None = None
    max_order: int | None = None
    max_events: int | None = None
    max_transitions_per_instant: int | None = None
    simultaneous: Literal["declared", "reversed"] | None = None
    on_zeno: Literal["raise", "end"] | None = None


class SingleRunBody(RunOptionsBody):
    """A single run, which may start elsewhere."""

    x0: dict[str, Values] | None = Field(None, description="initial values by name, in place of those of the model")
    start_mode: str | None = Field(None, description="initial mode; default that of the model")


class SimulateBody(SingleRunBody):
    """A simulation."""

    t_eval: Numbers | None = Field(None, description="output times, increasing; by default every step")
    points: Annotated[int, Field(ge=2)] | None = Field(None, description="number of equidistant output times")


class ForwardBody(SimulateBody):
    """A simulation with forward sensitivities."""

    wrt: Names | None = Field(None, description=WRT)
    strict: bool | None = Field(None, description=STRICT)


class CheckBody(SingleRunBody):
    """A comparison of adjoint, forward and finite-difference gradients."""

    functional: str | None = Field(None, description="required if the model has several")
    wrt: Names | None = Field(None, description=WRT)


class GradientBody(CheckBody):
    """A gradient by adjoint analysis."""

    strict: bool | None = Field(None, description=STRICT)
