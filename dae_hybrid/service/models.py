"""The models that a service offers, named when it starts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any

import numpy as np

from dae_hybrid.errors import UnsupportedError
from dae_hybrid.layout import IDLE
from dae_hybrid.named_models import NamedModel, UsageError, named_model
from dae_hybrid.numerics.arrays import Array, scalar
from dae_hybrid.system.system import HybridSystem

#: names that can stand in an address as they are
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class ServedModel:
    """A model and its name in addresses; sent to worker processes, which build it."""

    name: str
    source: str

    @classmethod
    def of(cls, argument: str) -> ServedModel:
        """Read ``MODEL`` or ``NAME=MODEL`` of the command line.

        Raises
        ------
        UsageError
            The name cannot stand in an address.
        """
        stated, _, source = argument.rpartition("=")
        name = stated or (source.rpartition(":")[2] if ":" in source else PurePath(source).name)
        if not stated and name.lower().endswith((".toml", ".json")):
            name = PurePath(name).stem
        if not NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} cannot be the name of a served model: letters, digits, '_', '.' and '-' are legal. "
                f"Write NAME={source}."
            )
        return cls(name, source)


def served_models(arguments: Sequence[str]) -> dict[str, ServedModel]:
    """The models of the command line by name.

    Raises
    ------
    UsageError
        Two have the same name, or one cannot be served.
    """
    found: dict[str, ServedModel] = {}
    for model in map(ServedModel.of, arguments):
        if model.name in found:
            raise UsageError(
                f"{found[model.name].source} and {model.source} have the same name; write NAME={model.source}."
            )
        found[model.name] = model
    return found


class LoadedModel:
    """A served model, built, with its defaults of a run."""

    def __init__(self, served: ServedModel) -> None:
        self.name = served.name
        self.source: NamedModel = named_model(served.source)
        self.system: HybridSystem = self.source.build()
        run = self.source.run
        self.t_span: tuple[float, float] | None = None if run.get("t_span") is None else tuple(run["t_span"])
        self.defaults: dict[str, Any] = {"rtol": run.get("rtol", 1e-8), "atol": run.get("atol", 1e-12)}

    def describe(self) -> dict[str, Any]:
        """Parameters, variables, modes, transitions and functionals, for ``GET /v1/models/{name}``."""
        system = self.system
        return {
            "name": self.name,
            "title": self.source.title,
            "t_span": self.t_span,
            **self.defaults,
            "parameters": [self._parameter(name) for name in system.parameters.names],
            "variables": [*self._variables()],
            "modes": [mode.name for mode in system.modes],
            "transitions": list(dict.fromkeys(transition.name for transition in system.transitions)),
            "functionals": [{"name": name, "size": size} for name, size in system.functionals.blocks],
            "python": self.source.python(),
        }

    @cached_property
    def digest(self) -> str:
        """Digest of the description and the model file."""
        content = json.dumps([self.describe(), self.file()], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def file(self) -> str | None:
        """The model file as JSON, None for a model that cannot be written."""
        if self.source.model is None:
            return None
        try:
            return self.source.model().to_text("json")
        except UnsupportedError:
            return None

    def _parameter(self, name: str) -> dict[str, Any]:
        bounds = self.source.bounds.get(name)
        value = scalar(self.system.nominal[self.system.parameters[name]])
        return self._named(name) | {
            "value": plain(value),
            "bounds": None if bounds is None else [plain(bound) for bound in bounds],
        }

    def _variables(self) -> list[dict[str, Any]]:
        system = self.system
        found: dict[str, dict[str, Any]] = {}
        for mode in system.modes:
            for kind, layout in (("differential", mode.differential), ("algebraic", mode.algebraic)):
                for name, size in (block for block in layout.blocks if block[0] != IDLE):
                    found.setdefault(name, self._named(name) | {"size": size, "kind": kind})
        for name, size in system.memory.blocks:
            is_signal = system.signal(name) is not None
            kind, size = ("signal", 1) if is_signal else ("memory", size)
            found[name] = self._named(name) | {"size": size, "kind": kind}
        return [*found.values()]

    def _named(self, name: str) -> dict[str, Any]:
        system: HybridSystem = self.system
        return {
            "name": name,
            "unit": system.units.get(name),
            "description": system.descriptions.get(name),
        }


def plain(value: Any) -> Any:
    """Numbers as JSON has them: lists, and None for a number that does not exist."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Mapping):
        return {name: plain(own) for name, own in value.items()}
    array: Array = np.asarray(value, dtype=float)
    if array.ndim:
        return [plain(own) for own in array]
    number = float(array)
    return number if np.isfinite(number) else None
