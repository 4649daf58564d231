"""The grammar of expressions: values, and what is refused with its place."""

from __future__ import annotations

import math
from typing import Any

import casadi as ca
import numpy as np
import pytest

from dae_hybrid.modelfile.grammar import FUNCTIONS, Evaluator, Expression, GrammarError
from dae_hybrid.modelfile.limits import MAX_LENGTH

X, V, A = 0.3, np.array([0.5, -1.5, 2.0]), np.array([[2.0, 0.5, 0.0], [0.1, 3.0, 0.2], [0.0, 0.4, 4.0]])
INPUT = ca.SX.sym("q", 3)
TWICE = ca.Function("twice", [INPUT], [2 * INPUT, INPUT[0]])


def evaluator() -> tuple[Evaluator, list[ca.MX]]:
    """Symbols x, y, v, A, `z*`, `pi`, functions twice and sines, and a rate."""
    x, v, a, rate = ca.MX.sym("x"), ca.MX.sym("v", 3), ca.MX.sym("A", 3, 3), ca.MX.sym("der(x)")
    names = {"x": x, "y": 2 * x, "v": v, "A": a, "z*": 5 * x, "pi": 7 * x}
    functions = {"twice": TWICE, "one#2": ca.Function("one", [s := ca.SX.sym("s")], [ca.sin(s)])}
    return Evaluator(ca.MX, names, functions, {"der": lambda _: rate, "pre": lambda _: x}), [x, v, a, rate]


