"""Seeded faults: small changes of Python and C that keep it valid, drawn by place and kind.

A fault replaces bytes of one file. `draw` takes as many per group as are asked for, evenly over the kinds of faults,
and always the same ones for one seed and one text.
"""

from __future__ import annotations

import ast
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

#: groups of files: the number of faults, and the folders
GROUPS: dict[str, tuple[int, tuple[str, ...]]] = {
    "events and adjoints": (
        110,
        tuple(
            f"dae_hybrid/{room}"
            for room in ("simulation", "sensitivity", "conditions", "trajectory", "system", "steppers", "numerics")
        ),
    ),
    "C": (60, ("adapters/sundials/native", "adapters/ali3p/native", "dae_hybrid/codegen/native")),
    "compiler": (60, ("dae_hybrid/statement", "dae_hybrid/compile", "dae_hybrid/codegen")),
    "service and ensembles": (40, ("dae_hybrid/service", "dae_hybrid/ensembles", "dae_hybrid/client")),
    "other rooms": (
        40,
        ("dae_hybrid/interface", "dae_hybrid/fitting", "dae_hybrid/uncertainty", "dae_hybrid/optimization",
         "dae_hybrid/mechanics", "dae_hybrid/modelfile", "dae_hybrid/importers", "dae_hybrid/port", "adapters"),
    ),
}  # fmt: skip

OPPOSITE: dict[type[ast.AST], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.And: "or", ast.Or: "and",
}  # fmt: skip
SIDES = (("minus", "plus"), ("before", "after"), ("left", "right"), ("first", "last"), ("lower", "upper"))


@dataclass(frozen=True)
class Fault:
    """A replacement of ``[start, end)`` in the bytes of a file, and the lines by which a run passes it."""

    file: str
    line: int
    start: int
    end: int
    old: str
    new: str
    kind: str
    group: str
    passed: tuple[int, int]
    constant: str = ""  # name of the module's constant that it changes

    def applied(self, text: bytes) -> bytes:
        """The text with the fault."""
        assert text[self.start : self.end].decode() == self.old, f"{self.file} has changed"
        return text[: self.start] + self.new.encode() + text[self.end :]

    @property
    def installed(self) -> str:
        """Path of the file within the installed library."""
        return self.file if self.file.startswith("dae_hybrid/") else f"dae_hybrid/{self.file}"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.kind}: {' '.join(self.old.split())} -> {' '.join(self.new.split())}"


