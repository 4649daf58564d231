"""Hoist expressions of parameters and memory out of the integrator's functions: computed once per segment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import casadi as ca

from dae_hybrid.codegen.casadi_tools import expanded
from dae_hybrid.codegen.products import inlined, is_cheaper, operations, parts_of

#: functions called at every step
STEP_FUNCTIONS = ("flow", "reduced", "settle", "jacobian", "linearised", "guards", "sketch", "pullback", "tangent")
#: those examined as vector operations
VECTORISED = ("flow", "guards", "pullback", "tangent")
#: larger functions are not rewritten: their evaluation dominates, and the analysis is expensive
MAX_REWRITTEN_NODES = 100_000
#: largest operation count for which elementwise code is faster than vector operations and quickly compiled
MAX_ELEMENTWISE_OPERATIONS = 1_000


def hoisted(functions: Mapping[str, ca.Function]) -> dict[str, ca.Function]:
    """Add an input c to the functions, and `constants`, which computes c from the inputs (t, x, m, p).

    Common subexpressions are shared within each function. Functions that are not rewritten ignore c. A `pullback` is
    split into `tape`, which returns the outputs of `flow` and intermediate results, and `pullback`, which takes these
    after c and returns the derivatives by x, m and p, the last in the parts of `parts_of`. A `tangent` uses the same
    tape and replaces `linearised` if that is more expensive. If they cannot be rewritten, they are omitted.

    Examples
    --------
    >>> import casadi as ca
    >>> from dae_hybrid.codegen.hoisting import hoisted
    >>> t, x, m, p = (ca.SX.sym(name) for name in "txmp")
    >>> found = hoisted({"flow": ca.Function("flow", [t, x, m, p], [x * ca.sin(p * m)])})
    >>> found["constants"](0, 0, 2, 3), found["flow"].n_in()
    (DM(-0.279415), 5)
    """
    result = {key: function for key, function in functions.items() if key not in ("pullback", "tangent")}
    hot = {key: functions[key] for key in STEP_FUNCTIONS if key in functions and functions[key].is_a("SXFunction")}
    kind: Any = ca.SX
    if not hot:
        kind = ca.MX
        written = {key: inlined(functions[key]) for key in VECTORISED if key in functions}
        hot = {key: function for key, function in written.items() if function is not None}
    hot = {key: function for key, function in hot.items() if function.n_nodes() <= MAX_REWRITTEN_NODES}
    if "pullback" not in hot:
        hot.pop("tangent", None)
    if not hot:
        return result
    first = next(iter(hot.values()))
    point = [kind.sym(name, first.size1_in(i)) for i, name in enumerate("txmp")]
    more = {key: [kind.sym(f"v{i}", f.size1_in(i)) for i in range(4, f.n_in())] for key, f in hot.items()}
    outputs = [(key, value) for key, f in hot.items() for value in f.call([*point, *more[key]], True, False)]
    rewritten, symbols, values = _extracted([value for _, value in outputs], [point[2], point[3]])
    if any(new.sparsity() != old.sparsity() for new, (_, old) in zip(rewritten, outputs, strict=True)):
        return result
    c, pieces = _column(kind, "c", values)
    multiplied: dict[str, tuple[str, list[Any], list[Any]]] = {}
    for key, f in hot.items():
        own = [new for (owner, _), new in zip(outputs, rewritten, strict=True) if owner == key]
        if key in ("pullback", "tangent"):
            multiplied[key] = f.name(), own, more[key]
            continue
        result[key] = ca.Function(f.name(), [*point, c], _named(own, symbols, pieces))
    result["constants"] = ca.Function(f"{first.name()}_constants", point, [ca.cse(_stacked(kind, values))])
    if multiplied:
        result |= _with_tape(multiplied, result, [*point, c], symbols, pieces)
        if "tangent" in result:
            del result["linearised"]
    short = [
        key
        for key in (*hot, "tape")
        if kind is ca.MX and key in result and operations(result[key]) <= MAX_ELEMENTWISE_OPERATIONS
    ]
    return result | {key: expanded(result[key]) for key in short}


def _with_tape(
    multiplied: dict[str, tuple[str, list[Any], list[Any]]], others: Mapping[str, ca.Function], point: list[Any],
    symbols: Sequence[Any], pieces: list[Any],
) -> dict[str, ca.Function]:  # fmt: skip
    """Return `tape`, `pullback` and, if it is cheaper than `linearised`, `tangent`."""
    if "tangent" in multiplied:
        found = _taped(multiplied, point, symbols, pieces)
        if is_cheaper(found, others["linearised"]):
            return found
    return _taped({"pullback": multiplied["pullback"]}, point, symbols, pieces)


def _taped(
    multiplied: Mapping[str, tuple[str, list[Any], list[Any]]],
    point: list[Any],
    symbols: Sequence[Any],
    pieces: list[Any],
) -> dict[str, ca.Function]:
    """Return `tape`, the common part of the products that is independent of the vectors, and the remaining products."""
    name, values, vectors = multiplied["pullback"]
    along, rates, directions = multiplied.get("tangent", ("", [], []))
    found, recorded, kept = _extracted([*values[2:], *rates], [*point[:4], *symbols])
    tape, places = _column(type(point[0]), "tape", kept)
    given = [*values[:2], _stacked(type(point[0]), kept)]
    by_x, by_p, by_m, *rates = _named(found, recorded, places)
    products = [by_x, by_m, *(value for part in parts_of(by_p) for value in part)]
    result = {
        "tape": ca.Function(f"{name}_tape", point, _named(given, symbols, pieces)),
        "pullback": ca.Function(name, [*point, tape, *vectors], _named(products, symbols, pieces)),
    }
    if rates:
        result["tangent"] = ca.Function(along, [*point, tape, *directions], _named(rates, symbols, pieces))
    return result


def _extracted(values: list[Any], known: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Replace subexpressions of known symbols by symbols; return the columns, the symbols and the subexpressions."""
    if isinstance(values[0], ca.SX):
        found, symbols, parts = ca.extract_parametric(values, known)
        return list(found), list(symbols), list(parts)
    whole, symbols, parts = ca.extract_parametric(ca.cse(ca.vertcat(*values)), known)
    pieces = [whole.dep(i) for i in range(whole.n_dep())] if whole.is_op(ca.OP_VERTCAT) else [whole]
    columns = list[Any]()
    for value in values:  # CasADi would turn a list into one column and split it into scalars
        own, missing = list[Any](), value.numel()
        while missing > 0:
            own.append(pieces.pop(0))
            missing -= own[-1].numel()
        if missing:
            columns = list(ca.vertsplit(whole, _ends(values)))
            break
        columns.append(ca.vertcat(*own) if own else ca.MX(0, 1))
    return columns, list(symbols), list(parts)


def _ends(values: Sequence[Any]) -> list[int]:
    """Offsets of the pieces of a column, starting with zero."""
    return [0, *accumulate(value.nnz() for value in values)]


def _named(values: Sequence[Any], symbols: Sequence[Any], pieces: list[Any]) -> list[Any]:
    """Replace symbols by pieces of a column; share common subexpressions."""
    found = ca.substitute(list(values), list(symbols), pieces) if symbols else list(values)
    return found if len(found) == 1 else ca.cse(found)


def _column(kind: Any, name: str, values: Sequence[Any]) -> tuple[Any, list[Any]]:
    """A column of symbols, and its pieces in the shapes of the values."""
    ends = _ends(values)
    column = kind.sym(name, ends[-1])
    pieces = ca.vertsplit(column, ends) if values else []
    if kind is ca.SX:  # scalars
        return column, pieces
    return column, [kind(v.sparsity(), piece) for v, piece in zip(values, pieces, strict=True)]


def _stacked(kind: Any, values: Sequence[Any]) -> Any:
    """Stack values into such a column."""
    if kind is ca.MX:
        values = [ca.vec(value if value.is_dense() else value.nz[:]) for value in values]
    return ca.densify(ca.vertcat(kind(0, 1), *values))
