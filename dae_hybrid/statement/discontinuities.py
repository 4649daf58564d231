"""Find the discontinuous nodes of CasADi expressions that depend on moving quantities, and replace them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from itertools import batched
from typing import Any

import casadi as ca

from dae_hybrid.errors import ModelError
from dae_hybrid.statement.discontinuous_nodes import (
    ALL,
    EQUALITIES,
    FOLDS,
    JUMPS,
    KINKS,
    LIMITED,
    LOGIC,
    RELATIONS,
    SEARCHES,
    Node,
    bare,
    written_out,
)
from dae_hybrid.statement.hidden_jumps import SIGNIFICANT, with_jumps_shown
from dae_hybrid.statement.lookup import is_table
from dae_hybrid.statement.splines import INTERPOLANT, continues_a_spline

#: identity operation of CasADi that marks an expression of `smooth`
SMOOTH = ca.OP_LIFT
#: classes of functions that CasADi writes out in expressions
WRITTEN_OUT = ("SXFunction", "MXFunction")
#: expressions searched at a time
SEARCH_BATCH_SIZE = 500


def smooth(expression: Any) -> Any:
    """Mark an expression as smooth: its relations do not become events (Modelica's ``noEvent``).

    Use it where a relation never switches, or where the expression is smooth although its parts are not. The integrator
    steps across any jump inside, and derivatives are those of the active branch. `HybridSystem.describe` and the
    diagnostics of a run report that the model relies on the mark.

    Parameters
    ----------
    expression : CasADi MX expression, or number
        Any shape.

    Returns
    -------
    MX
        The marked expression; numbers are returned unchanged.

    Raises
    ------
    ModelError
        `expression` is a CasADi SX expression.

    Examples
    --------
    A kink whose two branches agree in their first and second derivatives at the switch:

    >>> import casadi as ca
    >>> import dae_hybrid as dh
    >>> m = dh.HybridModel("spring")
    >>> x = m.differential("x")
    >>> run = m.mode("run", ode={x: -dh.smooth(ca.fmax(x - 1, 0) ** 3)})
    >>> m.initial(run, {x: 2.0})
    >>> len(m.build(native=False).transitions)
    0
    """
    if not isinstance(expression, ca.MX):
        if isinstance(expression, ca.SX):
            raise ModelError("smooth() got a CasADi SX expression; the symbols of a model are MX.")
        return expression
    return expression if expression.is_constant() else ca.MX.binary(SMOOTH, expression, expression)


def without_marks(function: ca.Function) -> ca.Function:
    """Remove the marks of `smooth` from a function of MX."""
    if function.is_a("SXFunction") or SMOOTH not in map(function.instruction_id, range(function.n_instructions())):
        return function
    inputs = function.mx_in()
    outputs = function.call(inputs)
    while marks := [node for _, node in instructions(inputs, outputs, {SMOOTH})]:
        outputs = ca.graph_substitute(outputs, marks, [mark.dep(0) for mark in marks])
    return ca.Function(function.name(), inputs, outputs)


def instructions(inputs: Sequence[ca.MX], outputs: Sequence[ca.MX], ops: Set[int]) -> list[tuple[int, ca.MX]]:
    """Return the nodes of expressions whose operation is in `ops`, with their operations."""
    function = ca.Function("expressions", inputs, outputs)
    every = enumerate(map(function.instruction_id, range(function.n_instructions())))
    return [(op, function.instruction_MX(k)) for k, op in every if op in ops]


def without_folds(expressions: Sequence[ca.MX]) -> list[ca.MX]:
    """Replace the norms and extrema of matrices by nested kinks of two entries each."""
    found = list(expressions)
    while nodes := [node for _, node in instructions(_symbols(found), found, FOLDS)]:
        found = ca.graph_substitute(found, nodes[:1], [written_out(nodes[0])])
    return found


def are_smooth(expressions: Sequence[ca.MX]) -> bool:
    """Whether expressions contain no discontinuous nodes, no marks, and no calls or forms that may hide such nodes."""
    symbols = _symbols(expressions)
    found = {op for op, _ in instructions(symbols, expressions, ALL | SIGNIFICANT | {SMOOTH})}
    if not found <= SIGNIFICANT - ALL - {ca.OP_CALL}:
        return False
    return not found or with_jumps_shown(symbols, expressions) is None


def plain(expressions: Sequence[ca.MX]) -> list[ca.MX]:
    """Return expressions of which all jumps and kinks are nodes of scalars; see `hidden_jumps`."""
    found = without_folds(expressions)
    return with_jumps_shown(_symbols(found), found) or found


def unsmooth[Key](expressions: Mapping[Key, Sequence[ca.MX]]) -> dict[Key, Sequence[ca.MX]]:
    """Return the entries of a mapping that are not `are_smooth`, searched in batches of `SEARCH_BATCH_SIZE`."""
    found: dict[Key, Sequence[ca.MX]] = {}
    for some in batched(expressions.items(), SEARCH_BATCH_SIZE):
        if not are_smooth([value for _, values in some for value in values]):
            found.update((key, values) for key, values in some if not are_smooth(values))
    return found


def _symbols(expressions: Sequence[ca.MX]) -> list[ca.MX]:
    found: list[ca.MX] = ca.symvar(ca.veccat(ca.MX(0, 1), *expressions))
    return found


class Discontinuities:
    """The discontinuous nodes of expressions that depend on quantities that move between transitions.

    Parameters
    ----------
    where : str
        Description of the expressions for error messages.
    expressions : sequence of MX
    moving : set of int
        Hashes of the symbols that move.
    clips : bool
        Whether kinks that clip the arguments of other functions to their domains count.

    Raises
    ------
    ModelError
        A called function has discontinuities that cannot be made events.
    """

    def __init__(self, where: str, expressions: Sequence[ca.MX], moving: Set[int], *, clips: bool = False) -> None:
        self.where, self._expressions, self._moving, self._clips = where, list(expressions), set(moving), clips
        marks = {node.__hash__(): node for _, node in instructions(self._symbols, self._expressions, {SMOOTH})}
        self._marks = [(ca.MX.sym("smooth", mark.sparsity()), mark) for mark in marks.values()]
        self._moving |= {symbol.__hash__() for symbol, mark in self._marks if self._moves(mark)}
        self._put([mark for _, mark in self._marks], [symbol for symbol, _ in self._marks])
        self._inline()
        self._expressions = plain(self._expressions)

    @property
    def expressions(self) -> list[ca.MX]:
        """The expressions in their current form, with marked parts restored."""
        return self.restored(self._expressions)

    def restored(self, expressions: Sequence[ca.MX]) -> list[ca.MX]:
        """Put the marked parts of `smooth` back into expressions."""
        symbols, marks = zip(*self._marks, strict=True) if self._marks else ((), ())
        found: list[ca.MX] = ca.substitute(list(expressions), symbols, marks)
        return found

    @property
    def spared(self) -> list[str]:
        """Text of the expressions that `smooth` has marked."""
        return [bare(str(mark.dep(0))) for _, mark in self._marks]

    @property
    def _symbols(self) -> list[ca.MX]:
        return _symbols(self._expressions)

    def innermost(self, ops: frozenset[int]) -> list[Node]:
        """Moving nodes with an operation in `ops` and no other such node in their arguments."""
        return [_node(node) for op, node in self._walk(ops) if op in ops]

    def clips(self) -> set[int]:
        """Hashes of the nodes that clip the argument of another function to its domain."""
        function = self._function()
        return {function.instruction_MX(k).__hash__() for k in _clips(function)}

    def hidden(self, node: Node) -> ca.MX:
        """Return a symbol that moves, with which a node can be replaced until the expressions are `restored`."""
        clip: Any = node.node
        symbol = ca.MX.sym("clip", clip.sparsity())
        self._marks.append((symbol, clip))
        self._moving.add(symbol.__hash__())
        return symbol

    def replace(self, pairs: Sequence[tuple[Node, ca.MX]], *, moving: bool = False) -> None:
        """Replace nodes by expressions; with `moving`, these are symbols that move."""
        self._moving |= {value.__hash__() for _, value in pairs if moving}
        self._put([node.node for node, _ in pairs], [value for _, value in pairs])

    def _put(self, old: list[Any], new: list[ca.MX]) -> None:
        if old:
            self._expressions = ca.graph_substitute(self._expressions, old, new)

    def refuse_rest(self) -> None:
        """Refuse nodes that cannot be lifted: equalities and look-ups of moving quantities, numeric conditions."""
        for op, node in self._walk(frozenset()):
            if op in EQUALITIES:
                raise ModelError(
                    f"The relation {bare(str(node))} in {self.where} compares quantities that move for equality: it "
                    "holds at instants only, if at all.",
                    remedy="State it as an inequality, or compare memory and parameters.",
                )
            if op in SEARCHES:
                raise ModelError(
                    f"{self.where} looks something up by a quantity that moves, {bare(str(node))}, which jumps.",
                    remedy="State the intervals by if_else, or mark the expression by smooth().",
                )
            if op in LOGIC or (op == ca.OP_IF_ELSE_ZERO and self._moves(node.dep(0))):
                what = node.dep(0) if op == ca.OP_IF_ELSE_ZERO else node
                raise ModelError(
                    f"In {self.where} a number that moves is taken as a condition: {bare(str(what))}.",
                    remedy="State the condition as a relation, such as x > 0.",
                )

    def _moves(self, expression: ca.MX) -> bool:
        return any(s.__hash__() in self._moving for s in ca.symvar(expression))

    def _walk(self, blocking: frozenset[int]) -> Iterator[tuple[int, ca.MX]]:
        """Yield (operation, node) for moving nodes, except those with a node of `blocking` in their arguments.

        Clips that keep the arguments of other functions in their domains are skipped unless `clips` is set.
        """
        function, moving = self._function(), [s.__hash__() in self._moving for s in self._symbols]
        clips = set() if self._clips else _clips(function)
        state: dict[int, tuple[bool, bool]] = {}  # by work index: (moves, blocked)
        for k in range(function.n_instructions()):
            op, places = function.instruction_id(k), function.instruction_input(k)
            if op == ca.OP_OUTPUT:
                continue
            if op == ca.OP_INPUT:
                moves, blocked = moving[places[0]], False
            else:
                moves = any(state[i][0] for i in places if i in state)
                blocked = any(state[i][1] for i in places if i in state)
                if moves and not blocked and k not in clips:
                    yield op, function.instruction_MX(k)
                blocked |= moves and op in blocking and k not in clips
            for i in function.instruction_output(k):
                state[i] = moves, blocked

    def _function(self) -> ca.Function:
        return ca.Function("expressions", self._symbols, self._expressions)

    def _inline(self) -> None:
        """Inline called functions that contain discontinuities."""
        while nodes := [node for node in self._closed() if node.which_function().class_name() in WRITTEN_OUT]:
            calls = [
                node.which_function().call([node.dep(i) for i in range(node.n_dep())], True, False) for node in nodes
            ]
            values = [node.get_output(i) for node in nodes for i in range(node.which_function().n_out())]
            self._put(values, [value for call in calls for value in call])
        if not self._closed():
            return
        with suppress(RuntimeError):
            self._expressions = self._function().expand().call(self._symbols, True, False)
        if nodes := self._closed():  # functions that CasADi never inlines
            names = ", ".join(f"'{node.which_function().name()}'" for node in nodes)
            raise ModelError(
                f"{self.where} calls {names} with discontinuities inside, which cannot be made events.",
                remedy="Write the function out in terms of the model's symbols, or mark the call by smooth().",
            )

    def _closed(self) -> list[ca.MX]:
        """Calls of functions that contain discontinuities."""
        calls = [node for op, node in self._walk(frozenset()) if op == ca.OP_CALL]
        return [node for node in calls if _is_discontinuous(node.which_function())]


def _clips(function: ca.Function) -> set[int]:
    """Instructions that clip the argument of another one to its domain, such as fmax in sqrt(fmax(h, 0))."""
    made: dict[int, int] = {}  # work index -> the kink stored there
    parents: dict[int, list[int]] = {}
    clips: list[int] = []
    for k in range(function.n_instructions()):
        op, places = function.instruction_id(k), function.instruction_input(k)
        kinks = [] if op == ca.OP_INPUT else [made[i] for i in places if i in made]
        if op in LIMITED:  # the denominator of a quotient, the base of a power
            limited = places[1:] if op == ca.OP_DIV else places[:1]
            clips += [made[i] for i in limited if i in made]
        for i in function.instruction_output(k) if op != ca.OP_OUTPUT else ():
            made.pop(i, None)
            if op in KINKS:
                made[i] = k
                parents[k] = kinks
    found: set[int] = set()
    while clips:
        k = clips.pop()
        found.add(k)
        clips += parents[k]
    return found


def _is_discontinuous(function: ca.Function) -> bool:
    """Whether a function contains discontinuous nodes. Tables do not; of external functions only the values tell."""
    if is_table(function) or continues_a_spline(function):
        return False
    if function.is_a("SXFunction") or function.is_a("MXFunction"):
        ids = [function.instruction_id(k) for k in range(function.n_instructions())]
        if not (ALL | {ca.OP_BSPLINE}).isdisjoint(ids):
            return True
        calls = [k for k, op in enumerate(ids) if op == ca.OP_CALL]
        if function.is_a("SXFunction"):  # does not tell what it calls
            return bool(calls)
        inner = [function.instruction_MX(k).which_function() for k in calls]
    else:
        inner = [function.get_function(name) for name in function.get_function()]
    return function.class_name() == "Switch" or any(
        f.class_name() == INTERPOLANT or _is_discontinuous(f) for f in inner
    )


def unmarked(expressions: Sequence[ca.MX], ops: Set[int]) -> list[tuple[int, ca.MX]]:
    """Return the nodes of expressions outside `smooth` whose operation is in `ops`, with their operations."""
    found = instructions(_symbols(expressions), expressions, {*ops, SMOOTH})
    marks = [node for op, node in found if op == SMOOTH]
    if not marks:
        return found
    seen = ca.graph_substitute(list(expressions), marks, [ca.MX.zeros(m.shape) for m in marks])
    return instructions(_symbols(seen), seen, ops)


def opaque_calls(nodes: Sequence[tuple[int, ca.MX]]) -> list[tuple[str, ca.MX]]:
    """Return the names and values of calls, among `unmarked` nodes, whose functions nobody can look into."""
    calls = [(node.which_function(), node) for op, node in nodes if op == ca.OP_CALL]
    opaque = [(function, node) for function, node in calls if _is_opaque(function)]
    return [(f.name(), node.get_output(i)) for f, node in opaque for i in range(f.n_out()) if f.numel_out(i)]


def _is_opaque(function: ca.Function) -> bool:
    """Whether a function calls code that is no expression: callbacks, libraries, solvers."""
    name = function.class_name()
    if is_table(function) or name in (INTERPOLANT, "LinearInterpolant", "Switch"):  # a switch is a relation
        return False
    if name == "SXFunction":  # does not tell what it calls
        return ca.OP_CALL in map(function.instruction_id, range(function.n_instructions()))
    if name == "MXFunction":
        return bool(opaque_calls(unmarked(function.call(function.mx_in()), {ca.OP_CALL})))
    inner = [function.get_function(own) for own in function.get_function()]
    return not (name in ("Map", "ThreadMap", "OmpMap") and inner) or any(map(_is_opaque, inner))


def _node(node: ca.MX) -> Node:
    arguments = tuple(ca.vec(ca.densify(node.dep(i))) for i in range(node.n_dep()))
    return Node(node.op(), arguments, node.shape, node)


def jumps(expressions: Sequence[ca.MX]) -> list[tuple[Node, ca.MX, Callable[[ca.MX], list[ca.MX]]]]:
    """Return every entry of the discontinuous nodes with its node and the expressions as a function of its value.

    Nodes inside `smooth` are excluded.
    """
    found: list[tuple[Node, ca.MX, Callable[[ca.MX], list[ca.MX]]]] = []
    ops = JUMPS | KINKS | {*EQUALITIES}
    if are_smooth(expressions):
        return found
    expressions = plain(expressions)
    marked = [mark.dep(0) for _, mark in instructions(_symbols(expressions), expressions, {SMOOTH})]
    spared = {node.__hash__() for _, node in instructions(_symbols(marked), marked, ops)}
    for _, node in instructions(_symbols(expressions), expressions, ops):
        if node.__hash__() in spared:
            continue
        whole = _node(node)
        for i in range(whole.size):
            found.append((whole.entry(i), node, partial(_forced, expressions, node, i)))
    return found


def _forced(expressions: Sequence[ca.MX], node: ca.MX, i: int, value: ca.MX) -> list[ca.MX]:
    """Return the expressions with one entry of a node set to a value."""
    entries = [value if k == i else part for k, part in enumerate(ca.vertsplit(ca.vec(ca.densify(node))))]
    return list(ca.graph_substitute(list(expressions), [node], [ca.reshape(ca.vertcat(*entries), node.shape)]))


def margin(condition: ca.MX, moving: set[int]) -> tuple[ca.MX, ca.MX | int] | None:
    """Return a guard that is negative where a condition holds and continuous where its operands are, and its zero side.

    The zero side is -1 where the condition holds with a guard of zero, else 1. Returns None if the expression is not a
    condition.
    """
    op = condition.op()
    if op not in (*RELATIONS, *EQUALITIES, *LOGIC):
        return None
    if moving.isdisjoint(s.__hash__() for s in ca.symvar(condition)):
        return 1 - 2 * condition, 1
    if op in RELATIONS:
        return condition.dep(0) - condition.dep(1), 1 if op == ca.OP_LT else -1
    if op in EQUALITIES:  # refused by `refuse_rest`
        return 1 - 2 * condition, 1
    parts = [margin(part, moving) or (1 - 2 * (part != 0), 1) for part in _parts(condition)]
    if op == ca.OP_NOT:
        ((guard, side),) = parts
        return -guard, -side
    (first, its_side), (second, other_side) = parts
    fold = ca.fmax if op == ca.OP_AND else ca.fmin
    if isinstance(its_side, int) and its_side is other_side:
        return fold(first, second), its_side
    at_tie = fold(ca.MX(its_side), ca.MX(other_side))
    decides = first > second if op == ca.OP_AND else first < second
    return fold(first, second), ca.if_else(first == second, at_tie, ca.if_else(decides, its_side, other_side))


def _parts(condition: ca.MX) -> list[ca.MX]:
    return [condition.dep(i) for i in range(condition.n_dep())]
