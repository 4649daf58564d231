#!/bin/sh
# SciPy 1.18.1 and CasADi 3.8.2: y' = max(sin(t) - 0.9, 0), y(0) = 0, over (0, 40), which is seven short bursts.
#
# Behaviour: as long as the rate is zero nothing limits the steps, and most integrators pass bursts without evaluating a
# single point within them. Share of the right value at rtol 1e-4, 1e-6, ..., 1e-12 (atol = rtol / 100): RK45, BDF and
# CasADi's cvodes 0 at every tolerance; Radau and idas one burst of seven at every tolerance; LSODA 0, and one burst at
# 1e-12; DOP853 between two and six bursts, not more of them at a finer tolerance. No warning.
# Guess contradicted: a tolerance of 1e-12 bounds the error, or at least a finer one finds more.
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet casadi==3.8.2 scipy==1.18.1
"$place/venv/bin/python" - <<'PYTHON'
import casadi as ca
import numpy as np
from scipy.integrate import solve_ivp

half, end, tolerances = np.arccos(0.9), 40.0, (1e-4, 1e-6, 1e-8, 1e-10, 1e-12)
right = 7 * (2 * np.sin(half) - 1.8 * half)


def by_scipy(method, rtol):
    found = solve_ivp(lambda t, y: [max(np.sin(t) - 0.9, 0)], (0, end), [0.0], method, rtol=rtol, atol=rtol / 100)
    assert found.success
    return found.y[0, -1] / right


def by_casadi(method, rtol):
    t, y = ca.SX.sym("t"), ca.SX.sym("y")
    problem = {"t": t, "x": y, "ode": ca.fmax(ca.sin(t) - 0.9, 0)}
    run = ca.integrator("run", method, problem, 0, end, {"reltol": rtol, "abstol": rtol / 100})
    return float(run(x0=0)["xf"]) / right


found = {name: [by_scipy(name, r) for r in tolerances] for name in ("RK45", "BDF", "Radau", "LSODA", "DOP853")}
found |= {name: [by_casadi(name, r) for r in tolerances] for name in ("cvodes", "idas")}
for name, shares in found.items():
    print(name, np.round(shares, 4).tolist())
assert all(share == 0 for name in ("RK45", "BDF", "cvodes") for share in found[name])
assert all(abs(share - 1 / 7) < 1e-3 for name in ("Radau", "idas") for share in found[name])
assert found["LSODA"][:4] == [0, 0, 0, 0] and max(found["DOP853"]) < 0.9
assert found["DOP853"][1] < found["DOP853"][0]
PYTHON
echo "as described"
