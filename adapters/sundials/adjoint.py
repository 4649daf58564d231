"""The adjoint memory: one component of a functional, integrated backward along a solution."""

from __future__ import annotations

from ctypes import byref

import numpy as np

from dae_hybrid.numerics.arrays import Array, unlike_shares
from dae_hybrid.options import Options
from dae_hybrid.port.failure_messages import is_starved, starved, step_limit
from dae_hybrid.port.integrator import BackwardTask, Equations, Tolerances
from dae_hybrid.port.segment_rules import longest_steps

from .backend import Backend
from .driver import PAUSED, STALLED
from .memory import SolverMemory
from .methods import SundialsMethod

#: steps between checks for progress
BUDGET = 20_000

#: steps between evaluations of the Jacobian by CVODES. The default of 51 is too many: near the end of a segment where
#: equations are not differentiable, such as the outflow sqrt(h) of a tank that runs empty, a Jacobian a few steps old
#: is so large that Newton's corrections vanish and pass for convergence
FRESH = 1
#: limit on failed attempts of one step, each a quarter of the last: an adjoint that leaves zero at a kink of an
#: integrand does so in steps of the absolute tolerance
MAX_STEP_FAILURES = 60


class Adjoint(SolverMemory):
    """The adjoint of one component of a functional along the steps of a forward run, with its integrals.

    SUNDIALS' own adjoint modules integrate the segment again and interpolate the result. A second run differs by the
    tolerance, which matters where the solution is fast: a gradient is consistent only with the solution it belongs to.
    Here the solution is the polynomial of each step of the run, and the adjoint is an ordinary problem. The state is
    (lambda, mu) and the guide, see callbacks.c.
    """

    def __init__(
        self, equations: Equations, options: Options, method: SundialsMethod, wrt: tuple[int, ...], backend: Backend
    ) -> None:
        e = equations
        super().__init__(e, method, e.n + 1, backend.EquationCallbacks(e, "IDA" if e.implicit else "CVode", 0, 0, wrt))
        self.nq = len(wrt) + e.n_memory
        self.create(options.linear_solver, "_b")
        self.q, self.q_absolute = (self.objects.vector(max(self.nq, 1)) for _ in range(2))
        self.q_data, self.q_absolute_data = (self.objects.data(v, self.nq) for v in (self.q, self.q_absolute))
        if self.nq:
            self.call("QuadInit", self.model.callback(f"{self.prefix}_quad_b"), self.q)
            self.call("SetQuadErrCon", 1)
        if not e.implicit and method.implicit:
            self.call("SetJacEvalFrequency", FRESH)
        self.loop = backend.BackwardLoop(
            self.model, memory=self.memory, x=self.x, xdot=self.xdot, sample=self.work, integrals=self.q
        )
        self.scales: Tolerances | None = None  # the tolerances that are set, for the options of the run

    def configure_run(self, options: Options, parameters: Array) -> None:
        """Apply options and parameters of a run."""
        self.configure(options, parameters)
        self.options, self.scales = options, None
        self.call("SetInitStep", 0.0)
        self.call("SetMaxErrTestFails", MAX_STEP_FAILURES)
        if self.implicit:
            self.call("SetSuppressAlg", 1)

    def solve(self, task: BackwardTask, j: int, path: Array, left: int) -> tuple[Array, Array, Array, int]:
        """Integrate component j of a task backward along a path; return the adjoint at t0, integrals, samples, steps.

        At most `left` steps are taken.
        """
        n, t0 = self.equations.n, task.forward.t0
        t1 = min(task.forward.end, path[-1, 0])  # see `zero_at_the_end`: forward analysis also ends with the last step
        self.model.memory[:] = task.forward.memory
        self.model.set_path(path, task.components[j])
        self.use(task.tolerances(), j)
        self.time.value = t1
        self.x_data[:n], self.x_data[n] = task.adjoints[j], 0.0
        if self.xdot_data is not None:
            self.xdot_data[:n], self.xdot_data[n] = task.adjoint_rates[j], 0.0
        self.q_data[:] = 0.0
        times = np.zeros(0) if task.t_eval is None else task.t_eval
        inside = times[times < t1]
        starts = np.tile(task.adjoints[j], (times.size - inside.size, 1))
        limits = longest_steps(np.append(path[0, 0] - path[0, 1], path[:, 0]))
        flag = self.loop.begin(t1, t0, self.options.max_step or np.inf, limits, inside)
        if flag < 0:
            self.fail(flag, t1)
        self._back(task, left)
        self.model.leave()
        if self.nq:
            self.call("GetQuad", byref(self.time), self.q)
        samples = np.vstack((starts, self.loop.samples))
        return self.x_data[:n].copy(), self.q_data.copy(), samples, self.loop.steps

    def _back(self, task: BackwardTask, left: int) -> None:
        """Step back to the start of the segment."""
        loop, mode = self.loop, task.forward.equations.name
        while True:
            before, taken = loop.t, loop.steps
            status = loop.advance(min(BUDGET, left - taken))
            if status < 0:
                self.fail(status, loop.t)
            if status not in (PAUSED, STALLED):
                return
            if loop.steps >= left:
                raise step_limit(self.options.max_steps, mode=mode, time=loop.t)
            step = 0.0 if status == STALLED else (before - loop.t) / (loop.steps - taken)
            if is_starved(step, loop.t, task.forward):
                poisoned = self.model.counters()["not_finite"] > self.not_finite
                raise starved(step, mode=mode, time=loop.t, not_finite=poisoned)

    def use(self, given: Tolerances, j: int) -> None:
        """Set tolerances, which SUNDIALS copies."""
        if given is self.scales:
            return
        n = self.equations.n
        if self.nq:  # scale all integrals alike, but for shares by which those of opposite signs do not cancel
            shares = unlike_shares(self.nq)
            self.model.weights[:] = shares / shares.max() * (given.integrals[0].min() / given.integrals[0])
            self.q_absolute_data[:] = given.integrals[j]
            self.call("QuadSVtolerances", given.rtol, self.q_absolute)
        self.absolute_data[:n], self.absolute_data[n] = given.absolute[j], given.integrals[j].min(initial=1.0)
        self._free_algebraic(self.absolute_data)
        self.call("SVtolerances", given.rtol, self.absolute)
        self.scales = given
