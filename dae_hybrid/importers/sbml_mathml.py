"""Translate the mathematics of SBML to CasADi expressions.

Values are floats, expressions, or `Truth` for truth values. Floats and known truth values are folded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, Protocol

import casadi as ca

from dae_hybrid.importers.errors import unsupported
from dae_hybrid.importers.sbml_cases import cover
from dae_hybrid.importers.sbml_document import library

Number = float | ca.MX
#: Avogadro's constant as SBML level 3 defines it
AVOGADRO = 6.02214179e23
#: depth of nested calls of function definitions: SBML excludes recursion
MAX_CALLS = 100


@dataclass(frozen=True)
class Truth:
    """A truth value: known, or an expression of relations."""

    value: bool | ca.MX

    def negated(self) -> Truth:
        """It does not hold."""
        return Truth(not self.value if isinstance(self.value, bool) else ca.logic_not(self.value))

    def both(self, other: Truth) -> Truth:
        """Both hold."""
        if isinstance(self.value, bool):
            return other if self.value else self
        if isinstance(other.value, bool):
            return self if other.value else other
        return Truth(ca.logic_and(self.value, other.value))

    def either(self, other: Truth) -> Truth:
        """At least one of the two holds."""
        if isinstance(self.value, bool):
            return self if self.value else other
        if isinstance(other.value, bool):
            return other if other.value else self
        return Truth(ca.logic_or(self.value, other.value))

    def differs(self, other: Truth) -> Truth:
        """One of the two holds, not both."""
        return self.both(other.negated()).either(self.negated().both(other))


Value = Number | Truth


class Scope(Protocol):
    """Values of the names in an expression."""

    @property
    def time(self) -> Number:
        """Time."""

    def lookup(self, name: str, element: str) -> Value:
        """Value of an id, used in an element."""

    def rate_of(self, name: str, element: str) -> Number:
        """Rate of an id, used in an element."""


@dataclass(frozen=True)
class _Call:
    """Scope of the body of a function definition: its arguments only."""

    outer: Scope
    arguments: Mapping[str, Value]

    @property
    def time(self) -> Number:
        return self.outer.time

    def lookup(self, name: str, element: str) -> Value:
        if name not in self.arguments:
            raise unsupported(f"a function uses '{name}', which is not an argument.", element)
        return self.arguments[name]

    def rate_of(self, name: str, element: str) -> Number:
        raise unsupported(f"rateOf of '{name}' within a function definition.", element)


def number(value: Value) -> Number:
    """Return a number; a truth value becomes 1 or 0."""
    if not isinstance(value, Truth):
        return value
    return float(value.value) if isinstance(value.value, bool) else value.value


def truth(value: Value) -> Truth:
    """Return a truth value; a number is true unless it is zero."""
    if isinstance(value, Truth):
        return value
    return Truth(value != 0)


def choice(condition: Truth, yes: Number, no: Number) -> Number:
    """Return one of two numbers."""
    if isinstance(condition.value, bool):
        return yes if condition.value else no
    return ca.if_else(condition.value, yes, no)


def _trunc(x: Number) -> Number:
    return float(math.trunc(x)) if isinstance(x, float) else ca.if_else(x < 0, ca.ceil(x), ca.floor(x))


def _quotient(a: Number, b: Number) -> Number:
    return _trunc(a / b)


def _power(a: Number, b: Number) -> Number:
    if isinstance(a, float) and isinstance(b, float):
        try:
            found = a**b
        except (ZeroDivisionError, OverflowError):
            return math.inf
        return math.nan if isinstance(found, complex) else found
    return a**b


def _root(degree: Number, x: Number) -> Number:
    return ca.sqrt(x) if isinstance(degree, float) and degree == 2 else _power(x, 1 / degree)


def _log(base: Number, x: Number) -> Number:
    if isinstance(base, float) and base == 10:
        return ca.log10(x)
    return ca.log(x) / ca.log(base)


def _divide(a: Number, b: Number) -> Number:
    if isinstance(a, float) and isinstance(b, float) and b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


_UNARY: dict[str, Callable[[Number], Number]] = {
    "ABS": ca.fabs, "CEILING": ca.ceil, "FLOOR": ca.floor, "EXP": ca.exp, "LN": ca.log,
    "SIN": ca.sin, "COS": ca.cos, "TAN": ca.tan, "SINH": ca.sinh, "COSH": ca.cosh, "TANH": ca.tanh,
    "SEC": lambda x: 1 / ca.cos(x), "CSC": lambda x: 1 / ca.sin(x), "COT": lambda x: 1 / ca.tan(x),
    "SECH": lambda x: 1 / ca.cosh(x), "CSCH": lambda x: 1 / ca.sinh(x), "COTH": lambda x: 1 / ca.tanh(x),
    "ARCSIN": ca.asin, "ARCCOS": ca.acos, "ARCTAN": ca.atan,
    "ARCSINH": ca.asinh, "ARCCOSH": ca.acosh, "ARCTANH": ca.atanh,
    "ARCSEC": lambda x: ca.acos(1 / x), "ARCCSC": lambda x: ca.asin(1 / x), "ARCCOT": lambda x: ca.atan(1 / x),
    "ARCSECH": lambda x: ca.acosh(1 / x), "ARCCSCH": lambda x: ca.asinh(1 / x), "ARCCOTH": lambda x: ca.atanh(1 / x),
}  # fmt: skip
_BINARY: dict[str, Callable[[Number, Number], Number]] = {
    "POWER": _power, "ROOT": _root, "LOG": _log, "QUOTIENT": _quotient, "REM": ca.fmod,
}  # fmt: skip
_RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "LT": lambda a, b: a < b, "LEQ": lambda a, b: a <= b, "GT": lambda a, b: a > b, "GEQ": lambda a, b: a >= b,
    "EQ": lambda a, b: a == b, "NEQ": lambda a, b: a != b,
}  # fmt: skip


def _related(kind: str, a: Value, b: Value) -> Truth:
    """Return the relation of two values."""
    if kind in ("EQ", "NEQ") and isinstance(a, Truth) and isinstance(b, Truth):
        differs = a.differs(b)
        return differs if kind == "NEQ" else differs.negated()
    left, right = number(a), number(b)
    for own, sign in ((left, 1.0), (right, -1.0)):
        if isinstance(own, float) and not math.isfinite(own):  # the other side is finite
            left, right = sign * own, 0.0
    found = _RELATIONS[kind](left, right)
    return Truth(found if isinstance(found, ca.MX) else bool(found))


class Mathematics:
    """Translator of expressions, with the function definitions of a model."""

    def __init__(self, model: Any) -> None:
        lib = library()
        self._functions = {f.getId(): f.getMath() for f in model.getListOfFunctionDefinitions()}
        names = [name for name in dir(lib) if name.startswith("AST_")]
        self._kinds = {getattr(lib, name): name.removeprefix("AST_") for name in names}
        self._depth = 0

    def number(self, node: Any, scope: Scope, element: str) -> Number:
        """Translate an expression to a number."""
        return number(self.value(node, scope, element))

    def truth(self, node: Any, scope: Scope, element: str) -> Truth:
        """Translate an expression to a truth value."""
        return truth(self.value(node, scope, element))

    def value(self, node: Any, scope: Scope, element: str) -> Value:
        """Translate an expression.

        Parameters
        ----------
        node : libsbml.ASTNode
        scope : Scope
            Values of the names.
        element : str
            Element that contains the expression, for errors.
        """
        kind = self._kinds[node.getType()]
        parts = [node.getChild(i) for i in range(node.getNumChildren())]
        match kind:
            case "INTEGER" | "REAL" | "REAL_E" | "RATIONAL":
                return float(node.getValue())
            case "NAME":
                return scope.lookup(node.getName(), element)
            case "NAME_TIME":
                return scope.time
            case "NAME_AVOGADRO":
                return AVOGADRO
            case "CONSTANT_E" | "CONSTANT_PI":
                return math.e if kind == "CONSTANT_E" else math.pi
            case "CONSTANT_TRUE" | "CONSTANT_FALSE":
                return Truth(kind == "CONSTANT_TRUE")
            case "FUNCTION_PIECEWISE":
                return self._piecewise([self.value(part, scope, element) for part in parts], element)
            case "FUNCTION_RATE_OF":
                return scope.rate_of(parts[0].getName(), element)
            case "FUNCTION_DELAY":
                raise unsupported("the csymbol delay makes a delay differential equation.", element)
            case "FUNCTION":
                return self._call(node.getName(), [self.value(part, scope, element) for part in parts], scope, element)
        values = [self.value(part, scope, element) for part in parts]
        if kind.startswith("LOGICAL_"):
            return self._logical(kind.removeprefix("LOGICAL_"), [truth(v) for v in values], element)
        if kind.startswith("RELATIONAL_"):
            kind = kind.removeprefix("RELATIONAL_")
            pairs = [_related(kind, a, b) for a, b in pairwise(values)]
            return reduce(Truth.both, pairs, Truth(value=True))
        return self._arithmetic(kind.removeprefix("FUNCTION_"), [number(v) for v in values], node, element)

    def _arithmetic(self, kind: str, values: Sequence[Number], node: Any, element: str) -> Number:
        match kind, len(values):
            case "PLUS", _:
                return reduce(lambda a, b: a + b, values) if values else 0.0
            case "TIMES", _:
                return reduce(lambda a, b: a * b, values) if values else 1.0
            case "MINUS", 1:
                return -values[0]
            case "MINUS", 2:
                return values[0] - values[1]
            case "DIVIDE", 2:
                return _divide(values[0], values[1])
            case "MIN" | "MAX", n if n:
                return reduce(ca.fmin if kind == "MIN" else ca.fmax, values)
            case "FACTORIAL", 1:
                (x,) = values
                if isinstance(x, float) and x >= 0 and x.is_integer():
                    return float(math.factorial(int(x)))
                raise unsupported("factorial of anything but a natural number.", element)
            case "ROOT", 1:
                return _root(2.0, values[0])
            case "LOG", 1:
                return ca.log10(values[0])
        if kind in _UNARY and len(values) == 1:
            return _UNARY[kind](values[0])
        if kind in _BINARY and len(values) == 2:
            return _BINARY[kind](*values)
        raise unsupported(f"the function '{node.getName() or kind.lower()}' of {len(values)} arguments.", element)

    def _logical(self, kind: str, values: Sequence[Truth], element: str) -> Truth:
        match kind, len(values):
            case "AND", _:
                return reduce(Truth.both, values, Truth(value=True))
            case "OR", _:
                return reduce(Truth.either, values, Truth(value=False))
            case "XOR", _:
                return reduce(Truth.differs, values, Truth(value=False))
            case "NOT", 1:
                return values[0].negated()
            case "IMPLIES", 2:
                return values[0].negated().either(values[1])
        raise unsupported(f"the operator '{kind.lower()}' of {len(values)} arguments.", element)

    def _piecewise(self, values: Sequence[Value], element: str) -> Value:
        pieces = list(zip(values[::2], values[1::2], strict=False))
        found: Value | None = None
        if len(values) % 2:
            found = values[-1]
        elif pieces and cover([own for _, stated in pieces if isinstance(own := truth(stated).value, ca.MX)]):
            found = pieces.pop()[0]  # where no other condition holds, the last one does
        for value, stated in reversed(pieces):
            condition = truth(stated)
            if condition.value is True or found is None:
                if condition.value is not True and condition.value is not False:
                    raise unsupported("a piecewise expression without otherwise may be undefined elsewhere.", element)
                found = value if condition.value else found
            elif isinstance(value, Truth) and isinstance(found, Truth):
                found = condition.both(value).either(condition.negated().both(found))
            else:
                found = choice(condition, number(value), number(found))
        if found is None:
            raise unsupported("no piece of a piecewise expression is defined.", element)
        return found

    def _call(self, name: str, arguments: Sequence[Value], scope: Scope, element: str) -> Value:
        body = self._functions.get(name)
        if body is None:
            raise unsupported(f"the function '{name}' has no definition.", element)
        names = [body.getChild(i).getName() for i in range(body.getNumChildren() - 1)]
        if len(names) != len(arguments):
            raise unsupported(f"'{name}' takes {len(names)} arguments, got {len(arguments)}.", element)
        if self._depth >= MAX_CALLS:
            raise unsupported(f"'{name}' calls itself.", element)
        self._depth += 1
        try:
            inner = body.getChild(body.getNumChildren() - 1)
            return self.value(inner, _Call(scope, dict(zip(names, arguments, strict=True))), element)
        finally:
            self._depth -= 1
