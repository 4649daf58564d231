"""Split the C text of large models into short functions, in files that are compiled in parallel.

The cost of compiling a function of straight-line code grows faster than its length. CasADi writes the elements of an
expression as successive statements. If their values are kept in the work vector instead of in variables, the body can
be split anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import casadi as ca

#: number of C statements above which a text is split, and statements per function (measured on a reaction-diffusion
#: system in elementwise form: 1,000 cells give 130,000 statements, and compile in 15 s instead of 35)
LONG, STATEMENTS = 15_000, 500
#: operations per file if straight-line code is distributed over several files (measured with gcc: two files of 2,000
#: need the same CPU time as one of 4,000, and half the elapsed time if cores are available)
OPERATIONS_PER_FILE = 2_000
#: statements per file above which nothing is compiled: they take 20 s on one core (measured with gcc)
MAX_STATEMENTS = 175_000
#: largest iteration count of a loop that costs no more than its unrolled statements
MAX_LOOP_COUNT = 16
_LOOP = re.compile(r"\bfor \(\w+=0[^;]*; \w+<(\w+);[^)]*\) *([^\n]*)")
_MOVE = re.compile(r"casadi_(?:copy|clear|fill)\([^;\n]*?, (\d+)[,)]")
#: bodies of the loops for copying and clearing
_MOVES = ("*x++ = 0;", "*y++ = *x++;", "*y++ = 0.;")
_CALL = re.compile(r"=[a-z]\w*\(")
_HEAD = re.compile(
    r"static int (\w+)\(const casadi_real\*\* arg, casadi_real\*\* res, casadi_int\* iw, casadi_real\* w, int mem\) \{"
)
_STATEMENT = re.compile(r"  (w\[\d+\]=|if \(res\[\d+\]!=0\) res\[\d+\]\[\d+\]=)[^{}]*;")
_END = "  return 0;"


def is_long(text: str) -> bool:
    """Whether a text has many statements; tables of indices do not count."""
    return statements(text) > LONG


def statements(text: str) -> int:
    """Approximate number of statements; a function call counts twice, as it does for the compiler."""
    return text.count(";\n") + len(_CALL.findall(text))


def is_straight(text: str) -> bool:
    """Whether a text consists of statements without loops, except very short ones."""
    if any(int(size) > MAX_LOOP_COUNT for size in _MOVE.findall(text)):
        return False
    loops = (rest in _MOVES or (end.isdigit() and int(end) <= MAX_LOOP_COUNT) for end, rest in _LOOP.findall(text))
    return text.count("for (") == len(_LOOP.findall(text)) and all(loops) and "while (" not in text


def cut(text: str) -> str:
    """Replace long bodies of plain statements by calls of short functions."""
    lines, result, i = text.split("\n"), list[str](), 0
    while i < len(lines):
        head = _HEAD.fullmatch(lines[i])
        if head is None:
            result.append(lines[i])
            i += 1
            continue
        end = lines.index(_END, i)
        body = lines[i + 1 : end]
        if len(body) > STATEMENTS and all(map(_STATEMENT.fullmatch, body)):
            body, pieces = [], [body[k : k + STATEMENTS] for k in range(0, len(body), STATEMENTS)]
            for k, piece in enumerate(pieces):
                name = f"{head[1]}_{k}"
                result.append(f"static void {name}(const casadi_real** arg, casadi_real** res, casadi_real* w) {{")
                result += [*piece, "}"]
                body.append(f"  {name}(arg, res, w);")
        result += [lines[i], *body]
        i = end
    return "\n".join(result)


def shared_out(functions: Sequence[ca.Function], files: int) -> list[list[ca.Function]]:
    """Distribute functions over files with balanced load; callers of one function share its file.

    Examples
    --------
    >>> import casadi as ca
    >>> from dae_hybrid.codegen.split_source import shared_out
    >>> x, v = ca.SX.sym("x"), ca.MX.sym("v")
    >>> waves = {"called": ca.sin, "other": ca.cos}
    >>> called, other = (ca.Function(name, [x], [sum(of(k * x) for k in range(9))]) for name, of in waves.items())
    >>> callers = [ca.Function(name, [v], [called(v) + 1]) for name in ("one", "two")]
    >>> [[f.name() for f in share] for share in shared_out([called, other, *callers], 2)]
    [['one', 'two', 'called'], ['other']]
    """
    shares: list[list[ca.Function]] = [[] for _ in range(max(1, min(files, len(functions))))]
    texts: list[dict[int, int]] = [{} for _ in shares]
    own = [(function, dict(_texts(function))) for function in functions]
    for function, needed in sorted(own, key=lambda pair: sum(pair[1].values()), reverse=True):
        costs = []
        for text in texts:
            more = sum(size for key, size in needed.items() if key not in text)
            costs.append(sum(text.values()) + 2 * more)  # long functions are not compiled twice to equalise the files
        least = costs.index(min(costs))
        shares[least].append(function)
        texts[least] |= needed
    return [share for share in shares if share]


def _texts(function: ca.Function) -> Iterator[tuple[int, int]]:
    """Number of operations of a function, and of the functions that it calls, by id."""
    yield function.__hash__(), function.n_instructions() + 1
    if function.is_a("MXFunction"):
        for k in range(function.n_instructions()):
            if function.instruction_id(k) == ca.OP_CALL:
                called = function.instruction_MX(k).which_function()
                if called.is_a("SXFunction") or called.is_a("MXFunction"):
                    yield from _texts(called)
