"""Models by name: worked problems, functions of modules, and model files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import PurePath
from typing import Any

from dae_hybrid import problems
from dae_hybrid.modelfile.files import read_file
from dae_hybrid.statement.model import HybridModel
from dae_hybrid.system.system import HybridSystem


class UsageError(Exception):
    """Invalid command line; the message is shown to the user."""


@dataclass
class NamedModel:
    """A model by its name on the command line, with defaults of its runs.

    `model` is its statement, None if only the built system is known.
    """

    name: str
    title: str
    model: Callable[[], HybridModel] | None
    build: Callable[[], HybridSystem]
    run: Mapping[str, Any] = field(default_factory=dict)
    bounds: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)

    def python(self) -> list[str]:
        """Lines of Python that build the model as ``system``; of a file only the name is told, not its folder.

        Examples
        --------
        >>> named_model("hybrid_ode").python()
        ['from dae_hybrid.problems import hybrid_ode', '', 'system = hybrid_ode.system()']
        """
        if self.name in problems.TITLES:
            return [f"from dae_hybrid.problems import {self.name}", "", f"system = {self.name}.system()"]
        name = self.name if ":" in self.name else PurePath(self.name).name
        return ["from dae_hybrid.named_models import named_model", "", f"system = named_model({name!r}).build()"]


def imported(text: str) -> Any:
    """The object named ``package.module:attribute``."""
    module, _, attribute = text.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as reason:
        raise UsageError(f"{text} cannot be imported: {reason}.") from None


def named_model(name: str) -> NamedModel:
    """The model of a file, of a function or of a worked problem.

    Raises
    ------
    UsageError
        A function is missing or returns no model.
    UnknownProblemError
        The problem does not exist.
    ModelFileError
        The file is no model file.
    """
    if name.lower().endswith((".toml", ".json")):
        file = read_file(name)
        model = file.model
        return NamedModel(name, model.name, lambda: model, lambda: model.build(**file.build), file.run, file.bounds)
    if ":" in name:
        found = imported(name)
        made = found() if callable(found) else found
        if isinstance(made, HybridModel):
            return NamedModel(name, made.name, lambda: made, made.build)
        if not isinstance(made, HybridSystem):
            raise UsageError(f"{name} must return a HybridModel or a HybridSystem, got {type(made).__name__}.")
        return NamedModel(name, made.name, None, lambda: made)
    problem = problems.load(name)
    return NamedModel(name, problems.TITLES[name], problem.model, problem.system, {"t_span": problem.t_span})
