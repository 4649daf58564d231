"""Where CasADi's B-splines jump: they are zero outside of their knots, in value and derivative.

So it is with casadi 3.8.2 for ``interpolant(..., "bspline", ...)``, `bspline` and `Function.bspline`; interpolants
built with ``inline`` extrapolate. The knots are read from the serialized function: no call gives them.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from itertools import pairwise

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from dae_hybrid.errors import ModelError

#: class of the functions that `casadi.interpolant` makes
INTERPOLANT = "BSplineInterpolant"
#: beginning of the names of functions that continue a spline
PREFIX = "dae_hybrid_spline_"


def continues_a_spline(function: ca.Function) -> bool:
    """Whether a function is the smooth part of a spline, as `with_ends_shown` makes it."""
    return str(function.name()).startswith(PREFIX)


def with_ends_shown(node: ca.MX) -> ca.MX | None:
    """Return an expression equal to a spline whose jumps are relations; None if it has none.

    Within the grid the expression is the spline and, as long as the relations do not switch, its tangent beyond: a step
    that ends at the edge of the grid is smooth.

    Raises
    ------
    ModelError
        The spline jumps within its grid, its outermost knots are single, or its knots cannot be read.
    """
    is_call = node.op() == ca.OP_CALL
    if is_call and node.which_function().class_name() != INTERPOLANT:
        return None
    arguments = [node.dep(i) for i in range(node.n_dep())]
    symbols = [ca.MX.sym(f"x{i}", argument.sparsity()) for i, argument in enumerate(arguments)]
    x, *coefficients = symbols
    if is_call:
        spline = node.which_function()
    else:
        spline = ca.Function("spline", symbols, ca.graph_substitute([node], arguments, symbols))
    ends = list(_ends(spline))
    if not ends:
        return None
    value = spline(*symbols)
    with_slope = ca.Function("with_slope", symbols, [value, ca.jacobian(value, x)])
    lower, upper = (ca.DM(list(side)) for side in zip(*ends, strict=True))
    within = ca.fmin(ca.fmax(x, lower), upper)
    at, slope = with_slope.call([within, *coefficients], True, False)
    tangent = at + ca.reshape(ca.mtimes(slope, x - within), *at.shape)
    continued = ca.Function(f"{PREFIX}{spline.name()}", symbols, [tangent], {"never_inline": True})
    found = continued(*arguments)
    for point, (low, high) in zip(_entries(arguments[0]), ends, strict=True):
        least, most = _range(point)
        if least < low:
            found = (point >= low) * found
        if most > high:
            found = (point <= high) * found
    return found


def _entries(column: ca.MX) -> list[ca.MX]:
    parts = [column.dep(i) for i in range(column.n_dep())] if column.op() == ca.OP_VERTCAT else []
    return parts if len(parts) == column.numel() else [column[i] for i in range(column.numel())]


def _range(of: ca.MX) -> tuple[float, float]:
    """An interval that contains a scalar: an argument that is clipped to the grid does not leave it."""
    op = of.op()
    if of.is_constant():
        return float(of.to_DM()), float(of.to_DM())
    if op in (ca.OP_SIN, ca.OP_COS, ca.OP_TANH):
        return -1.0, 1.0
    if op not in (ca.OP_FMIN, ca.OP_FMAX, ca.OP_ADD, ca.OP_SUB, ca.OP_MUL):
        return -math.inf, math.inf
    (a, b), (c, d) = _range(of.dep(0)), _range(of.dep(1))
    if op == ca.OP_ADD:
        return a + c, b + d
    if op == ca.OP_SUB:
        return a - d, b - c
    if op == ca.OP_MUL:
        products = [x * y for x in (a, b) for y in (c, d)]
        return (-math.inf, math.inf) if any(map(math.isnan, products)) else (min(products), max(products))
    pick = min if op == ca.OP_FMIN else max
    return pick(a, c), pick(b, d)


def _ends(spline: ca.Function) -> Iterator[tuple[float, float]]:
    """Yield the interval of each axis beyond which a spline drops to zero; none if it extrapolates."""
    text = spline.serialize({"debug": True})
    raw = bytes((ord(low) - 97) | ((ord(high) - 97) << 4) for low, high in zip(text[::2], text[1::2], strict=True))
    if b"BSplineCommon::" not in raw:
        if spline.class_name() == INTERPOLANT:  # inlined
            return
        raise ModelError(f"The knots of the B-spline '{spline.name()}' cannot be read.")
    knots, offsets, degrees = (_stored(raw, f"BSplineCommon::{key}".encode()) for key in ("knots", "offset", "degree"))
    for (start, end), degree in zip(pairwise(offsets.astype(int)), degrees, strict=True):
        places, counts = np.unique(knots[start:end], return_counts=True)
        repeated = counts > degree
        if np.any(repeated[1:-1]):
            raise ModelError(
                f"The B-spline '{spline.name()}' jumps within its grid: a knot is repeated {int(degree) + 1} times.",
                remedy="State its pieces by if_else.",
            )
        if not (repeated[0] and repeated[-1]):
            raise ModelError(
                f"The first and the last knot of the B-spline '{spline.name()}' are not repeated {int(degree) + 1} "
                "times: CasADi extrapolates it towards them, and is wrong at knots.",
                remedy="Repeat them, or declare a table by HybridModel.table.",
            )
        yield float(places[0]), float(places[-1])


def _stored(raw: bytes, key: bytes) -> NDArray[np.float64]:
    """The vector of numbers (CasADi's types d and J) that a serialized function stores under a key."""
    found = re.search(re.escape(key) + b"VJ", raw)
    if found is None:
        raise ModelError(
            f"CasADi {ca.CasadiMeta.version()} stores no {key.decode()} of a B-spline: its ends cannot be read."
        )
    (size,) = struct.unpack_from("<q", raw, found.end())
    entries = struct.iter_unpack("<c8s", raw[found.end() + 8 : found.end() + 8 + 9 * size])
    return np.array([struct.unpack("<d" if kind == b"d" else "<q", eight)[0] for kind, eight in entries], float)
