#!/bin/sh
# CasADi 3.8.2: expressions that jump are "linear" in the symbol that decides.
#
# Behaviour: is_linear(f, x) and which_depends(f, x, 2) look at the sparsity of derivatives, and those of if_else by its
# condition, of comparisons, floor and sign are zero. So is_linear says True for if_else(x < 0.5, 1, 2), floor(x), sign(x),
# and for if_else(x, y, -y) in x, though none of them has at 0.3 the mean of its values at 0 and 1.
# Guess contradicted: is_linear answers what its documentation asks, "whether f is linear in x", so that where it says
# True, f((1 - s) a + s b) is (1 - s) f(a) + s f(b).
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet casadi==3.8.2
"$place/venv/bin/python" - <<'PYTHON'
import casadi as ca

x, y = ca.MX.sym("x"), ca.MX.sym("y")
expressions = {
    "if_else(x < 0.5, 1, 2)": ca.if_else(x < 0.5, 1, 2),
    "if_else(x, y, -y)": ca.if_else(x, y, -y),
    "floor(4 x)": ca.floor(4 * x),
    "sign(x - 0.7)": ca.sign(x - 0.7),
}
for text, f in expressions.items():
    at = ca.Function("f", [x, y], [f])
    low, between, high = (float(at(value, 3.0)) for value in (0.0, 0.3, 1.0))
    print(f"{text}: is_linear {ca.is_linear(f, x)}, values {low}, {between}, {high} at 0, 0.3, 1")
    assert ca.is_linear(f, x) and not any(ca.which_depends(f, x, 2, True))
    assert between != 0.7 * low + 0.3 * high
PYTHON
echo "as described"
