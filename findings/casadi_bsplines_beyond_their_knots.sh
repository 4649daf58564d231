#!/bin/sh
# CasADi 3.8.2: a B-spline outside of its knots, and at single knots.
#
# Behaviour: interpolant(..., "bspline") is zero, in value and derivative, as soon as its argument leaves the grid (a jump);
# the same call with {"inline": True}, which only seems to choose how the code is written, extrapolates the outermost
# polynomial. A spline whose outermost knots are single is extrapolated from its basic interval to the last knot, is zero
# beyond, and at the knot where that interval begins the values of two pieces are added: a spline with all coefficients 1,
# which is 1 everywhere, gives 2 there. SciPy gives 1.
# Guess contradicted: an option that inlines a function changes no value; a spline extrapolates, or refuses; B-splines
# with all coefficients 1 are 1 on their basic interval.
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet casadi==3.8.2 scipy==1.16.3
"$place/venv/bin/python" - <<'PYTHON'
import casadi as ca
import numpy as np
from scipy.interpolate import BSpline

grid, values = [0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 4.0, 9.0]  # x**2
plain = ca.interpolant("plain", "bspline", [grid], values)
inlined = ca.interpolant("inlined", "bspline", [grid], values, {"inline": True})
for x in (2.5, 3.0, 3.0 + 1e-9, 3.5):
    print(f"x = {x:.9f}: {float(plain(x)):.6f}, inlined {float(inlined(x)):.6f}")
assert abs(float(plain(3.0)) - 9) < 1e-9 and float(plain(3.0 + 1e-9)) == 0.0
assert abs(float(inlined(3.5)) - 12.25) < 1e-9

knots = [0.0, 1.0, 2.0, 3.0, 4.0]
single = ca.Function.bspline("single", [knots], [1.0, 1.0, 1.0], [1], 1)
points = [0.5, 1.0, 1.5, 4.0, 4.5]
ours, theirs = [float(single(x)) for x in points], BSpline(np.array(knots), np.ones(3), 1)(points)
print("single knots:", dict(zip(points, ours)), "SciPy:", dict(zip(points, theirs.tolist())))
assert ours == [1.0, 2.0, 1.0, 1.0, 0.0] and np.allclose(theirs, 1)
PYTHON
echo "as described"
