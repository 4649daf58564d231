"""The JSON Schema of model files agrees with the reader."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import jsonschema
import models
import pytest
from every_argument import everything

import dae_hybrid as dh
from dae_hybrid import problems
from dae_hybrid.modelfile import declared, reading
from dae_hybrid.modelfile.limits import MAX_ENTRIES

SCHEMA = json.loads(files("dae_hybrid.modelfile").joinpath("schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", problems.names())
def test_worked_problems(name: str) -> None:
    VALIDATOR.validate(json.loads(problems.load(name).model().to_text("json")))


def test_a_model_with_every_argument() -> None:
    VALIDATOR.validate(json.loads(everything().to_text("json")))


def test_keys_are_those_of_the_reader() -> None:
    parts, top = SCHEMA["$defs"], SCHEMA["properties"]
    assert set(top) == set(reading.TABLES)
    assert set(top["run"]["properties"]) == set(reading.RUN)
    assert set(top["build"]["properties"]) == set(reading.BUILD)
    assert set(parts["transition"]["properties"]) == set(reading.TRANSITION)
    assert set(parts["lookup"]["properties"]) == set(declared.LOOKUP)
    assert set(parts["motion"]["properties"]) == set(reading.MOTION)
    assert set(parts["mode"]["properties"]) == {"ode", *reading.EQUATIONS, *reading.MASS, "idle", "motion"}
    kinds = {kind["properties"]["kind"]["const"]: kind["propertyNames"]["enum"] for kind in parts["variable"]["oneOf"]}
    assert kinds == {kind: [*declared.COMMON, *keys] for kind, keys in declared.VARIABLES.items()}
    assert set(parts["functional"]["properties"]) == set(reading.FUNCTIONAL)
    assert top["dae_hybrid"]["const"] == reading.VERSION
    assert parts["size"]["maximum"] == MAX_ENTRIES


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("paramters",), {}),
        (("dae_hybrid",), 2),
        (("run",), {"t_span": [0]}),
        (("run",), {"rtol": -1}),
        (("build",), {"kinks": "both"}),
        (("parameters", "k"), "1"),
        (("parameters", "k"), {"unit": "m"}),
        (("parameters", "k"), {"csv": "k.csv"}),
        (("variables", "w"), {"kind": "differential", "guess": 1}),
        (("variables", "w"), {"kind": "signal", "times": [0, 1]}),
        (("variables", "w"), {"size": 0}),
        (("modes", "flight", "ode"), ["v"]),
        (("modes", "flight", "residual"), [{"label": "rod"}]),
        (("transitions", "bounce", "direction"), "up"),
        (("transitions", "bounce", "at"), 1),
        (("transitions", "bounce", "reason"), "x"),
        (("initial",), {"values": {}}),
        (("functionals", "f"), {"at_times": [{"value": "y"}]}),
        (("functionals", "f"), {"at_times": [{"value": "y", "time": 1, "times": [1]}]}),
        (("functionals", "f"), {"rise_time": {"signal": "y", "low": 0.1}}),
        (("functionals", "f"), {"settling_time": "y"}),
        (("functions", "f"), {"inputs": {"x": 1}, "outputs": {}}),
    ],
)  # fmt: skip
def test_schema_and_reader_refuse_the_same(path: tuple[str, ...], value: Any) -> None:
    document = json.loads(models.ball().to_text("json"))
    VALIDATOR.validate(document)
    *parents, last = path
    table = document
    for key in parents:
        table = table.setdefault(key, {})
    table[last] = value
    assert not VALIDATOR.is_valid(document)
    with pytest.raises(dh.ModelFileError):
        dh.HybridModel.from_text(json.dumps(document), "json")
