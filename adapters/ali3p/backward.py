"""The discrete adjoint of a segment: the transpose of its steps, which are taken again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dae_hybrid.adapters.ali3p.compiled import CompiledSteps, Stretch
from dae_hybrid.adapters.ali3p.control import Progress, Walk
from dae_hybrid.adapters.ali3p.scheme import AlgebraicDerivatives, Integrands, MotionStep
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.integrator import BackwardOutcome, BackwardTask
from dae_hybrid.port.segment_rules import completed, is_short

#: steps taken one by one or in compiled code
Steps = MotionStep | Stretch


def adjoint(task: BackwardTask, walk: Walk, wrt: Sequence[int]) -> BackwardOutcome:
    """Return the outcome of a task whose steps are those of `walk`."""
    forward, k = task.forward, len(task.components)
    times = np.zeros(0) if task.t_eval is None else task.t_eval
    sweep = Sweep(walk, task)
    if is_short(forward.t0, forward.end):
        nothing = np.zeros((k, len(wrt))), np.zeros((k, forward.equations.n_memory))
        start = task.adjoints[:, : forward.equations.n_differential]
        return BackwardOutcome(start, *nothing, np.tile(start, (times.size, 1, 1)))
    compiled = CompiledSteps.of(walk, 0, monitored=False)
    nodes, samples = [forward.end], [task.adjoints[:, : forward.equations.n_differential]]
    for part in _backwards(walk, compiled):
        if compiled and isinstance(part, Stretch) and not times.size and compiled.backward(sweep, part):
            continue
        for step in reversed(part.steps(walk.scheme) if isinstance(part, Stretch) else [part]):
            sweep.back(step)
            if times.size:
                nodes.append(step.t - step.h)
                samples.append(sweep.at_start(step))
    start, of_p, of_m = sweep.finish()
    if times.size:
        nodes[-1], samples[-1] = forward.t0, start
    sampled = _interpolated(np.array(nodes[::-1]), np.array(samples[::-1]), times)
    return BackwardOutcome(start, of_p[:, list(wrt)], of_m, sampled)


def _backwards(walk: Walk, compiled: CompiledSteps | None) -> Iterator[Steps]:
    """Take all steps of a walk and yield them from the last one back; beyond `adjoint_memory`, take them again."""

    def take() -> Steps:
        return (compiled and compiled.retake()) or walk.step()

    taken: list[tuple[Progress, Steps | None]] = []
    size, let_go = 0, 0
    while not walk.arrived:
        progress = walk.progress
        taken.append((progress, part := take()))
        size += part.size
        while size > walk.options.adjoint_memory and let_go < len(taken) - 1:
            start, kept = taken[let_go]
            size -= 0 if kept is None else kept.size
            taken[let_go] = start, None
            let_go += 1
    last = walk.progress
    for progress, kept in reversed(taken):
        if kept is None:
            walk.progress = progress
            kept = take()
        yield kept
    walk.progress = last


def _interpolated(nodes: Array, values: Array, times: Array) -> Array:
    """Linear interpolation of the adjoint (k, n) between its nodes."""
    shape = (times.size, *values.shape[1:])
    if not times.size:
        return np.zeros(shape)
    columns = values.reshape(len(values), -1).T
    return np.array([np.interp(times, nodes, column) for column in columns]).T.reshape(shape)


class Sweep:
    """Cotangents of s (k, 4 n), p and m on the way back.

    `later` is the length of the step that follows the last one, whose integrals share the integrands between them.
    """

    def __init__(self, walk: Walk, task: BackwardTask) -> None:
        self.task, self.scheme = task.forward, walk.scheme
        scheme, k, e = walk.scheme, len(task.components), task.forward.equations
        self.components, self.later = task.components, 0.0
        motion, n = scheme.motion, scheme.n
        self.of_s = np.zeros((k, 4 * n))
        self.of_s[:, :n], self.of_s[:, n : 2 * n] = task.adjoints[:, motion.q], task.adjoints[:, motion.v]
        self.of_p, self.of_m = np.zeros((k, e.n_parameters)), np.zeros((k, e.n_memory))
        self._integrands = Integrands(e, scheme.memory, scheme.p)

    def _integrand(self, weight: float, t: float, x: Array) -> Array:
        """Add the integrand's share to the cotangents of p and m, and return that of x."""
        g_x, g_p, g_m = (weight * part for part in self._integrands.slopes(t, x, self.components))
        self.of_p, self.of_m = self.of_p + g_p, self.of_m + g_m
        return np.asarray(g_x)

    def back(self, step: MotionStep) -> None:
        """Go back over a step."""
        g_x = self._integrand((step.h + self.later) / 2, step.t, step.x)
        self.of_s, by_p, by_m = self.scheme.linearised(step).backward(self.of_s, g_x)
        self.of_p, self.of_m, self.later = self.of_p + by_p, self.of_m + by_m, step.h

    def at_start(self, step: MotionStep) -> Array:
        """The adjoint in state space at the start of a step, with the accelerations of a consistent point."""
        e, t = self.task.equations, step.t - step.h
        x = self.scheme.placed(step.start)
        x = completed(e, t, x, self.scheme.memory, self.scheme.p)[0]
        return self._through_algebraic(t, x, self.scheme.of_state(self.of_s))[0]

    def finish(self) -> tuple[Array, Array, Array]:
        """Cotangents of y at the start of the segment, of p and of m."""
        task = self.task
        of_x = self._integrand(self.later / 2, task.t0, task.x0) + self.scheme.of_state(self.of_s)
        of_y, by_p, by_m = self._through_algebraic(task.t0, task.x0, of_x)
        return of_y, self.of_p + by_p, self.of_m + by_m

    def _through_algebraic(self, t: float, x: Array, of_x: Array) -> tuple[Array, Array, Array]:
        """Cotangents of y, p and m from those of x = (y, z), with z from the algebraic equations."""
        e = self.task.equations
        by_y, by_p, by_m = AlgebraicDerivatives(e, t, x, self.scheme.memory, self.scheme.p).backward(
            of_x[:, e.n_differential :]
        )
        return of_x[:, : e.n_differential] + by_y, by_p, by_m