class _Python(ast.NodeVisitor):
    """Faults of one Python file."""

    def __init__(self, file: str, group: str, text: bytes) -> None:
        self.file, self.group, self.text = file, group, text
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.found: list[Fault] = []
        self.passed, self.depth, self.constant = (0, 0), 0, ""
        self.names = {
            getattr(node, "attr", None) or getattr(node, "id", None) or getattr(node, "arg", None)
            for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Attribute, ast.Name, ast.arg))
        }  # fmt: skip

    # -- places ------------------------------------------------------------------------------------

    def at(self, node: ast.AST) -> tuple[int, int]:
        return (
            self.starts[node.lineno - 1] + node.col_offset,  # type: ignore[attr-defined]
            self.starts[node.end_lineno - 1] + node.end_col_offset,  # type: ignore[attr-defined]
        )

    def segment(self, node: ast.AST) -> str:
        start, end = self.at(node)
        return self.text[start:end].decode()

    def add(self, kind: str, start: int, end: int, new: str) -> None:
        if not self.depth and not self.constant:
            return
        line = self.text[:start].count(b"\n") + 1
        old = self.text[start:end].decode()
        self.found.append(
            Fault(self.file, line, start, end, old, new, kind, self.group, self.passed, self.constant)
        )  # fmt: skip

    def between(self, left: ast.AST, right: ast.AST, symbol: str) -> tuple[int, int] | None:
        """Place of an operator between two operands."""
        start, end = self.at(left)[1], self.at(right)[0]
        place = re.search(rb"(?<![-+<>=!*/])" + re.escape(symbol.encode()) + rb"(?![=<>*/])", self.text[start:end])
        return place and (start + place.start(), start + place.end())

    # -- statements ---------------------------------------------------------------------------------

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt) and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            before = self.passed
            header = getattr(node, "test", None) or getattr(node, "iter", None)
            self.passed = (node.lineno, (header or node).end_lineno or node.lineno)
            super().visit(node)
            self.passed = before
        else:
            super().visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.depth += 1
        for child in node.body:
            self.visit(child)
        self.depth -= 1

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Raise(self, node: ast.Raise) -> None:
        """Messages are no faults."""

    visit_Assert = visit_JoinedStr = visit_Import = visit_ImportFrom = visit_Raise  # type: ignore[assignment]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        single = len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        if not self.depth and single and isinstance(node.value, ast.Constant):
            self.constant = node.targets[0].id  # type: ignore[attr-defined]
            self.visit(node.value)
            self.constant = ""
        elif self.depth:
            self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.add("dropped statement", *self.at(node), "pass")
            self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add("dropped statement", *self.at(node), "pass")
        self.generic_visit(node)

    def visit_If(self, node: ast.If | ast.While | ast.IfExp) -> None:
        if not isinstance(node, ast.While):
            self.add("negated condition", *self.at(node.test), f"(not ({self.segment(node.test)}))")
        self.generic_visit(node)

    visit_IfExp = visit_While = visit_If

    # -- expressions ----------------------------------------------------------------------------------

    def visit_BinOp(self, node: ast.BinOp) -> None:
        numeric = not any(
            isinstance(side, (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp))
            or (isinstance(side, ast.Constant) and isinstance(side.value, (str, bytes)))
            for side in (node.left, node.right)
        )
        if numeric and isinstance(node.op, (ast.Add, ast.Sub)):
            if place := self.between(node.left, node.right, "+" if isinstance(node.op, ast.Add) else "-"):
                self.add("sign", *place, OPPOSITE[type(node.op)])
            self.add("dropped term", *self.at(node), f"({self.segment(node.left)})")
        if numeric and isinstance(node.op, ast.Mult):
            self.add("dropped factor", *self.at(node), f"({self.segment(node.left)})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, (ast.USub, ast.Not)):
            kind = "sign" if isinstance(node.op, ast.USub) else "negated condition"
            self.add(kind, *self.at(node), f"({self.segment(node.operand)})")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1 and type(node.ops[0]) in OPPOSITE:
            between = self.text[self.at(node.left)[1] : self.at(node.comparators[0])[0]].decode()
            words = re.sub(r"\s+", " ", between).strip(" ()\n")
            if words and (place := self.between(node.left, node.comparators[0], words)):
                kind = "boundary" if words in ("<", "<=", ">", ">=") else "negated condition"
                self.add(kind, *place, OPPOSITE[type(node.ops[0])])
                if kind == "boundary":
                    self.add("comparison", *place, words.translate({ord("<"): ">", ord(">"): "<"}))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        word = "and" if isinstance(node.op, ast.And) else "or"
        if len(node.values) == 2 and (place := self.between(*node.values, f" {word} ")):
            self.add("and/or", *place, f" {OPPOSITE[type(node.op)]} ")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool) or value is None:
            if isinstance(value, bool):
                self.add("negated condition", *self.at(node), str(not value))
        elif isinstance(value, int):
            self.add("off by one", *self.at(node), str(value + 1))
        elif isinstance(value, float) and value:
            small = abs(value) < 1e-2
            self.add("tolerance" if small else "number", *self.at(node), f"{value * (1e3 if small else 2.0):.6g}")

    def _side(self, node: ast.AST, name: str) -> None:
        for pair in SIDES:
            for one, other in (pair, pair[::-1]):
                if re.search(rf"(^|_){one}(_|$)", name):
                    swapped = re.sub(rf"(^|_){one}(_|$)", rf"\g<1>{other}\g<2>", name)
                    end = self.at(node)[1]
                    if swapped in self.names:
                        self.add("swapped side", end - len(name.encode()), end, swapped)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            self._side(node, node.attr)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._side(node, node.id)


# -- C ------------------------------------------------------------------------------------------------------

