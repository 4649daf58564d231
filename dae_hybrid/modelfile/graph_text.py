"""From CasADi expressions to text in the grammar of model files.

A node used several times becomes a definition, so that the text grows linearly with the graph. Reading the text makes
the same nodes in the same order.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import casadi as ca
import numpy as np

from dae_hybrid.errors import UnsupportedError
from dae_hybrid.modelfile.grammar import BINARY, FUNCTIONS, UNARY, quoted
from dae_hybrid.modelfile.limits import MAX_LENGTH
from dae_hybrid.statement.discontinuities import SMOOTH

#: characters of an operand, and depth of its tree, above which it becomes a definition
LONG, DEEP = 100, 16
#: entries of a constant that are written into an expression
SHORT = 9
#: precedence of text, as in Python
OR, AND, NOT, COMPARISON, SUM, PRODUCT, SIGN, POWER, ATOM = range(9)
#: operators between two texts: sign, precedence, and that which the left and the right text need without brackets
OPERATORS: dict[int, tuple[str, int, int, int]] = {
    ca.OP_ADD: ("+", SUM, SUM, PRODUCT), ca.OP_SUB: ("-", SUM, SUM, PRODUCT),
    ca.OP_MUL: ("*", PRODUCT, PRODUCT, SIGN), ca.OP_DIV: ("/", PRODUCT, PRODUCT, SIGN),
    ca.OP_POW: ("**", POWER, ATOM, SIGN), ca.OP_CONSTPOW: ("**", POWER, ATOM, SIGN),
    ca.OP_LT: ("<", COMPARISON, SUM, SUM), ca.OP_LE: ("<=", COMPARISON, SUM, SUM),
    ca.OP_EQ: ("==", COMPARISON, SUM, SUM), ca.OP_NE: ("!=", COMPARISON, SUM, SUM),
    ca.OP_AND: ("and", AND, AND, NOT), ca.OP_OR: ("or", OR, OR, AND),
}  # fmt: skip
#: functions of CasADi's nodes with all of their arguments, by operation
CALLS: dict[int, str] = {op: name for table in (UNARY, BINARY) for name, op in table.items()} | {
    ca.OP_DOT: "dot", ca.OP_TRANSPOSE: "transpose", ca.OP_DETERMINANT: "det", ca.OP_MMAX: "mmax", ca.OP_MMIN: "mmin",
    ca.OP_NORM1: "norm_1", ca.OP_NORMF: "norm_fro", ca.OP_NORMINF: "norm_inf", ca.OP_LOGSUMEXP: "logsumexp",
    ca.OP_BILIN: "bilin", ca.OP_RANK1: "rank1", ca.OP_HORZCAT: "horzcat", ca.OP_DIAGCAT: "diagcat",
}  # fmt: skip
_OPS = {getattr(ca, name): name.removeprefix("OP_").lower() for name in dir(ca) if name.startswith("OP_")}


class Text(NamedTuple):
    """Text of a node, with its precedence and the depth of its tree."""

    text: str
    level: int = ATOM
    depth: int = 0

    def within(self, level: int) -> str:
        """The text as an operand that needs this precedence."""
        return self.text if self.level >= level else f"({self.text})"


class Definitions:
    """Names for texts, in order."""

    def __init__(self, taken: Container[str]) -> None:
        self.by_name: dict[str, Any] = {}
        self._taken = taken
        self._count = 0

    def add(self, value: Any) -> Text:
        """Define a value and return its name."""
        while True:
            self._count += 1
            name = f"d{self._count}"
            if name not in self._taken:
                break
        self.by_name[name] = value
        return Text(name)


def elementwise(op: int, parts: Sequence[Text]) -> Text | None:
    """Text of an elementwise operation, None for others."""
    depth = 1 + max((part.depth for part in parts), default=0)
    if op in OPERATORS:
        sign, level, left, right = OPERATORS[op]
        return Text(f"{parts[0].within(left)} {sign} {parts[1].within(right)}", level, depth)
    if op == ca.OP_NEG:
        return Text(f"-{parts[0].within(SIGN)}", SIGN, depth)
    if op == ca.OP_SQ:
        return Text(f"{parts[0].within(ATOM)} ** 2", POWER, depth)
    if op == ca.OP_TWICE:
        return Text(f"2 * {parts[0].within(SIGN)}", PRODUCT, depth)
    if op == ca.OP_INV:
        return Text(f"1 / {parts[0].within(SIGN)}", PRODUCT, depth)
    if op == ca.OP_NOT:
        return Text(f"not {parts[0].within(NOT)}", NOT, depth)
    if op in CALLS:
        return Text(f"{CALLS[op]}({', '.join(part.text for part in parts)})", ATOM, depth)
    return None


def number(value: float) -> Text:
    """A number of an expression."""
    if not np.isfinite(value):
        raise UnsupportedError(f"A model with the constant {value!r} cannot be written to a file.")
    return Text(repr(float(value)), SIGN if np.signbit(value) else ATOM)


def indices(at: Sequence[int]) -> str:
    """A list of indices, as a range if it is a long regular one."""
    steps = np.diff(at)
    if len(at) > 3 and (steps == steps[0]).all() and steps[0] > 0:
        step = f", {steps[0]}" if steps[0] > 1 else ""
        return f"range({at[0]}, {at[-1] + 1}{step})"
    return f"[{', '.join(map(str, at))}]"


def pattern(sparsity: ca.Sparsity) -> str:
    """A sparsity pattern."""
    rows, columns = sparsity.shape
    if sparsity.is_dense():
        return f"pattern({rows}, {columns})"
    return f"pattern({rows}, {columns}, {indices(sparsity.row())}, {indices(sparsity.get_col())})"


class Functions:
    """Functions that expressions call, as tables of a model file.

    Parameters
    ----------
    known : mapping
        Names in the file of functions that it states elsewhere, by the name of the function.
    """

    def __init__(self, known: Mapping[str, str]) -> None:
        self.tables: dict[str, dict[str, Any]] = {}
        self._known = known
        self._keys: dict[int, str] = {}

    def key(self, function: ca.Function) -> str:
        """The name of a function in the file."""
        found = self._known.get(function.name()) or self._keys.get(function.__hash__())
        if found is not None:
            return found
        table = self._table(function)
        key = function.name()
        if key in FUNCTIONS or key == "range" or not key.isidentifier():
            key = f"f_{key}"
        numbered = (f"{key}_{count}" for count in itertools.count(2))
        taken = {*self.tables, *self._known.values()}
        key = next(name for name in (key, *itertools.islice(numbered, len(taken))) if name not in taken)
        self.tables[key] = ({} if key == function.name() else {"name": function.name()}) | table
        self._keys[function.__hash__()] = key
        return key

    def _table(self, function: ca.Function) -> dict[str, Any]:
        scalar = function.is_a("SXFunction")
        if not scalar and not function.is_a("MXFunction"):
            raise UnsupportedError(
                f"A model that calls {function.name()} cannot be written to a file: it is a {function.class_name()}, "
                "not an expression.",
                remedy="State the function by expressions, or keep the model in a Python module and name its function.",
            )
        symbols: list[Any] = function.sx_in() if scalar else function.mx_in()
        names = function.name_in(), function.name_out()
        outputs: list[Any] = []
        with suppress(RuntimeError):  # of a function that must not be inlined
            outputs = function.call(symbols, True, False)
        if not outputs or function.serialize() != ca.Function(function.name(), symbols, outputs, *names).serialize():
            raise UnsupportedError(
                f"A model that calls {function.name()} cannot be written to a file: the function has options, such as "
                "derivatives of its own.",
                remedy="Keep the model in a Python module and name its function.",
            )
        definitions, texts = self._scalar(function) if scalar else self._matrix(function, symbols, outputs)
        inputs: dict[str, Any] = {}
        for i, name in enumerate(function.name_in()):
            sparsity = function.sparsity_in(i)
            if not sparsity.nnz():
                raise UnsupportedError(f"The function {function.name()} has an empty input, which no file can state.")
            column = sparsity.is_dense() and sparsity.is_column()
            inputs[name] = sparsity.shape[0] if column else pattern(sparsity)
        found: dict[str, Any] = {"kind": "scalar"} if scalar else {}
        found["inputs"] = inputs
        if definitions:
            found["definitions"] = definitions
        return found | {"outputs": dict(zip(function.name_out(), texts, strict=True))}

    def _matrix(
        self, function: ca.Function, inputs: Sequence[ca.MX], outputs: Sequence[ca.MX]
    ) -> tuple[dict[str, Any], list[Any]]:
        leaves = {s.__hash__(): Text(quoted(n)) for s, n in zip(inputs, function.name_in(), strict=True)}
        graph = Graph(leaves, Definitions(function.name_in()), self, function.name())
        return graph.definitions.by_name, graph.write(outputs)

    def _scalar(self, function: ca.Function) -> tuple[dict[str, Any], list[Any]]:
        """Text of a function of scalar operations, from its instructions."""
        names = function.name_in()
        count = function.n_instructions()
        ops = [function.instruction_id(k) for k in range(count)]
        reads = [function.instruction_input(k) for k in range(count)]
        writes = [function.instruction_output(k) for k in range(count)]
        made: dict[int, int] = {}  # the instruction that wrote a place of work
        uses: Counter[int] = Counter()
        operands: list[list[int]] = []
        for k, op in enumerate(ops):
            places = [] if op == ca.OP_INPUT else reads[k][:1] if op == ca.OP_OUTPUT else reads[k]
            if op == ca.OP_CONST or op == ca.OP_INPUT:
                places = []
            operands.append([made[place] for place in dict.fromkeys(places)] if len(set(places)) < len(places)
                            else [made[place] for place in places])  # fmt: skip
            uses.update(operands[-1])
            if op != ca.OP_OUTPUT:
                made[writes[k][0]] = k
        definitions = Definitions(names)
        texts: dict[int, Text] = {}
        outputs: list[dict[int, str]] = [{} for _ in range(function.n_out())]
        for k, op in enumerate(ops):
            parts = [texts[i] for i in operands[k]]
            if op == ca.OP_INPUT:
                i, nonzero = reads[k]
                sparsity = function.sparsity_in(i)
                if sparsity.is_scalar(True):
                    texts[k] = Text(quoted(names[i]))
                elif sparsity.is_dense() and sparsity.is_column():
                    texts[k] = Text(f"{quoted(names[i])}[{nonzero}]")
                else:
                    texts[k] = Text(f"nz({quoted(names[i])}, [{nonzero}])")
                continue
            if op == ca.OP_OUTPUT:
                i, nonzero = writes[k]
                outputs[i][nonzero] = parts[0].text
                continue
            if op == ca.OP_CONST:
                texts[k] = number(function.instruction_constant(k))
                continue
            arguments = parts * 2 if len(parts) == 1 and (op in OPERATORS or op in BINARY.values()) else parts
            found = elementwise(op, arguments)
            if found is None:
                raise _unsupported(op, function.name())
            long = len(found.text) > LONG or found.depth > DEEP
            texts[k] = definitions.add(found.text) if uses[k] > 1 or long else found
        results = []
        for i, entries in enumerate(outputs):
            sparsity = function.sparsity_out(i)
            if sorted(entries) != list(range(sparsity.nnz())) or not entries:
                raise UnsupportedError(f"The function {function.name()} has an empty output, which no file can state.")
            listed = [entries[j] for j in range(len(entries))]
            text = listed[0] if len(listed) == 1 else f"[{', '.join(listed)}]"
            if not (sparsity.is_dense() and sparsity.is_column()):
                text = f"nz({text}, {indices(range(len(listed)))}, {pattern(sparsity)})"
            results.append(_checked(text, function.name()))
        return definitions.by_name, results


class Graph:
    """Writes expressions of MX.

    Parameters
    ----------
    leaves : mapping
        Texts of symbols and of expressions that have a name, by hash.
    definitions : Definitions
        Receives nodes that are used several times, and long ones.
    functions : Functions
        Receives the functions that are called.
    where : str
        Name of the model or function for error messages.
    """

    def __init__(self, leaves: Mapping[int, Text], definitions: Definitions, functions: Functions, where: str) -> None:
        self._texts: dict[int, Text] = dict(leaves)
        self._leaves = leaves
        self.definitions = definitions
        self._functions = functions
        self._where = where
        self._uses: Counter[int] = Counter()
        #: operation, shape and number of nonzeros of every node, in order
        self.operations: list[tuple[int, tuple[int, int], int]] = []

    def write(self, roots: Sequence[ca.MX]) -> list[Any]:
        """Values for the document: text, or a number for a scalar constant, a list for a vector of constants."""
        nodes = list(self._nodes(roots))
        for node in nodes:
            key = node.__hash__()
            found = self._node(node)
            if node.op() != ca.OP_CONST:
                self.operations.append((node.op(), node.shape, node.nnz()))
            long = (len(found.text) > LONG or found.depth > DEEP) and key not in self._roots
            if (self._uses[key] > 1 or long) and not _is_short(found):
                found = self.definitions.add(_checked(found.text, self._where))
            self._texts[key] = found
        return [self._root(root) for root in roots]

    def _root(self, root: ca.MX) -> Any:
        if _is_data(root):
            values = [float(value) for value in root.to_DM().nonzeros()]
            for value in values:
                number(value)
            return values[0] if len(values) == 1 else values
        return _checked(self._texts[root.__hash__()].text, self._where)

    def _nodes(self, roots: Sequence[ca.MX]) -> Iterator[ca.MX]:
        """Every node once, after its arguments. Counts the uses."""
        self._roots = {root.__hash__() for root in roots}
        seen = set(self._leaves)
        self._uses.update(root.__hash__() for root in roots)
        for root in roots:
            if root.__hash__() in seen or _is_data(root):
                continue
            seen.add(root.__hash__())
            stack = [(root, iter(self._arguments(root)))]
            while stack:
                node, rest = stack[-1]
                argument = next((a for a in rest if a.__hash__() not in seen), None)
                if argument is None:
                    stack.pop()
                    yield node
                else:
                    seen.add(argument.__hash__())
                    stack.append((argument, iter(self._arguments(argument))))

    def _arguments(self, node: ca.MX) -> list[ca.MX]:
        found = _operands(node)
        self._uses.update(a.__hash__() for a in found)
        return found

    # -- nodes --------------------------------------------------------------------------------------------

    def _node(self, node: ca.MX) -> Text:
        if node.is_symbolic():
            raise UnsupportedError(
                f"'{self._where}' cannot be written to a file: it uses the symbol {node.name()}, which is not declared."
            )
        if node.is_output():
            whole = self._texts[node.dep(0).__hash__()]
            single = node.dep(0).op() == ca.OP_CALL and node.dep(0).which_function().n_out() == 1
            return whole if single else Text(f"{whole.text}[{node.which_output()}]", ATOM, whole.depth)
        op = node.op()
        if op == ca.OP_CONST:
            return self._constant(node)
        parts = [self._texts[a.__hash__()] for a in _operands(node)]
        found = elementwise(op, parts)
        if found is None:
            method: Callable[[ca.MX, list[Text]], str | None] | None = getattr(self, f"_{_OPS.get(op, '')}", None)
            text = None if method is None else method(node, parts)
            if text is None:
                raise _unsupported(op, self._where)
            level = PRODUCT if op == ca.OP_MTIMES and not text.startswith("mac(") else ATOM
            found = Text(text, level, 1 + max((part.depth for part in parts), default=0))
        return found

    def _constant(self, node: ca.MX) -> Text:
        values, sparsity = node.to_DM(), node.sparsity()
        entries = [number(value).text for value in values.nonzeros()]
        if not entries:
            rows, columns = node.shape
            return Text(f"sparse(pattern({rows}, {columns}, [], []), [])")
        alike = len(set(entries)) == 1
        if sparsity.is_scalar(True):
            return number(float(values))
        if not sparsity.is_dense():
            return Text(f"sparse({pattern(sparsity)}, {entries[0] if alike else f'[{", ".join(entries)}]'})")
        if alike and len(entries) > 3:
            return Text(f"full({node.shape[0]}, {node.shape[1]}, {entries[0]})")
        full = values.full()
        if len(entries) > SHORT:
            return self.definitions.add(full.ravel().tolist() if node.is_column() else full.tolist())
        if node.is_column():
            return Text(f"[{', '.join(entries)}]")
        rows_text = (", ".join(number(value).text for value in row) for row in full)
        return Text(f"[{', '.join(f'[{row}]' for row in rows_text)}]")

    def _vertcat(self, node: ca.MX, parts: list[Text]) -> str:
        listed = ", ".join(part.text for part in parts)
        constant = all(node.dep(i).op() == ca.OP_CONST for i in range(node.n_dep()))
        plain = node.is_column() and not constant and not any(part.text.startswith("[") for part in parts)
        return f"[{listed}]" if plain else f"vertcat({listed})"

    def _mtimes(self, _: ca.MX, parts: list[Text]) -> str:
        if len(parts) == 2:
            return f"{parts[0].within(PRODUCT)} @ {parts[1].within(SIGN)}"
        return f"mac({parts[1].text}, {parts[2].text}, {parts[0].text})"

    def _lift(self, _: ca.MX, parts: list[Text]) -> str | None:
        return f"smooth({parts[0].text})" if len(parts) == 1 else None

    def _getnonzeros(self, node: ca.MX, parts: list[Text]) -> str | None:
        at, of = _places(node), node.dep(0)
        if at is None:
            return None
        within, (whole,) = of.sparsity(), parts
        if node.is_dense() and node.is_column() and within.is_dense():
            steps = set(np.diff(at).tolist()) or {1}
            if of.is_column() and len(steps) == 1 and min(steps) > 0:
                if len(at) == 1:
                    return f"{whole.within(ATOM)}[{at[0]}]"
                step = min(steps)
                return f"{whole.within(ATOM)}[{at[0]}:{at[-1] + 1}{f':{step}' if step > 1 else ''}]"
            if len(at) == 1:
                column, row = divmod(at[0], of.shape[0])
                return f"{whole.within(ATOM)}[{row}, {column}]"
        shape = "" if node.is_dense() and node.is_column() else f", {pattern(node.sparsity())}"
        return f"nz({whole.text}, {indices(at)}{shape})"

    def _setnonzeros(self, node: ca.MX, parts: list[Text]) -> str | None:
        at = _places(node)
        return None if at is None else f"set_nz({parts[0].text}, {indices(at)}, {parts[1].text})"

    def _addnonzeros(self, node: ca.MX, parts: list[Text]) -> str | None:
        at = _places(node)
        return None if at is None else f"add_nz({parts[0].text}, {indices(at)}, {parts[1].text})"

    def _reshape(self, node: ca.MX, parts: list[Text]) -> str:
        return f"reshape({parts[0].text}, {node.shape[0]}, {node.shape[1]})"

    def _horzrepmat(self, node: ca.MX, parts: list[Text]) -> str:
        return f"repmat({parts[0].text}, 1, {node.shape[1] // node.dep(0).shape[1]})"

    def _project(self, node: ca.MX, parts: list[Text]) -> str:
        return f"project({parts[0].text}, {pattern(node.sparsity())})"

    def _sparsity_cast(self, node: ca.MX, parts: list[Text]) -> str:
        return f"sparsity_cast({parts[0].text}, {pattern(node.sparsity())})"

    def _vertsplit(self, node: ca.MX, parts: list[Text]) -> str:
        return f"vertsplit({parts[0].text}, {indices(_offsets(node, 0))})"

    def _horzsplit(self, node: ca.MX, parts: list[Text]) -> str:
        return f"horzsplit({parts[0].text}, {indices(_offsets(node, 1))})"

    def _call(self, node: ca.MX, parts: list[Text]) -> str:
        key = self._functions.key(node.which_function())
        return f"{quoted(key)}({', '.join(part.text for part in parts)})"

    def _solve(self, node: ca.MX, parts: list[Text]) -> str | None:
        right, matrix = node.dep(0), node.dep(1)
        symbols = ca.symvar(node)
        same = [ca.Function("solve", symbols, [e]).serialize() for e in (node, ca.solve(matrix, right))]
        return f"solve({parts[1].text}, {parts[0].text})" if same[0] == same[1] else None


def _is_data(root: ca.MX) -> bool:
    """Whether an expression is a number or a vector of numbers, which the document states as such."""
    return bool(root.op() == ca.OP_CONST and root.is_dense() and root.is_column() and root.numel())


def _is_short(found: Text) -> bool:
    """Whether a text may be repeated: a name, a number, an output of a definition."""
    return found.depth == 0 and len(found.text) <= 24


def _operands(node: ca.MX) -> list[ca.MX]:
    """Arguments of a node that its text states."""
    found = [node.dep(i) for i in range(node.n_dep())]
    if node.op() == SMOOTH and found[0].__hash__() == found[1].__hash__():
        return found[:1]
    return found[1:] if node.op() == ca.OP_MTIMES and _is_plain_product(*found) else found


def _is_plain_product(z: ca.MX, x: ca.MX, y: ca.MX) -> bool:
    """Whether ``z + x y`` has the z of a plain product: zeros in the pattern of the product."""
    if z.op() != ca.OP_CONST or any(z.to_DM().nonzeros()):
        return False
    product = ca.mtimes(ca.MX.sym("x", x.sparsity()), ca.MX.sym("y", y.sparsity()))
    return bool(product.sparsity() == z.sparsity())


def _places(node: ca.MX) -> list[int] | None:
    """Indices of the nonzeros that a node reads or writes; None if one of them is none."""
    info: dict[str, Any] = node.info()
    if "nz" in info:
        found = list(info["nz"])
    elif "slice" in info:
        found = list(_range(info["slice"]))
    else:
        found = [outer + inner for outer in _range(info["outer"]) for inner in _range(info["inner"])]
    return None if min(found, default=-1) < 0 else found


def _offsets(node: ca.MX, axis: int) -> list[int]:
    """Rows or columns where the parts of a matrix begin, and its size."""
    parts = node.info()["output"]
    return [0, *np.cumsum([parts.size_out(i)[axis] for i in range(parts.n_out())]).tolist()]


def _range(part: Mapping[str, int]) -> Iterable[int]:
    return range(part["start"], part["stop"], part["step"])


def _checked(text: str, where: str) -> str:
    if len(text) > MAX_LENGTH:
        raise UnsupportedError(f"'{where}' cannot be written to a file: an expression has {len(text)} characters.")
    return text


def _unsupported(op: int, where: str) -> UnsupportedError:
    return UnsupportedError(
        f"'{where}' cannot be written to a file: the grammar has no operation {_OPS.get(op, op)}.",
        remedy="State the model without it, or keep the model in a Python module and name its function.",
    )
