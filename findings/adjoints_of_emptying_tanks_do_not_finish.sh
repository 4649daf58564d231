#!/bin/sh
# CasADi 3.8.2: a tank that empties, h' = -c sqrt(h) while h > 0, from h0 = 1.5 over 5 units of time (it is empty after
# 2.45); G is the integral of h, whose derivatives by c and h0 are -1.2247 and 1.2247.
#
# Behaviour: forward sensitivities of cvodes and idas are right to 1e-7 or better at every tolerance. The backward sweep,
# which begins behind the point at which the slope of the root is infinite, is a thousand times less accurate at rtol
# 1e-6, and ends in TOO_MUCH_WORK at 1e-8 and 1e-10: a finer tolerance does not help but prevents the result. Derivatives
# by "rk" (fixed steps, differentiated exactly) agree forward and backward, and are off by 20 % and 6 %.
# Guess contradicted: forward and adjoint derivatives have about the same error, and the adjoint of fixed steps, which
# cannot fail, is as good as their solution (off by 0.5 %).
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet casadi==3.8.2
"$place/venv/bin/python" - 2>"$place/log" <<'PYTHON'
import casadi as ca

h, y, c = ca.SX.sym("h"), ca.SX.sym("y"), ca.SX.sym("c")
at, right = (1.0, 1.5), (-(1.5**1.5) / 1.5, 1.5**0.5)


def run(method, rtol):
    """The value and both derivatives, forward and backward; None where the sweep does not finish."""
    options = {} if method == "rk" else {"reltol": rtol, "abstol": rtol / 100}
    problem = {"x": ca.vertcat(h, y), "p": c, "ode": ca.vertcat(ca.if_else(h > 0, -c * ca.sqrt(h), 0), h)}
    integrator = ca.integrator("run", method, problem, 0, 5, options)
    own, start = ca.MX.sym("c"), ca.MX.sym("h0")
    value = integrator(x0=ca.vertcat(start, 0), p=own)["xf"][1]
    cost = ca.Function("cost", [own, start], [value])
    forward = [float(cost.forward(1)(*at, cost(*at), *seed)) for seed in ((1, 0), (0, 1))]
    try:
        backward = [float(v) for v in cost.reverse(1)(*at, cost(*at), 1.0)]
    except RuntimeError as error:
        assert "TOO_MUCH_WORK" in str(error)
        backward = None
    return float(cost(*at)), forward, backward


def off(found):
    return max(abs(a - b) for a, b in zip(found, right))


for method in ("cvodes", "idas"):
    for rtol in (1e-6, 1e-8, 1e-10):
        value, forward, backward = run(method, rtol)
        print(method, rtol, forward, backward)
        assert off(forward) < 2e-7
        assert (backward is None) == (rtol < 1e-6)
        assert backward is None or 2e-5 < off(backward) < 1e-3
value, forward, backward = run("rk", 1e-6)
print("rk", value, forward, backward)
assert abs(value + right[0]) < 0.01
assert off(backward) > 0.2 and max(abs(a - b) for a, b in zip(forward, backward)) < 1e-10
PYTHON
echo "as described"
