"""Bodies of requests of UM-Bridge 1.0. A model has one input block and one output block."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from dae_hybrid.service.requests import Body, Numbers, RunOptionsBody


def _names(value: Any) -> list[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError("must be a name or a list of names")
    if len(set(names)) < len(names):
        raise ValueError("must have each name once")
    return names


Names = Annotated[Any, PlainValidator(_names)]
#: the only block of inputs or outputs
Only = Annotated[int, Field(ge=0, le=0)]


class OutputsBody(Body):
    """Variables at times as outputs."""

    variables: Names
    t_eval: Annotated[Numbers, Field(min_length=1)]


class ConfigBody(RunOptionsBody):
    """The config of a request."""

    parameters: Names | None = None  # type: ignore[assignment]
    functional: Names | None = None
    outputs: OutputsBody | None = None
    on_failure: Literal["error", "nan"] = "error"


class SizesBody(Body):
    """A request of sizes."""

    name: str
    config: ConfigBody | None = None


class EvaluateBody(SizesBody):
    """An evaluation."""

    input: Annotated[list[Numbers], Field(fail_fast=True, min_length=1, max_length=1)]


class _DerivativeBody(EvaluateBody):
    outWrt: Only


class GradientBody(_DerivativeBody):
    """A gradient of the weighted sum of the outputs."""

    inWrt: Only
    sens: Numbers


class JacobianBody(_DerivativeBody):
    """A product of the Jacobian and a vector."""

    inWrt: Only
    vec: Numbers


class HessianBody(_DerivativeBody):
    """A product of the Hessian of the weighted sum of the outputs and a vector."""

    inWrt1: Only
    inWrt2: Only
    sens: Numbers
    vec: Numbers
