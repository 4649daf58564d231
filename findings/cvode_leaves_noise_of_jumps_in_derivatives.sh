#!/bin/sh
# sundials4py 7.9.0, CVODE: derivatives that pass through the jumps of a relaxation oscillator come out as noise.
#
#   x' = v, v' = mu (1 - x^2) v - x with its variational equations by mu, mu = 1000, from (2, 0) to t = 2000, all four
#   in the error test of BDF
#
# Guess: the derivatives are as accurate as the solution, since they are in the same error test.
# Seen:  at nine tolerances next to each other (rtol 1e-7 to 1.08e-7, atol = 1e-4 rtol) x(2000) is right to 1.4e-6, and
#        dx/dmu is wrong by 26 % to 140 %, with success. In a jump the derivatives are 1e6 times as large as after it,
#        and the error test asks for a share of that size; what is left of it is of the size of the result.
# Exit status 0 while this is so.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet sundials4py==7.9.0 numpy==2.5.5
"$work/venv/bin/python" - <<'PY'
import numpy as np
from sundials4py import core, cvodes

MU, END = 1000.0, 2000.0


def run(rtol):
    _, context = core.SUNContext_Create(0)
    x = core.N_VNew_Serial(4, context)
    core.N_VGetArrayPointer(x)[:] = 2.0, 0.0, 0.0, 0.0

    def rate(t, x, dx, _):
        x, v, s, w = core.N_VGetArrayPointer(x)
        bend = (1 - x * x) * v
        core.N_VGetArrayPointer(dx)[:] = v, MU * bend - x, w, bend + MU * (1 - x * x) * w - (2 * MU * x * v + 1) * s
        return 0

    view = cvodes.CVodeCreate(cvodes.CV_BDF, context)
    memory = view.get()
    matrix = core.SUNDenseMatrix(4, 4, context)
    solver = core.SUNLinSol_Dense(x, matrix, context)
    assert cvodes.CVodeInit(memory, rate, 0.0, x) == 0
    assert cvodes.CVodeSStolerances(memory, rtol, 1e-4 * rtol) == 0
    assert cvodes.CVodeSetLinearSolver(memory, solver, matrix) == 0
    assert cvodes.CVodeSetMaxNumSteps(memory, 1_000_000) == 0
    flag, _ = cvodes.CVode(memory, END, x, cvodes.CV_NORMAL)
    assert flag == 0
    return core.N_VGetArrayPointer(x).copy()


found = np.array([run(1e-7 * (1 + k / 100)) for k in range(9)])
exact = run(1e-12)
solution, derivative = np.abs(found[:, 0] / exact[0] - 1), found[:, 2] / exact[2]
print("x(2000), dx/dmu:", exact[[0, 2]], "x(2000) is off by", solution.max())
print("dx/dmu, as a multiple of what it is:", derivative.round(3))
raise SystemExit(not (solution.max() < 1e-4 and np.abs(derivative - 1).max() > 0.5))
PY
