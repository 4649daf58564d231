"""Discontinuous nodes of CasADi expressions: their switches, their guards, and their smooth replacements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, reduce

import casadi as ca

#: boolean-valued
RELATIONS, EQUALITIES = (ca.OP_LT, ca.OP_LE), (ca.OP_EQ, ca.OP_NE)
LOGIC = (ca.OP_AND, ca.OP_OR, ca.OP_NOT)
#: table look-ups
SEARCHES = (ca.OP_LOW, ca.OP_FIND)
#: piecewise constant with many pieces, or composed of such functions
STEPS = (ca.OP_FLOOR, ca.OP_CEIL, ca.OP_FMOD, ca.OP_REMAINDER)
SIGNS = (ca.OP_SIGN, ca.OP_COPYSIGN)
#: with a cut where the first argument is zero and the second negative
ANGLES = (ca.OP_ATAN2,)
#: continuous, with a discontinuous derivative
KINKS = frozenset((ca.OP_FABS, ca.OP_FMIN, ca.OP_FMAX))
#: kinks over all entries of a matrix
FOLDS = frozenset((ca.OP_MMAX, ca.OP_MMIN, ca.OP_NORM1, ca.OP_NORMINF))
#: functions with a restricted domain; a kink in their argument is a clip
LIMITED = frozenset(
    (ca.OP_SQRT, ca.OP_LOG, ca.OP_LOG1P, ca.OP_POW, ca.OP_CONSTPOW, ca.OP_DIV, ca.OP_INV, ca.OP_ASIN, ca.OP_ACOS,
     ca.OP_ACOSH, ca.OP_ATANH)
)  # fmt: skip
JUMPS = frozenset((*RELATIONS, *STEPS, *SIGNS, *ANGLES))
ALL = JUMPS | FOLDS | {*KINKS, *EQUALITIES, *LOGIC, *SEARCHES, ca.OP_IF_ELSE_ZERO}


@dataclass(frozen=True)
class Node:
    """A discontinuous node whose arguments contain no other discontinuous node."""

    op: int
    arguments: tuple[ca.MX, ...]  # columns of length `size`, or scalars
    shape: tuple[int, int]
    node: ca.MX | None = None

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.shape[0] * self.shape[1]

    def entry(self, i: int) -> Node:
        """Return the scalar node of entry `i`."""
        own = tuple(a if a.numel() == 1 else a[i] for a in self.arguments)
        return Node(self.op, own, (1, 1))

    @property
    def is_relation(self) -> bool:
        """Whether its switch is binary."""
        return self.op not in STEPS

    @property
    def is_kink(self) -> bool:
        """Whether its value is continuous at the switch."""
        return self.op in KINKS

    @property
    def is_sign(self) -> bool:
        """Whether the value at a zero argument differs from both sides."""
        return self.op == ca.OP_SIGN

    @cached_property
    def key(self) -> str:
        """Key shared by nodes that have the same switch."""
        parts = self._sides if self.is_relation else (self._quotient,)
        symbols = ca.symvar(ca.vertcat(*parts))
        # symbols are identified by hash: names need not be unique
        return f"{self._kind} {[s.__hash__() for s in symbols]} {ca.Function('key', symbols, list(parts)).serialize()}"

    @property
    def _sides(self) -> tuple[ca.MX, ca.MX]:
        """The operands a and b of the relation a < b that sets the switch."""
        first = self.arguments[0]
        zero = ca.MX(0)
        if self.op in (ca.OP_LT, ca.OP_FMIN):
            return first, self.arguments[1]
        if self.op in (ca.OP_LE, ca.OP_FMAX):
            return self.arguments[1], first
        return (self.arguments[1] if self.op == ca.OP_COPYSIGN else first), zero

    @property
    def _quotient(self) -> ca.MX:
        """The quantity that is rounded."""
        first = self.arguments[0]
        if self.op == ca.OP_CEIL:
            return -first
        return first if self.op == ca.OP_FLOOR else first / self.arguments[1]

    @property
    def _kind(self) -> str:
        """Kind of the switch: relation, floor, trunc or round."""
        if self.is_relation:
            return "relation"
        return {ca.OP_FMOD: "trunc", ca.OP_REMAINDER: "round"}.get(self.op, "floor")

    @property
    def text(self) -> str:
        """Text of the switch for messages."""
        if self.is_relation:
            a, b = (str(side) for side in self._sides)
            return f"{bare(a)} < {bare(b)}"
        return f"{self._kind}({bare(str(self._quotient))})"

    @property
    def value(self) -> ca.MX:
        """Value of the switch."""
        if self.is_relation:
            a, b = self._sides
            return a < b
        return _rounded(self.op, self._quotient)

    def changes(self, switch: ca.MX) -> list[tuple[ca.MX, ca.MX, tuple[int, int, int]]]:
        """Return the guards that fall through zero when the switch changes, the new values, and the zero sides.

        The zero side of a guard is -1 if the switch changes where the guard reaches zero and stays, else 1; three for
        a negative switch, for 0 and for a positive one.
        """
        if self.is_relation:
            a, b = self._sides
            return [((1 - 2 * switch) * (a - b), 1 - switch, (1, 1, -1))]
        q, k = self._quotient, switch
        if self.op == ca.OP_REMAINDER:
            lower, upper = k - 0.5, k + 0.5
        elif self.op == ca.OP_FMOD:
            lower, upper = k - (k <= 0), k + (k >= 0)
        else:
            lower, upper = k, k + 1
        to = _rounded(self.op, q)
        is_trunc = self.op == ca.OP_FMOD
        rises, falls = ((1, -1, -1), (-1, -1, 1)) if is_trunc else ((-1, -1, -1), (1, 1, 1))
        return [(upper - q, ca.fmax(k + 1, to), rises), (q - lower, ca.fmin(k - 1, to), falls)]

    def sides(self) -> tuple[ca.MX, ca.MX, ca.MX]:
        """Return the distance from the discontinuity and the values on its two sides."""
        if self.op in EQUALITIES:
            return self.arguments[0] - self.arguments[1], ca.MX(0), ca.MX(1)
        if self.is_relation:
            a, b = self._sides
            return a - b, self.by(ca.MX(1)), self.by(ca.MX(0))
        q = self._quotient
        at = ca.floor(q) + 0.5 if self.op == ca.OP_REMAINDER else ca.floor(q + 0.5)
        low, high = _rounded(self.op, at - 0.25), _rounded(self.op, at + 0.25)
        away = q - at + ca.if_else(low == high, 1, 0)  # truncation toward zero has no jump at zero
        return away, self.by(low), self.by(high)

    def by(self, switch: ca.MX) -> ca.MX:
        """Return the node as a function of its switch; smooth while the switch is constant."""
        first = self.arguments[0]
        if self.op == ca.OP_LT:
            return switch
        if self.op == ca.OP_LE:
            return 1 - switch
        if self.op == ca.OP_SIGN:
            return 1 - 2 * switch
        if self.op == ca.OP_FABS:
            return (1 - 2 * switch) * first
        if self.op == ca.OP_COPYSIGN:
            return ca.fabs(first) * (1 - 2 * switch)
        if self.op == ca.OP_ATAN2:  # by half the angle from the y axis, which has its cut at the other side
            side, x = 1 - 2 * switch, self.arguments[1]
            half = ca.atan(x * ca.constpow(ca.hypot(x, first) + side * first, -1))
            return side * (math.pi / 2 - 2 * half)
        if self.op in (ca.OP_FMIN, ca.OP_FMAX):
            return ca.if_else(switch, first, self.arguments[1])
        if self.op == ca.OP_FLOOR:
            return switch
        if self.op == ca.OP_CEIL:
            return -switch
        return first - self.arguments[1] * switch


def _rounded(op: int, q: ca.MX) -> ca.MX:
    if op == ca.OP_REMAINDER:
        return ca.floor(q + 0.5)
    if op == ca.OP_FMOD:
        return ca.sign(q) * ca.floor(ca.fabs(q))
    return ca.floor(q)


def written_out(node: ca.MX) -> ca.MX:
    """Expand a node of FOLDS into nested kinks of two entries each."""
    matrix = ca.vec(ca.densify(node.dep(0)))
    entries = [matrix[i] for i in range(matrix.numel())]
    if node.op() == ca.OP_MMIN:
        return reduce(ca.fmin, entries)
    if node.op() == ca.OP_MMAX:
        return reduce(ca.fmax, entries)
    sizes = [ca.fabs(entry) for entry in entries]
    return sum(sizes[1:], sizes[0]) if node.op() == ca.OP_NORM1 else reduce(ca.fmax, sizes)


def bare(text: str) -> str:
    """Strip the enclosing parentheses of an expression's text."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for i, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 and i < len(text) - 1:
            return text
    return text[1:-1]