C_OPERATORS = {
    "sign": ((r" \+ ", " - "), (r" - ", " + "), (r"\+= ", "-= "), (r"-= ", "+= "), (r"(?<=[(=,] )-(?=[a-z(])", "")),
    "boundary": ((r" < ", " <= "), (r" > ", " >= "), (r" <= ", " < "), (r" >= ", " > ")),
    "comparison": ((r" < ", " > "), (r" > ", " < ")),
    "negated condition": ((r" == ", " != "), (r" != ", " == "), (r"if \((?=\w)", "if (!")),
    "and/or": ((r" && ", " || "), (r" \|\| ", " && ")),
    "off by one": ((r" \+ 1\b", ""), (r" - 1\b", ""), (r"(?<== )0(?=;)", "1"), (r"(?<=return )0(?=;)", "1")),
    "dropped factor": ((r" \* [a-z]\w*(?=[;,)])", ""),),
    "dropped statement": ((r"(?<=\n)  +\w+\([^;{}]*\);(?=\n)", ";"),),
    "tolerance": ((r"\b1e-\d+\b", "1e-2"), (r"\b[A-Z]+_?(RTOL|ROUNDINGS|SLACK|SHARE|BAND)\b", "1e3")),
}
_BLANK = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])'|^#(?:[^\n]*\\\n)*[^\n]*", re.S | re.M)
_FUNCTION = re.compile(r"^(?!static const|struct|typedef|enum)\w[\w *]*\([^;{}]*\) *\{\n?", re.M)


def c_functions(text: str) -> list[tuple[int, int]]:
    """Places of function bodies: from behind the opening brace to the closing one at the start of a line."""
    found = []
    for head in _FUNCTION.finditer(text):
        single = text.rfind("\n", 0, head.end()) < head.start() and not head[0].endswith("\n")
        end = text.find("\n", head.end()) if single else text.find("\n}", head.end())
        found.append((head.end(), len(text) if end < 0 else end))
    return found


def _c_faults(file: str, group: str, text: str) -> Iterator[Fault]:
    plain = _BLANK.sub(lambda m: re.sub(r"[^\n]", "\0", m[0]), text)
    for begin, end in c_functions(plain):
        for kind, changes in C_OPERATORS.items():
            for pattern, new in changes:
                for place in re.compile(pattern).finditer(plain, begin, end):
                    start, stop = (len(text[:n].encode()) for n in place.span())
                    line = text.count("\n", 0, place.start()) + 1
                    passed = text.count("\n", 0, begin) + 1
                    yield Fault(file, line, start, stop, place[0], new, kind, group, (passed, passed))


# -- the draw ---------------------------------------------------------------------------------------------------


def faults_of(root: Path, file: Path, group: str) -> list[Fault]:
    """All faults of a file."""
    name, text = file.relative_to(root).as_posix(), file.read_bytes()
    if file.suffix == ".c":
        return list(_c_faults(name, group, text.decode()))
    visitor = _Python(name, group, text)
    visitor.visit(ast.parse(text))
    return visitor.found


def is_valid(fault: Fault, root: Path) -> bool:
    """Whether the text with the fault is Python; C is checked when it is compiled."""
    if fault.file.endswith(".c"):
        return True
    try:
        compile(fault.applied((root / fault.file).read_bytes()), "fault", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def draw(root: Path, seed: int, scale: float = 1.0, groups: Iterable[str] = GROUPS) -> list[Fault]:
    """The faults of groups: over kinds in turn, at most one per line."""
    drawn: list[Fault] = []
    taken: set[tuple[str, int]] = set()
    for group in groups:
        count, folders = GROUPS[group]
        chance = random.Random(f"{seed} {group}")
        by_kind: dict[str, list[Fault]] = defaultdict(list)
        suffix = "*.c" if group == "C" else "*.py"
        for file in sorted({path for folder in folders for path in (root / folder).rglob(suffix)}):
            if file.stem not in ("__init__", "install_scikits_odes"):
                for fault in faults_of(root, file, group):
                    by_kind[fault.kind].append(fault)
        for own in by_kind.values():
            chance.shuffle(own)
        wanted = len(drawn) + round(count * scale)
        while len(drawn) < wanted and any(by_kind.values()):
            for kind in sorted(by_kind):
                while by_kind[kind] and len(drawn) < wanted:
                    fault = by_kind[kind].pop()
                    if (fault.file, fault.line) not in taken and is_valid(fault, root):
                        taken.add((fault.file, fault.line))
                        drawn.append(fault)
                        break
    return drawn
