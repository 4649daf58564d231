"""Where CasADi expressions have discontinuous nodes, as far as these move along a run."""

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

#: an operation of CasADi that changes nothing: the mark of `smooth`
SMOOTH = ca.OP_LIFT
#: so many expressions are looked through at a time
MANY = 500


def smooth(expression: Any) -> Any:
    """Leave an expression as it is: its relations do not become events (Modelica's ``noEvent``).

    Use it where a relation never changes its value, or where the expression is smooth although its parts are not. The
    integrator steps across whatever jumps inside, and derivatives are those of the branch: `HybridSystem.describe` and
    the diagnostics of a run say that the model relies on it.

    Parameters
    ----------
    expression : CasADi MX expression, or number
        Any shape.

    Returns
    -------
    MX
        The same values; numbers are returned as they are.

    Examples
    --------
    The square of a relation's branches is smooth where the branches meet:

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
    """A function of MX without the marks of `smooth`."""
    if function.is_a("SXFunction") or SMOOTH not in map(function.instruction_id, range(function.n_instructions())):
        return function
    inputs = function.mx_in()
    outputs = function.call(inputs)
    while marks := [node for _, node in instructions(inputs, outputs, {SMOOTH})]:
        outputs = ca.graph_substitute(outputs, marks, [mark.dep(0) for mark in marks])
    return ca.Function(function.name(), inputs, outputs)


def instructions(inputs: Sequence[ca.MX], outputs: Sequence[ca.MX], ops: Set[int]) -> list[tuple[int, ca.MX]]:
    """Nodes of expressions with one of some operations."""
    function = ca.Function("expressions", inputs, outputs)
    every = enumerate(map(function.instruction_id, range(function.n_instructions())))
    return [(op, function.instruction_MX(k)) for k, op in every if op in ops]


def without_folds(expressions: Sequence[ca.MX]) -> list[ca.MX]:
    """Expressions with the kinks of two entries each for those of all entries of a matrix."""
    found = list(expressions)
    while nodes := [node for _, node in instructions(_symbols(found), found, FOLDS)]:
        found = ca.graph_substitute(found, nodes[:1], [written_out(nodes[0])])
    return found


def are_smooth(expressions: Sequence[ca.MX]) -> bool:
    """Whether expressions have neither discontinuous nodes, nor marks, nor calls in which such nodes may be."""
    return not instructions(_symbols(expressions), expressions, ALL | {SMOOTH, ca.OP_CALL})


def unsmooth[Key](expressions: Mapping[Key, Sequence[ca.MX]]) -> dict[Key, Sequence[ca.MX]]:
    """Those that are not `are_smooth`, looked for in many at a time."""
    found: dict[Key, Sequence[ca.MX]] = {}
    for some in batched(expressions.items(), MANY):
        if not are_smooth([value for _, values in some for value in values]):
            found.update((key, values) for key, values in some if not are_smooth(values))
    return found


def _symbols(expressions: Sequence[ca.MX]) -> list[ca.MX]:
    found: list[ca.MX] = ca.symvar(ca.veccat(ca.MX(0, 1), *expressions))
    return found


class Discontinuities:
    """The discontinuous nodes of expressions, as far as they depend on what moves between transitions.

    Parameters
    ----------
    where : str
        What the expressions are, for errors.
    expressions : sequence of MX
    moving : set of int
        Hashes of the symbols that move.
    clips : bool
        Whether kinks that keep the arguments of other functions in their domains count.

    Raises
    ------
    ModelError
        A function that is called has discontinuities that cannot be reached.
    """

    def __init__(self, where: str, expressions: Sequence[ca.MX], moving: Set[int], *, clips: bool = False) -> None:
        self.where, self._expressions, self._moving, self._clips = where, list(expressions), set(moving), clips
        marks = {node.__hash__(): node for _, node in instructions(self._symbols, self._expressions, {SMOOTH})}
        self._marks = [(ca.MX.sym("smooth", mark.sparsity()), mark) for mark in marks.values()]
        self._moving |= {symbol.__hash__() for symbol, mark in self._marks if self._moves(mark)}
        self._put([mark for _, mark in self._marks], [symbol for symbol, _ in self._marks])
        self._inline()
        self._expressions = without_folds(self._expressions)

    @property
    def expressions(self) -> list[ca.MX]:
        """The expressions as they are now."""
        return self.restored(self._expressions)

    def restored(self, expressions: Sequence[ca.MX]) -> list[ca.MX]:
        """Expressions, or parts of nodes, with what `smooth` has marked in its place."""
        symbols, marks = zip(*self._marks, strict=True) if self._marks else ((), ())
        found: list[ca.MX] = ca.substitute(list(expressions), symbols, marks)
        return found

    @property
    def spared(self) -> list[str]:
        """What `smooth` leaves as it is."""
        return [bare(str(mark.dep(0))) for _, mark in self._marks]

    @property
    def _symbols(self) -> list[ca.MX]:
        return _symbols(self._expressions)

    def innermost(self, ops: frozenset[int]) -> list[Node]:
        """Moving nodes of some operations without another one in their arguments."""
        return [_node(node) for op, node in self._walk(ops) if op in ops]

    def replace(self, pairs: Sequence[tuple[Node, ca.MX]], *, moving: bool = False) -> None:
        """Put expressions in the place of nodes; `moving` says that they are symbols that move."""
        self._moving |= {value.__hash__() for _, value in pairs if moving}
        self._put([node.node for node, _ in pairs], [value for _, value in pairs])

    def _put(self, old: list[Any], new: list[ca.MX]) -> None:
        if old:
            self._expressions = ca.graph_substitute(self._expressions, old, new)

    def refuse_rest(self) -> None:
        """Refuse what cannot be lifted: equality of what moves, and numbers that move as conditions."""
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
        """Operations and nodes whose arguments move, without those that have one of `blocking` in their arguments.

        Clips that keep the arguments of other functions in their domains are left out, too, where they do not count.
        """
        function, moving = self._function(), [s.__hash__() in self._moving for s in self._symbols]
        clips = set() if self._clips else _clips(function)
        state: dict[int, tuple[bool, bool]] = {}  # by place of work: whether it moves, and whether it is blocked
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
        """Write out the functions that are called, where they have discontinuities."""
        names = self._closed()
        if not names:
            return
        with suppress(RuntimeError):
            self._expressions = self._function().expand().call(self._symbols, True, False)
            names = self._closed()  # those that are never inlined
        if names:
            raise ModelError(
                f"{self.where} calls {names} with discontinuities inside, which cannot be made events.",
                remedy="Write the function out in terms of the model's symbols, or mark the call by smooth().",
            )

    def _closed(self) -> str:
        """Names of functions that are called, with discontinuities inside."""
        calls = [node.which_function() for op, node in self._walk(frozenset()) if op == ca.OP_CALL]
        return ", ".join(f"'{f.name()}'" for f in calls if _is_discontinuous(f))


def _clips(function: ca.Function) -> set[int]:
    """Instructions that keep the argument of another one in its domain, such as fmax in sqrt(fmax(h, 0))."""
    made: dict[int, int] = {}  # place of work: the kink that it holds
    parents: dict[int, list[int]] = {}
    clips: list[int] = []
    for k in range(function.n_instructions()):
        op, places = function.instruction_id(k), function.instruction_input(k)
        kinks = [] if op == ca.OP_INPUT else [made[i] for i in places if i in made]
        if op in LIMITED:  # of a quotient the denominator, of a power the base
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
    """Whether there are discontinuous nodes in a function; those that are not CasADi's own are taken as smooth."""
    if function.is_a("SXFunction") or function.is_a("MXFunction"):
        ids = [function.instruction_id(k) for k in range(function.n_instructions())]
        if not ALL.isdisjoint(ids):
            return True
        calls = [k for k, op in enumerate(ids) if op == ca.OP_CALL] if function.is_a("MXFunction") else []
        return any(_is_discontinuous(function.instruction_MX(k).which_function()) for k in calls)
    inner = [function.get_function(name) for name in function.get_function()]
    return function.class_name() == "Switch" or any(map(_is_discontinuous, inner))


