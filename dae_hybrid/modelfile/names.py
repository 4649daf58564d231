"""Values of names and expressions in a document."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any

import casadi as ca

from dae_hybrid.errors import ModelError
from dae_hybrid.modelfile.document import Document
from dae_hybrid.modelfile.grammar import DATA, Evaluator, Expression, GrammarError, Pattern
from dae_hybrid.modelfile.positions import Path


class Names(dict[str, Any]):
    """Values of symbols and definitions; a definition is evaluated when an expression first needs it."""

    def __init__(self, document: Document, definitions: dict[str, Any], path: Path) -> None:
        super().__init__()
        self.document = document
        self.path = path
        self.evaluate: Evaluator
        self._pending: dict[str, tuple[Path, Any]] = {n: ((*path, n), value) for n, value in definitions.items()}

    def finish(self) -> None:
        """Evaluate what is left."""
        self.define(list(self._pending))

    def define(self, names: Iterable[str]) -> None:
        """Evaluate definitions, and before them those that they use. No recursion: chains may be long."""
        waiting: list[Iterator[str]] = [iter(names)]
        begun: dict[str, Expression | None] = {}
        while waiting:
            name = next((n for n in waiting[-1] if n in self._pending), None)
            if name is None:
                waiting.pop()
                if begun:
                    name, text = begun.popitem()
                    path, value = self._pending.pop(name)
                    with self.document.at(path):
                        self[name] = ca.DM(self.document.array(path, value)) if text is None else self.evaluate(text)
                        if text is None:
                            self[name] = self.evaluate.kind(self[name])
                continue
            path, value = self._pending[name]
            if name in begun:
                cycle = [*list(begun)[list(begun).index(name) :], name]
                raise self.document.error(path, f"the definition depends on itself: {' -> '.join(cycle[:8])}")
            with self.document.at(path):
                begun[name] = Expression(value) if isinstance(value, str) else None
                self._refuse_data(begun[name])
            used = begun[name]
            waiting.append(iter([] if used is None else list(used.used())))

    def _refuse_data(self, text: Expression | None) -> None:
        """Refuse the name of a row of data in a definition if the model has that name: its use would decide."""
        if text is None or self.path != ("definitions",) or (DATA not in self and DATA not in self._pending):
            return
        for node in ast.walk(text.body):
            if isinstance(node, ast.Name) and text.name(node.id) == (DATA, False):
                raise GrammarError(f"'{DATA}' is ambiguous: write `{DATA}` for the name of the model", text.place(node))

    def value(self, path: Path, given: Any) -> Any:
        """The value of an expression: text, a number, or a list of these."""
        if isinstance(given, str):
            with self.document.at(path):
                text = Expression(given)
                self.define(text.used())
                found = self.evaluate(text)
                if not isinstance(found, ca.MX | ca.SX | Pattern):
                    raise ModelError("the value is that of a function with several outputs; take one by an index")
                return found
        if isinstance(given, list) and any(isinstance(part, str) for part in given):
            parts = [self.value((*path, i), part) for i, part in enumerate(given)]
            with self.document.at(path):
                if any(isinstance(part, Pattern) or part.shape[1] != 1 for part in parts):
                    raise ModelError("every entry of a list must be a number or a vector")
                return ca.vertcat(*parts)
        return self.evaluate.kind(ca.DM(self.document.array(path, given)))
