"""The grammar of expressions in model files: arithmetic text to CasADi expressions.

The text is parsed by Python's `ast` and evaluated node by node by the methods of `Evaluator`; every other kind of node
is refused. Nothing is executed.
"""

from __future__ import annotations

import ast
import keyword
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import casadi as ca
import numpy as np

from dae_hybrid.modelfile.limits import MAX_DEPTH, MAX_ENTRIES, MAX_LENGTH, MAX_NODES, MAX_WORK, SCALAR_WORK
from dae_hybrid.statement.discontinuities import smooth

#: elementwise functions of one argument, by name
UNARY: dict[str, int] = {
    "abs": ca.OP_FABS, "acos": ca.OP_ACOS, "acosh": ca.OP_ACOSH, "asin": ca.OP_ASIN, "asinh": ca.OP_ASINH,
    "atan": ca.OP_ATAN, "atanh": ca.OP_ATANH, "ceil": ca.OP_CEIL, "cos": ca.OP_COS, "cosh": ca.OP_COSH,
    "erf": ca.OP_ERF, "erfinv": ca.OP_ERFINV, "exp": ca.OP_EXP, "expm1": ca.OP_EXPM1, "floor": ca.OP_FLOOR,
    "log": ca.OP_LOG, "log1p": ca.OP_LOG1P, "sign": ca.OP_SIGN, "sin": ca.OP_SIN, "sinh": ca.OP_SINH,
    "sqrt": ca.OP_SQRT, "tan": ca.OP_TAN, "tanh": ca.OP_TANH,
}  # fmt: skip
#: elementwise functions of two arguments
BINARY: dict[str, int] = {
    "atan2": ca.OP_ATAN2, "copysign": ca.OP_COPYSIGN, "fmod": ca.OP_FMOD, "hypot": ca.OP_HYPOT,
    "if_else_zero": ca.OP_IF_ELSE_ZERO, "max": ca.OP_FMAX, "min": ca.OP_FMIN, "remainder": ca.OP_REMAINDER,
}  # fmt: skip
#: functions of one vector or matrix
WHOLE: dict[str, Callable[[Any], Any]] = {
    "det": ca.det, "inv": ca.inv, "logsumexp": ca.logsumexp, "mmax": ca.mmax, "mmin": ca.mmin, "norm_1": ca.norm_1,
    "norm_2": ca.norm_2, "norm_fro": ca.norm_fro, "norm_inf": ca.norm_inf, "smooth": smooth, "sum": ca.sum1,
    "transpose": ca.transpose,
}  # fmt: skip
CONSTANTS = {"pi": math.pi}
#: name of a row of measured data in the value of a functional at many times
DATA = "data"
OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b, ast.Pow: lambda a, b: a**b,
    ast.Lt: ca.lt, ast.LtE: ca.le, ast.Gt: ca.gt, ast.GtE: ca.ge, ast.Eq: ca.eq, ast.NotEq: ca.ne,
    ast.And: ca.logic_and, ast.Or: ca.logic_or,
}  # fmt: skip
#: what is refused, in words; other nodes by the name of their class
REFUSED: dict[type[ast.AST], str] = {
    ast.Attribute: "access to an attribute", ast.Lambda: "a lambda", ast.NamedExpr: "an assignment",
    ast.Starred: "a starred argument", ast.Tuple: "a tuple", ast.ListComp: "a comprehension",
    ast.GeneratorExp: "a comprehension", ast.Set: "a set", ast.Dict: "a mapping", ast.Await: "await",
    ast.Yield: "yield", ast.YieldFrom: "yield", ast.Slice: "a slice outside of an index",
}  # fmt: skip
#: characters outside of quoted names
_FOREIGN = re.compile(r"[^A-Za-z0-9_ .,+\-*/()\[\]<>=!@:\t\r\n]")
#: a letter right after a number, such as in 1if, which Python reads with a warning
_JOINED = re.compile(r"(?<![\w.])(?>(?:\d[\d.]*|\.\d+)(?:[eE][+-]?\d+)?)[A-Za-z_]")
_QUOTED = re.compile(r"`((?:[^`\n]|``)+)`")
#: letter of the placeholders that stand for quoted names; it cannot occur outside of quotes
_MARK = "\u0298"