def _node(node: ca.MX) -> Node:
    arguments = tuple(ca.vec(ca.densify(node.dep(i))) for i in range(node.n_dep()))
    return Node(node.op(), arguments, node.shape, node)


def jumps(expressions: Sequence[ca.MX]) -> list[tuple[Node, ca.MX, Callable[[ca.MX], list[ca.MX]]]]:
    """Entries of all discontinuous nodes, the nodes, and the expressions as functions of the entry's value.

    Those that `smooth` leaves as they are do not count.
    """
    found: list[tuple[Node, ca.MX, Callable[[ca.MX], list[ca.MX]]]] = []
    ops = JUMPS | KINKS | {*EQUALITIES}
    if not instructions(_symbols(expressions), expressions, ops | FOLDS):
        return found
    expressions = without_folds(expressions)
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
    """The expressions with a value for one entry of a node."""
    entries = [value if k == i else part for k, part in enumerate(ca.vertsplit(ca.vec(ca.densify(node))))]
    return list(ca.graph_substitute(list(expressions), [node], [ca.reshape(ca.vertcat(*entries), node.shape)]))


def margin(condition: ca.MX, moving: set[int]) -> ca.MX | None:
    """What is negative where a condition is true and continuous where its parts are; None of what is no condition."""
    op = condition.op()
    if op not in (*RELATIONS, *EQUALITIES, *LOGIC):
        return None
    if moving.isdisjoint(s.__hash__() for s in ca.symvar(condition)):
        return 1 - 2 * condition
    if op in RELATIONS:
        return condition.dep(0) - condition.dep(1)
    parts = [1 - 2 * (part != 0) if (own := margin(part, moving)) is None else own for part in _parts(condition)]
    if op == ca.OP_NOT:
        return -parts[0]
    if op in LOGIC:
        return ca.fmax(*parts) if op == ca.OP_AND else ca.fmin(*parts)
    return 1 - 2 * condition  # equality, which is refused where it is looked at


def _parts(condition: ca.MX) -> list[ca.MX]:
    return [condition.dep(i) for i in range(condition.n_dep())]