def value(text: str) -> Any:
    """Value of a text at the numbers above, with der(x) = 9."""
    evaluate, symbols = evaluator()
    found = ca.Function("value", symbols, [evaluate(Expression(text))])(X, V, A, 9.0).full()
    return found.item() if found.size == 1 else found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x + 2 * y - -3", X + 4 * X + 3),
        ("-x ** 2", -(X**2)),
        ("2 ** 3 ** 2", 512),
        ("x - (y - x)", 0),
        ("1 / x / y", 1 / X / (2 * X)),
        ("x**-1.5", X**-1.5),
        ("1.5e1*x + .5 + 2.E-1", 15 * X + 0.7),
        ("x < 1 and not y > 1 or x == 2", 1),
        ("x <= 0.1", 0),
        ("x != x", 0),
        ("3 if x > 1 else y", 2 * X),
        ("where(x < 1, 3, y)", 3),
        ("if_else_zero(x > 1, 5) + if_else_zero(x < 1, y)", 2 * X),
        ("`z*` + `pi` + x", 13 * X),
        ("max(x, 1) + min(x, 1) + abs(-x)", 1 + 2 * X),
        ("atan2(x, y) + hypot(3, 4) + fmod(x, 0.2) + copysign(1, -x)", math.atan2(X, 2 * X) + 5 + X % 0.2 - 1),
        ("remainder(x, 0.2)", math.remainder(X, 0.2)),
        ("v[-1] + v[0]", 2.5),
        ("v[1:]", V[1:, None]),
        ("v[::2]", V[::2, None]),
        ("A[1, 2]", 0.2),
        ("A[:2, 1:]", A[:2, 1:]),
        ("A @ v", (A @ V)[:, None]),
        ("transpose(v) @ A @ v + dot(v, v) + sum(v)", V @ A @ V + V @ V + V.sum()),
        ("solve(A, v)", np.linalg.solve(A, V)[:, None]),
        ("inv(A)", np.linalg.inv(A)),
        ("det(A)", np.linalg.det(A)),
        ("[x, 1, v[0]]", np.array([[X], [1], [0.5]])),
        ("[[1, 2], [x, -4]]", np.array([[1, 2], [X, -4]])),
        ("[1, -2.5]", np.array([[1], [-2.5]])),
        ("vertcat(v, x)", np.append(V, X)[:, None]),
        ("horzcat(v, v)", np.stack([V, V], axis=1)),
        ("diagcat(x, 2)", np.diag([X, 2])),
        ("mac(A, v, v)", (A @ V + V)[:, None]),
        ("bilin(A, v, v)", V @ A @ V),
        ("rank1(A, x, v, v)", A + X * np.outer(V, V)),
        ("reshape(A, 1, 9)", A.T.reshape(1, 9)),
        ("repmat([x, 1], 1, 2)", np.array([[X, X], [1, 1]])),
        ("full(2, 3, 1.5)", np.full((2, 3), 1.5)),
        ("norm_1(v) + norm_2(v) + norm_inf(v) + norm_fro(A)", 4 + np.linalg.norm(V) + 2 + np.linalg.norm(A)),
        ("mmax(v) - mmin(v)", 3.5),
        ("logsumexp(v)", np.log(np.exp(V).sum())),
        ("vertsplit(v, [0, 1, 3])[1]", V[1:, None]),
        ("horzsplit(A, range(0, 4))[2]", A[:, 2:]),
        ("nz(v, [2, 0])", V[[2, 0], None]),
        ("nz(x, [0, 0])", np.array([[X], [X]])),
        ("nz(v, range(0, 3), pattern(3, 3, [0, 1, 2], [0, 1, 2]))", np.diag(V)),
        ("set_nz(v, [0, 2], [x, 1])", np.array([[X], [-1.5], [1]])),
        ("add_nz(v, [0, 2], [x, 1])", np.array([[0.5 + X], [-1.5], [3]])),
        ("sparse(pattern(2, 2, [0, 1], [0, 1]), [3, 4]) @ [1, x]", np.array([[3], [4 * X]])),
        ("project(A, pattern(3, 3, [0, 1, 2], [0, 1, 2]))", np.diag(np.diag(A))),
        ("sparsity_cast(v, pattern(1, 3))", V[None]),
        ("twice(v)[0]", 2 * V[:, None]),
        ("twice(v)[1] + `one#2`(x)", 0.5 + math.sin(X)),
        ("smooth(x) + der(x) + pre(x)", 2 * X + 9),
        (" x\n  + 1 ", X + 1),
    ],
)  # fmt: skip
def test_values(text: str, expected: Any) -> None:
    np.testing.assert_allclose(value(text), expected, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize(
    "name", ["acos", "asin", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp", "expm1", "floor", "log", "log1p",
             "sin", "sinh", "asinh", "sqrt", "tan", "tanh"]
)  # fmt: skip
def test_elementary_functions(name: str) -> None:
    assert value(f"{name}(x)") == pytest.approx(getattr(math, name)(X), rel=1e-15)


def test_other_elementary_functions() -> None:
    assert value("acosh(1 + x)") == pytest.approx(math.acosh(1 + X))
    assert value("erf(erfinv(x))") == pytest.approx(X)
    assert value("sign(-x)") == -1


def test_pi_is_ambiguous_where_a_name_is_pi() -> None:
    with pytest.raises(GrammarError, match="`pi`"):
        value("pi * x")
    evaluate = Evaluator(ca.MX, {}, {})
    assert float(evaluate(Expression("pi"))) == math.pi


@pytest.mark.parametrize(
    ("text", "offset", "word"),
    [
        ("x + w", 4, "'w' is not declared"),
        ("x + twice", 4, "not declared"),
        ("x + ", 3, "not an expression"),
        ("(x", 0, "never closed"),
        ("", 0, "empty"),
        ("x = 1", 2, "not an expression"),
        ("  x; y", 3, "';'"),
        ("x.real", 0, "attribute"),
        ("x + y.__class__", 4, "attribute"),
        ("__import__(x)", 0, "no function '__import__'"),
        ("eval(x)", 0, "no function 'eval'"),
        ("lambda: x", 0, "lambda"),
        ("[i for i in v]", 0, "comprehension"),
        ("(x := 1)", 1, "assignment"),
        ("x if y", 0, "not an expression"),
        ("(x, y)", 0, "tuple"),
        ("sin(*v)", 4, "starred"),
        ("sin(x=1)", 4, "no names"),
        ("'x'", 0, "character"),
        ('x + f"{x}"', 5, "character"),
        ("x % 2", 2, "character"),
        ("x // 2", 0, "FloorDiv"),
        ("~x", 0, "character"),
        ("1j * x", 1, "letter follows"),
        ("x + 1if x else 2", 5, "letter follows"),
        ("0x10", 1, "letter follows"),
        ("1_000", 1, "letter follows"),
        ("True", 0, "expected a number"),
        ("1 < x < 2", 0, "chain"),
        ("x + \uff58", 4, "character"),
        ("x + \u03b1", 4, "backticks"),
        ("x + `w`", 4, "'w' is not declared"),
        ("v + A", 0, "3x1 and 3x3"),
        ("A @ [1, 2]", 0, "3x3 and 2x1"),
        ("v[3]", 2, "outside"),
        ("v[x]", 2, "expected a number"),
        ("v[0.5]", 2, "integer"),
        ("v[2:1]", 2, "empty"),
        ("A[0]", 0, "two indices"),
        ("x[0][0][0].T", 0, "attribute"),
        ("sin(x, y)", 0, "takes 1 argument"),
        ("nz(v)", 0, "2 or 3"),
        ("vertcat()", 0, "1 or more"),
        ("der(2)", 0, "name of a variable"),
        ("post(x)", 0, "no meaning"),
        ("active(x)", 0, "no meaning"),
        ("twice(x)", 6, "1x1, expected 3x1"),
        ("twice(v, v)", 0, "takes 1 arguments"),
        ("twice(v) + 1", 0, "vector or a matrix"),
        ("9**9**9 * x", 0, "finite"),
        ("1e308 * 10", 0, "finite"),
        ("1e999", 0, "too large"),
        ("0 / 0", 0, "finite"),
        ("9" * 400, 0, "too large"),
        ("9" * 5000, 5000, "digits"),
        ("full(1000000, 1000000, 1)", 0, "1000000000000 entries"),
        ("full(1000, 1000, 1) @ full(1000, 1000, 1)", 0, "intermediate"),
        ("sparse(pattern(1000000, 1000000, [0], [0]), 1) + 1", 0, "entries"),
        ("cos(sparse(pattern(1000000, 1000000, [0], [0]), 1))", 0, "entries"),
        ("repmat(x, 100000, 100000)", 0, "entries"),
        ("pattern(2, 2) + 1", 0, "number, a vector"),
        ("pattern(2, 2, [1, 0], [0, 0])", 0, "column by column"),
        ("vertsplit(v, [0, 2])", 13, "offsets"),
        ("(" * 150 + "x" + ")" * 150 + "+ w", 303, "'w' is not declared"),
        ("(" * 300 + "x" + ")" * 300, 200, "parentheses"),
        ("1" + "+x" * 200, 0, "nested"),
        ("-" * 3000 + "x", 0, "nested"),
        ("x+" * MAX_LENGTH + "x", 0, "characters"),
    ],
)  # fmt: skip
def test_refusals_have_a_place(text: str, offset: int, word: str) -> None:
    with pytest.raises(GrammarError) as caught:
        value(text)
    assert word in caught.value.message
    assert caught.value.offset == offset


def test_positions_count_characters_of_quoted_names() -> None:
    evaluate = Evaluator(ca.MX, {"\u03b1\u03b2": ca.MX(1)}, {})
    with pytest.raises(GrammarError) as caught:
        evaluate(Expression("`\u03b1\u03b2` + 2 * w"))
    assert caught.value.offset == 11


def test_names_with_backticks_are_doubled() -> None:
    evaluate = Evaluator(ca.MX, {"a`b": ca.MX(3), "+": ca.MX(2)}, {})
    assert float(evaluate(Expression("`a``b` * `+` + `+`"))) == 8


def test_every_function_is_tested() -> None:
    import pathlib

    text = pathlib.Path(__file__).read_text(encoding="utf-8")
    assert not [name for name in FUNCTIONS if f"{name}(" not in text and f'"{name}"' not in text]
