"""Signals as symbols: statements have a symbol for each signal, functions its interpolation in time and memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import casadi as ca

from dae_hybrid.statement.declarations import Statement
from dae_hybrid.statement.model import HybridModel

#: entries of a model that are symbols, and not expressions in them
SYMBOLS = ("time", "signals", "inputs", "rates", "posts", "indicators")


def with_signals(model: HybridModel) -> HybridModel:
    """Return the model with the interpolations of its signals in place of their symbols."""
    pairs = [pair for name in model.inputs for pair in zip(model.inputs[name], model.signals[name], strict=True)]
    pairs = [(symbol, value) for symbol, value in pairs if symbol.is_symbolic()]
    if not pairs:
        return model
    symbols, values = map(list, zip(*pairs, strict=True))
    known, found = {symbol.__hash__() for symbol in symbols}, dict[int, ca.MX]()

    def note(expression: ca.MX) -> ca.MX:
        if not known.isdisjoint(s.__hash__() for s in ca.symvar(expression)):
            found[expression.__hash__()] = expression
        return expression

    stated = {name: value for name, value in model.__dict__.items() if name not in SYMBOLS}
    _mapped(stated, note, {})
    if not found:
        return model
    new = dict(zip(found, ca.substitute(list(found.values()), symbols, values), strict=True))
    twin = copy.copy(model)
    twin.__dict__ |= _mapped(stated, lambda expression: new.get(expression.__hash__(), expression), {})
    return twin


def _mapped(value: Any, of: Callable[[ca.MX], ca.MX], done: dict[int, Any]) -> Any:
    """Return a part of a statement with other expressions; the part itself if none is another one."""
    if isinstance(value, ca.MX):
        return of(value)
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, dict):
        parts: Any = {key: _mapped(own, of, done) for key, own in value.items()}
        found = parts if any(parts[key] is not own for key, own in value.items()) else value
    elif isinstance(value, list | tuple):
        parts = [_mapped(own, of, done) for own in value]
        changed = any(part is not own for part, own in zip(parts, value, strict=True))
        found = (type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)) if changed else value
    elif isinstance(value, Statement):
        parts = _mapped(value.__dict__, of, done)
        found = value
        if parts is not value.__dict__:
            found = copy.copy(value)
            found.__dict__.update(parts)
    else:
        return value
    done[id(value)] = found
    return found
