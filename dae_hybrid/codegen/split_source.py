"""C text of large models in pieces: functions short enough for a compiler, in files that are compiled side by side.

What a compiler takes for one function of straight-line code grows faster than the function. CasADi writes the elements
of an expression one statement after the other; with their values in the work vector instead of in variables, such a
body can be cut anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import casadi as ca

#: statements of C text from which on it is cut; and into how many (measured on a reaction and diffusion taken apart
#: into elements: 1,000 cells are 130,000 statements, and take 15 s instead of 35)
LONG, STATEMENTS = 15_000, 500
#: operations that are a file of their own where there are as many again, if they are straight statements (measured
#: with gcc: two files of 2,000 take as much in all as one of 4,000, and half as long where there are cores for them)
APART = 2_000
#: statements of one file from which on it is not compiled at all: a core takes 20 s for them (measured with gcc)
MOST = 175_000
#: rounds of a loop up to which it is as good as its statements one after the other
SHORT = 16
_LOOP = re.compile(r"\bfor \(\w+=0[^;]*; \w+<(\w+);[^)]*\) *([^\n]*)")
_MOVE = re.compile(r"casadi_(?:copy|clear|fill)\([^;\n]*?, (\d+)[,)]")
#: what copies and clears consist of
_MOVES = ("*x++ = 0;", "*y++ = *x++;", "*y++ = 0.;")
_CALL = re.compile(r"=[a-z]\w*\(")
_HEAD = re.compile(
    r"static int (\w+)\(const casadi_real\*\* arg, casadi_real\*\* res, casadi_int\* iw, casadi_real\* w, int mem\) \{"
)
_STATEMENT = re.compile(r"  (w\[\d+\]=|if \(res\[\d+\]!=0\) res\[\d+\]\[\d+\]=)[^{}]*;")
_END = "  return 0;"


def is_long(text: str) -> bool:
    """Whether a text has many statements; tables of indices may be as long as they want."""
    return statements(text) > LONG


def statements(text: str) -> int:
    """How many statements a text has, more or less; a compiler takes twice as long for one that calls a function."""
    return text.count(";\n") + len(_CALL.findall(text))


def is_straight(text: str) -> bool:
    """Whether a text is nothing but statements, without loops of more than a few rounds."""
    if any(int(size) > SHORT for size in _MOVE.findall(text)):
        return False
    loops = (rest in _MOVES or (end.isdigit() and int(end) <= SHORT) for end, rest in _LOOP.findall(text))
    return text.count("for (") == len(_LOOP.findall(text)) and all(loops) and "while (" not in text


def cut(text: str) -> str:
    """The same text, long bodies of plain statements as calls of short functions."""
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
    """Functions by file, so that every file has about the same to do; functions that call the same one, in one file.

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
            costs.append(sum(text.values()) + 2 * more)  # what is long is not compiled twice to have files of one size
        least = costs.index(min(costs))
        shares[least].append(function)
        texts[least] |= needed
    return [share for share in shares if share]


def _texts(function: ca.Function) -> Iterator[tuple[int, int]]:
    """How many operations the text of a function has, and of those that it calls, by their identity."""
    yield function.__hash__(), function.n_instructions() + 1
    if function.is_a("MXFunction"):
        for k in range(function.n_instructions()):
            if function.instruction_id(k) == ca.OP_CALL:
                called = function.instruction_MX(k).which_function()
                if called.is_a("SXFunction") or called.is_a("MXFunction"):
                    yield from _texts(called)
