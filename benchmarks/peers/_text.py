"""Equations as text, for peers with their own language: scalars that record operations."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any


@dataclass(frozen=True)
class Text:
    """An expression in the notation that most languages share; powers of 2 are written as products."""

    text: str

    def __add__(self, other: Any) -> Text:
        return Text(f"({self.text} + {write(other)})")

    def __radd__(self, other: Any) -> Text:
        return Text(f"({write(other)} + {self.text})")

    def __sub__(self, other: Any) -> Text:
        return Text(f"({self.text} - {write(other)})")

    def __rsub__(self, other: Any) -> Text:
        return Text(f"({write(other)} - {self.text})")

    def __mul__(self, other: Any) -> Text:
        return Text(f"{self.text} * {write(other)}")

    def __rmul__(self, other: Any) -> Text:
        return Text(f"{write(other)} * {self.text}")

    def __truediv__(self, other: Any) -> Text:
        return Text(f"({self.text} / ({write(other)}))")

    def __neg__(self) -> Text:
        return Text(f"(-1.0 * {self.text})")

    def __pow__(self, power: int) -> Text:
        if power != 2:
            raise NotImplementedError("powers other than 2")
        return Text(f"({self.text} * {self.text})")


def write(value: Any) -> str:
    """An expression, or a number, in parentheses where it has a sign."""
    if isinstance(value, Text):
        return value.text
    return f"({float(value)!r})" if value < 0 else repr(float(value))


def _function(name: str) -> Any:
    return lambda argument: Text(f"{name}({write(argument)})")


NS = SimpleNamespace(**{name: _function(name) for name in ("sin", "exp", "sinh")})