class GrammarError(Exception):
    """A text is not an expression; `offset` is the index of the character at fault."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset


class Pattern:
    """A sparsity pattern, the value of ``pattern(...)``."""

    def __init__(self, sparsity: ca.Sparsity) -> None:
        self.sparsity = sparsity


def is_plain(name: str) -> bool:
    """Whether a name needs no backticks."""
    is_identifier = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None
    return is_identifier and not keyword.iskeyword(name) and name not in (*CONSTANTS, DATA)


def quoted(name: str) -> str:
    """The name as it is written in an expression: in backticks if it is not an identifier.

    Examples
    --------
    >>> from dae_hybrid.modelfile.grammar import quoted
    >>> quoted("x"), quoted("z*"), quoted("pi")
    ('x', '`z*`', '`pi`')
    """
    return name if is_plain(name) else f"`{name.replace('`', '``')}`"


class Expression:
    """Checked text of an expression.

    Raises
    ------
    GrammarError
        The text is too long or no expression of Python.
    """

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise GrammarError(f"the expression has {len(text)} characters, more than {MAX_LENGTH}", 0)
        self.names: dict[str, str] = {}  # quoted names by placeholder
        self.indent = len(text) - len(text.lstrip())
        self.line = _QUOTED.sub(self._placeholder, text)
        foreign = _FOREIGN.search(self.line.replace(_MARK, "_") if _MARK not in text else self.line)
        if foreign is not None:
            hint = "; a name that is not an identifier is written in backticks"
            raise GrammarError(f"the character {foreign[0]!r} has no meaning{hint}", foreign.start())
        self.line = re.sub(r"\s", " ", self.line).strip()
        if not self.line:
            raise GrammarError("the expression is empty", 0)
        joined = _JOINED.search(self.line)
        if joined is not None:
            raise GrammarError("a letter follows a number", self._index(joined.end() - 1))
        try:
            self.body = ast.parse(self.line, mode="eval").body
        except SyntaxError as reason:
            offset = self._index(reason.offset - 1 if reason.offset else len(self.line))  # 0: at the end
            raise GrammarError(f"not an expression: {reason.msg.split(';')[0]}", offset) from None
        except (ValueError, MemoryError, RecursionError) as reason:
            said = "it is nested too deeply" if isinstance(reason, RecursionError | MemoryError) else str(reason)
            raise GrammarError(f"not an expression: {said}", self.indent) from None
        count = sum(1 for _ in ast.walk(self.body))
        if count > MAX_NODES:
            raise GrammarError(f"the expression has {count} nodes, more than {MAX_NODES}", self.indent)

    def _placeholder(self, match: re.Match[str]) -> str:
        name = match[1].replace("``", "`")
        known = next((mark for mark, own in self.names.items() if own == name), None)
        mark = known or f"{_MARK}{len(self.names)}"
        if known is not None or len(mark) <= len(match[0]):
            mark = mark.ljust(len(match[0]), "_")
        self.names[mark] = name
        return mark

    def _index(self, column: int) -> int:
        return min(column, len(self.line)) + self.indent

    def place(self, node: ast.AST) -> int:
        """Index of the first character of a node in the text."""
        column = getattr(node, "col_offset", 0)
        return self._index(len(self.line.encode()[:column].decode(errors="ignore")))

    def name(self, identifier: str) -> tuple[str, bool]:
        """The name that an identifier stands for, and whether it is in backticks."""
        return (self.names[identifier], True) if identifier in self.names else (identifier, False)

    def used(self) -> Iterator[str]:
        """Names of symbols and definitions that occur."""
        for node in ast.walk(self.body):
            if isinstance(node, ast.Name):
                yield self.name(node.id)[0]


class Evaluator:
    """Evaluates expressions.

    Parameters
    ----------
    kind : {casadi.MX, casadi.SX}
        Type of the values.
    symbols : mapping
        Values by name; a list stands for the outputs of a function.
    functions : mapping
        Functions of the file by name.
    sides : mapping, optional
        `der`, `post`, `pre` and `active`, which take names.
    """

    def __init__(
        self,
        kind: Any,
        symbols: Mapping[str, Any],
        functions: Mapping[str, ca.Function],
        sides: Mapping[str, Callable[[Any], Any]] | None = None,
    ) -> None:
        self.kind = kind
        self.symbols = symbols
        self.functions = functions
        self.sides = dict(sides or {})
        self.local: dict[str, Any] = {}  # names with a meaning in one place of the file
        self.work = 0
        self._expression: Expression

    def __call__(self, expression: Expression) -> Any:
        """Value of an expression.

        Raises
        ------
        GrammarError
            It contains an unknown name, operands whose sizes do not match, or a node that the grammar lacks.
        """
        self._expression = expression
        return self._value(expression.body, MAX_DEPTH)

    # -- the tree -----------------------------------------------------------------------------------------

    def _refuse(self, node: ast.AST, message: str) -> NoReturn:
        raise GrammarError(message, self._expression.place(node))

    def _value(self, node: ast.AST, depth: int) -> Any:
        if depth == 0:
            self._refuse(node, f"the expression is nested more than {MAX_DEPTH} deep; split it into definitions")
        method = getattr(self, f"_{type(node).__name__.lower()}", None) if type(node) in NODES else None
        if method is None:
            self._refuse(node, f"{REFUSED.get(type(node), type(node).__name__)} has no meaning in an expression")
        try:
            found = method(node, depth - 1)
        except (RuntimeError, NotImplementedError, OverflowError) as reason:
            said = str(reason).strip().splitlines()
            self._refuse(node, f"cannot be evaluated: {said[-1] if said else type(reason).__name__}")
        return self._checked(node, found)

    def _checked(self, node: ast.AST, found: Any) -> Any:
        if not isinstance(found, ca.MX | ca.SX) or isinstance(node, ast.Name):
            return found
        self._spend(node, max(found.nnz(), *found.shape), found.nnz() + found.shape[1])
        if isinstance(found, ca.MX) and found.op() == ca.OP_CONST and not np.isfinite(found.to_DM().nonzeros()).all():
            self._refuse(node, "the value is not finite")
        return found

    def _spend(self, node: ast.AST, entries: int, work: int | None = None) -> None:
        if entries > MAX_ENTRIES:
            self._refuse(node, f"a matrix with {entries} entries is larger than the limit of {MAX_ENTRIES}")
        nodes = SCALAR_WORK if self.kind is ca.SX else 1  # every entry of SX is a node
        self.work += nodes * (entries if work is None else work)
        if self.work > MAX_WORK:
            self._refuse(node, f"the intermediate results of the file have more than {MAX_WORK} entries")

    def _single(self, node: ast.AST, depth: int) -> Any:
        """Value of a node that must be one vector or matrix."""
        found = self._value(node, depth)
        if not isinstance(found, ca.MX | ca.SX):
            self._refuse(node, "expected a number, a vector or a matrix")
        return found

    # -- leaves -------------------------------------------------------------------------------------------

    def _constant(self, node: ast.Constant, depth: int) -> Any:  # noqa: ARG002
        return self.kind(self._number(node))

    def _number(self, node: ast.AST) -> float:
        """Value of a literal, with its sign."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            return (-1 if isinstance(node.op, ast.USub) else 1) * self._number(node.operand)
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse(node, f"expected a number, got {ast.unparse(node)[:40]}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            self._refuse(node, "the number is too large")
        return number

    def _name(self, node: ast.Name, depth: int) -> Any:  # noqa: ARG002
        name, in_backticks = self._expression.name(node.id)
        if not in_backticks and name in self.local:
            return self.kind(self.local[name])
        if not in_backticks and name in CONSTANTS:
            if name in self.symbols:
                self._refuse(node, f"'{name}' is ambiguous: write `{name}` for the name of the model")
            return self.kind(CONSTANTS[name])
        if name not in self.symbols:
            known = ", ".join(list(self.symbols)[:20])
            self._refuse(node, f"'{name}' is not declared; known are {known}" if known else f"'{name}' is not declared")
        return self.symbols[name]

    def _list(self, node: ast.List, depth: int) -> Any:
        if not node.elts:
            self._refuse(node, "a list needs an entry")
        if isinstance(node.elts[0], ast.List):
            rows = [row.elts if isinstance(row, ast.List) else [row] for row in node.elts]
            if len({len(row) for row in rows}) > 1 or not rows[0]:
                self._refuse(node, "the rows of a matrix must have the same length")
            if all(_is_literal(entry) for row in rows for entry in row):
                return self.kind(ca.DM([[self._number(entry) for entry in row] for row in rows]))
            parts = [ca.horzcat(*(self._single(entry, depth) for entry in row)) for row in rows]
        elif all(_is_literal(entry) for entry in node.elts):
            return self.kind(ca.DM([self._number(entry) for entry in node.elts]))
        else:
            parts = [self._single(entry, depth) for entry in node.elts]
        return self._stacked(node, ca.vertcat, parts)

    def _stacked(self, node: ast.AST, how: Callable[..., Any], parts: Sequence[Any]) -> Any:
        same = {"vertcat": 1, "horzcat": 0}.get(how.__name__)
        if same is not None and len({part.shape[same] for part in parts}) > 1:
            shapes = ", ".join(_shape(part) for part in parts[:6])
            self._refuse(node, f"parts of shapes {shapes} cannot be joined")
        self._spend(node, sum(p.nnz() for p in parts))
        return how(*parts)

    # -- operators ----------------------------------------------------------------------------------------

    def _unaryop(self, node: ast.UnaryOp, depth: int) -> Any:
        if _is_literal(node):
            return self.kind(self._number(node))
        value = self._single(node.operand, depth)
        if isinstance(node.op, ast.Invert):
            self._refuse(node, "this operator has no meaning in an expression")
        if isinstance(node.op, ast.Not):
            return ca.logic_not(value)
        return value if isinstance(node.op, ast.UAdd) else -value

    def _binop(self, node: ast.BinOp, depth: int) -> Any:
        left, right = self._single(node.left, depth), self._single(node.right, depth)
        if isinstance(node.op, ast.MatMult) and self.kind is ca.MX:
            return self._product(node, left, right)
        return self._combined(node, node.op, left, right)

    def _combined(self, node: ast.AST, op: ast.AST, left: Any, right: Any) -> Any:
        operator = OPERATORS.get(type(op))
        if operator is None:
            self._refuse(node, f"the operator {type(op).__name__} has no meaning in an expression")
        self._match(node, left, right)
        keeps_zeros = isinstance(op, ast.Mult) or (isinstance(op, ast.Add | ast.Sub) and left.shape == right.shape)
        if not keeps_zeros:
            self._fill(node, left, right)
        return operator(left, right)

    def _fill(self, node: ast.AST, *operands: Any) -> None:
        """Spend the entries of an elementwise result that may have no zeros, before it is made."""
        self._spend(node, max(operand.numel() for operand in operands), 0)

    def _match(self, node: ast.AST, left: Any, right: Any) -> None:
        if left.shape != right.shape and (1, 1) not in (left.shape, right.shape):
            self._refuse(node, f"operands of shapes {_shape(left)} and {_shape(right)} do not match")

    def _product(self, node: ast.AST, left: Any, right: Any) -> Any:
        if left.shape[1] != right.shape[0] and (1, 1) not in (left.shape, right.shape):
            self._refuse(node, f"matrices of shapes {_shape(left)} and {_shape(right)} cannot be multiplied")
        if (1, 1) not in (left.shape, right.shape):
            self._spend_product(node, left, right)
        return ca.mtimes(left, right)

    def _spend_product(self, node: ast.AST, left: Any, right: Any) -> None:
        """Spend the entries and the operations of a product of matrices, before it is made."""
        in_columns = np.diff(left.sparsity().colind())
        in_rows = np.bincount(right.sparsity().row(), minlength=right.shape[0])
        operations = int(in_columns @ in_rows)
        self._spend(node, min(operations, left.shape[0] * right.shape[1]), operations)

    def _compare(self, node: ast.Compare, depth: int) -> Any:
        if len(node.ops) > 1:
            self._refuse(node, "a chain of comparisons has no meaning; join two of them by 'and'")
        return self._combined(
            node, node.ops[0], self._single(node.left, depth), self._single(node.comparators[0], depth)
        )

    def _boolop(self, node: ast.BoolOp, depth: int) -> Any:
        parts = [self._single(part, depth) for part in node.values]
        found = parts[0]
        for part in parts[1:]:
            found = self._combined(node, node.op, found, part)
        return found

    def _ifexp(self, node: ast.IfExp, depth: int) -> Any:
        return self._where(node, [self._single(part, depth) for part in (node.test, node.body, node.orelse)])

    def _where(self, node: ast.AST, parts: Sequence[Any]) -> Any:
        if parts[0].shape != (1, 1):
            self._refuse(node, f"a condition must be scalar, not {_shape(parts[0])}")
        self._match(node, parts[1], parts[2])
        self._fill(node, *parts)
        return ca.if_else(*parts)

    # -- indices ------------------------------------------------------------------------------------------

    def _subscript(self, node: ast.Subscript, depth: int) -> Any:
        value = self._value(node.value, depth)
        if isinstance(value, list):
            return value[self._index(node.slice, len(value))]
        if not isinstance(value, ca.MX | ca.SX):
            self._refuse(node, "an index needs a vector or a matrix")
        if isinstance(node.slice, ast.Tuple) and len(node.slice.elts) == 2:
            sizes = value.shape
            return value[tuple(self._part(part, n) for part, n in zip(node.slice.elts, sizes, strict=True))]
        if 1 not in value.shape:
            self._refuse(node, f"a matrix of shape {_shape(value)} needs two indices")
        return value[self._part(node.slice, value.numel())]

    def _part(self, node: ast.AST, size: int) -> Any:
        if not isinstance(node, ast.Slice):
            return self._index(node, size)
        given = [None if part is None else self._whole(part) for part in (node.lower, node.upper, node.step)]
        if given[2] is not None and given[2] < 1:
            self._refuse(node, "the step of a slice must be positive")
        found = slice(*slice(*given).indices(size))
        if found.start >= found.stop:
            self._refuse(node, f"the slice is empty; the size is {size}")
        return found

    def _whole(self, node: ast.AST) -> int:
        number = self._number(node)
        if not number.is_integer():
            self._refuse(node, f"expected an integer, got {number!r}")
        return int(number)

    def _index(self, node: ast.AST, size: int) -> int:
        index = self._whole(node)
        if not -size <= index < size:
            self._refuse(node, f"index {index} is outside of the size {size}")
        return index % size

    def _indices(self, node: ast.AST, size: int) -> list[int]:
        """A list of integers, or ``range(start, stop)`` or ``range(start, stop, step)``."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
            bounds = [self._whole(part) for part in node.args]
            if len(bounds) not in (2, 3) or node.keywords or not 0 <= bounds[0] < bounds[1] <= size or bounds[-1] < 1:
                self._refuse(node, f"expected range(start, stop) or range(start, stop, step) within {size}")
            return list(range(*bounds))
        if not isinstance(node, ast.List):
            self._refuse(node, "expected a list of integers or a range")
        return [self._index(part, size) for part in node.elts]

    # -- calls --------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call, depth: int) -> Any:
        if not isinstance(node.func, ast.Name):
            self._refuse(node, "only a function of the grammar or of the file can be called")
        if node.keywords:
            self._refuse(node.keywords[0], "arguments have no names in an expression")
        name, in_backticks = self._expression.name(node.func.id)
        starred = next((part for part in node.args if isinstance(part, ast.Starred)), None)
        if starred is not None:
            self._refuse(starred, "a starred argument has no meaning in an expression")
        if name in self.functions:
            return self._called(node, self.functions[name], [self._single(part, depth) for part in node.args])
        if in_backticks or name not in FUNCTIONS:
            self._refuse(node, f"there is no function '{name}'")
        if self.kind is ca.SX and name not in SCALAR:
            self._refuse(node, f"{name}() has no meaning in a function of kind scalar")
        count = FUNCTIONS[name]
        if len(node.args) not in count:
            wanted = "1 or more" if len(count) > 2 else " or ".join(map(str, count))
            self._refuse(node, f"{name}() takes {wanted} argument{'' if wanted == '1' else 's'}, got {len(node.args)}")
        if name in SIDES:
            return self._side(node, name)
        special = getattr(self, f"_call_{name}", None)
        if special is not None:
            return special(node, depth)
        parts = [self._single(part, depth) for part in node.args]
        if name in UNARY or name in BINARY or name == "inv":
            self._fill(node, *parts)
        if name in UNARY:
            return self.kind.unary(UNARY[name], *parts)
        if name in BINARY:
            self._match(node, *parts)
            return self.kind.binary(BINARY[name], *parts)
        if name in ("det", "inv") and parts[0].shape[0] != parts[0].shape[1]:
            self._refuse(node, f"{name}() needs a square matrix, got {_shape(parts[0])}")
        if name in ("norm_2", "sum", "logsumexp") and not parts[0].is_column():
            self._refuse(node, f"{name}() needs a vector, got {_shape(parts[0])}")
        return WHOLE[name](*parts)

    def _called(self, node: ast.Call, function: ca.Function, parts: Sequence[Any]) -> Any:
        if len(parts) != function.n_in():
            self._refuse(node, f"the function takes {function.n_in()} arguments, got {len(parts)}")
        for i, part in enumerate(parts):
            if part.shape != function.size_in(i):
                wanted = "x".join(map(str, function.size_in(i)))
                self._refuse(node.args[i], f"the argument has shape {_shape(part)}, expected {wanted}")
        self._spend(node, sum(function.numel_out(i) for i in range(function.n_out())))
        found = function.call(list(parts), False, self.kind is ca.MX)
        return found[0] if len(found) == 1 else list(found)

    def _side(self, node: ast.Call, name: str) -> Any:
        side, (argument,) = self.sides.get(name), node.args
        if side is None:
            self._refuse(node, f"{name}() has no meaning in a function")
        inner, may_be_rate = "", name in ("post", "pre")
        if may_be_rate and isinstance(argument, ast.Call) and _is_call(argument, "der") and len(argument.args) == 1:
            inner, argument = "der", argument.args[0]
        if not isinstance(argument, ast.Name):
            what = "mode" if name == "active" else "variable"
            self._refuse(node, f"{name}() takes the name of a {what}{', or der() of it' * may_be_rate}")
        variable = self._expression.name(argument.id)[0]
        try:
            return side(self.sides["der"](variable) if inner else variable)
        except ValueError as reason:
            self._refuse(node, getattr(reason, "message", str(reason)))

    def _call_where(self, node: ast.Call, depth: int) -> Any:
        return self._where(node, [self._single(part, depth) for part in node.args])

    def _call_dot(self, node: ast.Call, depth: int) -> Any:
        left, right = (self._single(part, depth) for part in node.args)
        if left.shape != right.shape:
            self._refuse(node, f"dot() of shapes {_shape(left)} and {_shape(right)}")
        return ca.dot(left, right)

    def _call_solve(self, node: ast.Call, depth: int) -> Any:
        matrix, right = (self._single(part, depth) for part in node.args)
        if matrix.shape[0] != matrix.shape[1] or matrix.shape[0] != right.shape[0]:
            self._refuse(node, f"solve() of shapes {_shape(matrix)} and {_shape(right)}")
        self._fill(node, right)
        return ca.solve(matrix, right)

    def _call_vertcat(self, node: ast.Call, depth: int) -> Any:
        return self._stacked(node, ca.vertcat, [self._single(part, depth) for part in node.args])

    def _call_horzcat(self, node: ast.Call, depth: int) -> Any:
        return self._stacked(node, ca.horzcat, [self._single(part, depth) for part in node.args])

    def _call_diagcat(self, node: ast.Call, depth: int) -> Any:
        return self._stacked(node, ca.diagcat, [self._single(part, depth) for part in node.args])

    def _call_mac(self, node: ast.Call, depth: int) -> Any:
        left, right, added = (self._single(part, depth) for part in node.args)
        if left.shape[1] != right.shape[0] or added.shape != (left.shape[0], right.shape[1]):
            self._refuse(node, f"mac() of shapes {_shape(left)}, {_shape(right)} and {_shape(added)}")
        self._spend_product(node, left, right)
        return ca.mac(left, right, added)

    def _call_bilin(self, node: ast.Call, depth: int) -> Any:
        matrix, left, right = (self._single(part, depth) for part in node.args)
        if left.shape != (matrix.shape[0], 1) or right.shape != (matrix.shape[1], 1):
            self._refuse(node, f"bilin() of shapes {_shape(matrix)}, {_shape(left)} and {_shape(right)}")
        return ca.bilin(matrix, left, right)

    def _call_rank1(self, node: ast.Call, depth: int) -> Any:
        matrix, factor, left, right = (self._single(part, depth) for part in node.args)
        if (factor.shape, left.shape, right.shape) != ((1, 1), (matrix.shape[0], 1), (matrix.shape[1], 1)):
            self._refuse(node, f"rank1() of shapes {_shape(matrix)}, {_shape(left)} and {_shape(right)}")
        return ca.rank1(matrix, factor, left, right)

    def _call_reshape(self, node: ast.Call, depth: int) -> Any:
        value, (rows, columns) = self._single(node.args[0], depth), self._shape(node.args[1:])
        if rows * columns != value.numel():
            self._refuse(node, f"{_shape(value)} cannot be reshaped to {rows}x{columns}")
        return ca.reshape(value, rows, columns)

    def _call_repmat(self, node: ast.Call, depth: int) -> Any:
        value, (rows, columns) = self._single(node.args[0], depth), self._shape(node.args[1:])
        self._spend(node, max(value.nnz() * rows * columns, value.shape[0] * rows, value.shape[1] * columns))
        return ca.repmat(value, rows, columns)

    def _shape(self, nodes: Sequence[ast.AST]) -> tuple[int, int]:
        rows, columns = (self._whole(part) for part in nodes)
        if rows < 1 or columns < 1:
            self._refuse(nodes[0], "a matrix needs one row and one column or more")
        self._spend(nodes[0], max(rows, columns), 0)
        return rows, columns

    def _call_full(self, node: ast.Call, depth: int) -> Any:  # noqa: ARG002
        rows, columns = self._shape(node.args[:2])
        self._spend(node, rows * columns)
        return self.kind(ca.DM.ones(rows, columns) * self._number(node.args[2]))

    # -- parts of matrices --------------------------------------------------------------------------------

    def _call_vertsplit(self, node: ast.Call, depth: int) -> Any:
        value = self._single(node.args[0], depth)
        return list(ca.vertsplit(value, self._offsets(node.args[1], value.shape[0])))

    def _call_horzsplit(self, node: ast.Call, depth: int) -> Any:
        value = self._single(node.args[0], depth)
        return list(ca.horzsplit(value, self._offsets(node.args[1], value.shape[1])))

    def _offsets(self, node: ast.AST, size: int) -> list[int]:
        found = self._indices(node, size + 1)
        if len(found) < 2 or found[0] != 0 or found[-1] != size or sorted(found) != found:
            self._refuse(node, f"expected offsets from 0 to {size} that do not decrease")
        return found

    def _call_pattern(self, node: ast.Call, depth: int) -> Pattern:  # noqa: ARG002
        rows, columns = self._shape(node.args[:2])
        if len(node.args) == 2:
            self._spend(node, rows * columns, rows * columns)
            return Pattern(ca.Sparsity.dense(rows, columns))
        at = [self._indices(part, size) for part, size in zip(node.args[2:], (rows, columns), strict=True)]
        places = list(zip(at[1], at[0], strict=False))
        if len(at[0]) != len(at[1]) or sorted(set(places)) != places:
            self._refuse(node, "expected rows and columns of distinct entries, column by column")
        return Pattern(ca.Sparsity.triplet(rows, columns, *at))

    def _pattern(self, node: ast.AST) -> ca.Sparsity:
        if not isinstance(node, ast.Call) or not _is_call(node, "pattern"):
            self._refuse(node, "expected pattern(rows, columns) or pattern(rows, columns, [rows], [columns])")
        found = self._value(node, 1)
        assert isinstance(found, Pattern)
        return found.sparsity

    def _call_sparse(self, node: ast.Call, depth: int) -> Any:  # noqa: ARG002
        pattern, values = self._pattern(node.args[0]), node.args[1]
        if not isinstance(values, ast.List):
            return self.kind(ca.DM(pattern, self._number(values)))
        if len(values.elts) != pattern.nnz():
            self._refuse(values, f"expected {pattern.nnz()} values, got {len(values.elts)}")
        return self.kind(ca.DM(pattern, [self._number(part) for part in values.elts]))

    def _call_project(self, node: ast.Call, depth: int) -> Any:
        value, pattern = self._single(node.args[0], depth), self._pattern(node.args[1])
        if pattern.shape != value.shape:
            self._refuse(node, f"the pattern has shape {pattern.dim()}, expected {_shape(value)}")
        return ca.project(value, pattern)

    def _call_sparsity_cast(self, node: ast.Call, depth: int) -> Any:
        value, pattern = self._single(node.args[0], depth), self._pattern(node.args[1])
        if pattern.nnz() != value.nnz():
            self._refuse(node, f"the pattern has {pattern.nnz()} nonzeros, expected {value.nnz()}")
        return ca.sparsity_cast(value, pattern)

    def _call_nz(self, node: ast.Call, depth: int) -> Any:
        value = self._single(node.args[0], depth)
        at = self._indices(node.args[1], value.nnz())
        if not at:
            self._refuse(node, "nz() needs an index")
        pattern = self._pattern(node.args[2]) if len(node.args) == 3 else ca.Sparsity.dense(len(at), 1)
        if pattern.nnz() != len(at):
            self._refuse(node, f"the pattern has {pattern.nnz()} nonzeros, expected {len(at)}")
        # CasADi takes a scalar for a row, and would transpose the pattern
        return self.kind(pattern, value) if value.shape == (1, 1) else value.get_nz(False, ca.DM(pattern, at))

    def _call_set_nz(self, node: ast.Call, depth: int) -> Any:
        value, at, given = self._entries(node, depth)
        found = self.kind(value)
        found.set_nz(given, False, at)
        return found

    def _call_add_nz(self, node: ast.Call, depth: int) -> Any:
        value, at, given = self._entries(node, depth)
        symbol = self.kind.sym("y", value.sparsity())
        # CasADi makes the node in the reverse derivative of reading the entries, and has no function for it
        return ca.reverse([symbol.get_nz(False, at), symbol], [symbol], [[given, value]])[0][0]

    def _entries(self, node: ast.Call, depth: int) -> tuple[Any, ca.DM, Any]:
        """A matrix, the indices of some of its nonzeros in the pattern of the third argument, and that."""
        value, given = self._single(node.args[0], depth), self._single(node.args[2], depth)
        at = self._indices(node.args[1], value.nnz())
        if given.nnz() != len(at) or not at:
            self._refuse(node, f"{len(at)} entries are given {given.nnz()} values")
        return value, ca.DM(given.sparsity(), at), given


def _is_literal(node: ast.AST) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant)


def _is_call(node: ast.Call, name: str) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == name


def _shape(value: Any) -> str:
    return "x".join(map(str, value.shape))


#: nodes of the grammar; each has a method of `Evaluator`
NODES = frozenset(
    (ast.Constant, ast.Name, ast.List, ast.UnaryOp, ast.BinOp, ast.Compare, ast.BoolOp, ast.IfExp, ast.Subscript,
     ast.Call)
)  # fmt: skip


#: functions that take a name
SIDES = ("der", "post", "pre", "active")
_BY_COUNT: dict[Sequence[int], tuple[str, ...]] = {
    (1,): (*UNARY, *WHOLE, *SIDES),
    (2,): (*BINARY, "dot", "solve", "vertsplit", "horzsplit", "sparse", "project", "sparsity_cast"),
    (3,): ("where", "mac", "bilin", "reshape", "repmat", "full", "set_nz", "add_nz"),
    (2, 3): ("nz",),
    (2, 4): ("pattern",),
    (4,): ("rank1",),
    range(1, MAX_NODES): ("vertcat", "horzcat", "diagcat"),
}
#: legal numbers of arguments of every function, by name
FUNCTIONS = {name: count for count, names in _BY_COUNT.items() for name in names}
#: functions in functions of kind scalar; others would be written out there entry by entry
SCALAR = frozenset((*UNARY, *BINARY, "where", "nz", "vertcat", "pattern"))
