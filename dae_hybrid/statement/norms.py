"""Norms of vectors, however they are written, and those by which expressions divide."""

from __future__ import annotations

from collections.abc import Sequence

import casadi as ca

from dae_hybrid.statement.discontinuous_nodes import bare
from dae_hybrid.statement.lookup import without_look_ups

#: operations that give a norm
NORMS = (ca.OP_NORM2, ca.OP_NORMF, ca.OP_HYPOT)
DIVISIONS = (ca.OP_DIV, ca.OP_INV)


def vector_of(norm: ca.MX) -> ca.MX | None:
    """The vector of which a scalar is the Euclidean norm; None if it is none, or that of a scalar."""
    parts: list[ca.MX] | None = None
    if norm.op() == ca.OP_HYPOT and norm.numel() == 1:
        parts = [norm.dep(0), norm.dep(1)]
    elif norm.op() in NORMS:
        parts = [norm.dep(0)] if norm.numel() == 1 else None
    elif norm.op() == ca.OP_SQRT and norm.numel() == 1:
        parts = _squared(norm.dep(0))
    found = None if parts is None else ca.veccat(*parts)
    return found if found is not None and found.numel() > 1 else None


def _squared(of: ca.MX) -> list[ca.MX] | None:
    """The parts of which an expression is the sum of squares."""
    if of.op() == ca.OP_ADD:
        one, other = _squared(of.dep(0)), _squared(of.dep(1))
        return None if one is None or other is None else one + other
    if of.op() == ca.OP_SQ:
        return [of.dep(0)]
    if of.op() in (ca.OP_DOT, ca.OP_MUL) and ca.is_equal(of.dep(0), of.dep(1)):
        return [of.dep(0)]
    return None


def norms_as_divisors(nodes: Sequence[tuple[int, ca.MX]]) -> list[tuple[str, ca.MX]]:
    """Return the texts of the norms by which nodes divide, and their vectors."""
    divisors = [node.dep(1 if op == ca.OP_DIV else 0) for op, node in nodes if op in DIVISIONS]
    factors = [factor for divisor in divisors for factor in factors_of(divisor)]
    found = {without_look_ups(bare(str(factor))): vector_of(factor) for factor in factors}
    return [(text, vector) for text, vector in found.items() if vector is not None]


def factors_of(of: ca.MX) -> list[ca.MX]:
    """The factors of a product; other expressions are their only one."""
    return [*factors_of(of.dep(0)), *factors_of(of.dep(1))] if of.op() == ca.OP_MUL else [of]
