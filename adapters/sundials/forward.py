"""The forward memory: integration with guards, integrals and forward sensitivities."""

from __future__ import annotations

from ctypes import c_double, c_int
from typing import Any

from dae_hybrid.codegen import Kernel, densified
from dae_hybrid.integrator import Array, Equations, SegmentTask
from dae_hybrid.options import Options

from .library import SIMULTANEOUS, STAGGERED
from .memory import MAX_ORDER, SolverMemory


class Forward(SolverMemory):
    """Integration with guards, the functionals' integrals and, with `n_directions`, forward sensitivities.

    The solver's state is (x, q) with q' = g, the integrands; see driver.h.
    """

    def __init__(self, equations: Equations, options: Options, method: str, n_directions: int, backend: Any) -> None:
        e, ns = equations, n_directions
        family = "IDA" if e.implicit else "CVode"
        n_integrals = e.functionals.size if e.integrates else 0
        super().__init__(e, method, e.n + n_integrals, backend.Model(e, family, n_integrals, ns, ()))
        objects, size = self.objects, self.size
        self.s = objects.vectors(ns, size) if ns else None
        self.sdot = objects.vectors(ns, size) if ns and e.implicit else None
        self.s_data = [objects.data(v, size) for v in self.s or ()]
        self.sdot_data = [objects.data(v, size) for v in self.sdot or ()]
        self.corrector = SIMULTANEOUS if options.sensitivity_method == "simultaneous" else STAGGERED
        sensitivity_solver = None
        if ns and self.method == "adams":
            sensitivity_solver = objects.fixed_point(self.x, ns + (self.corrector == SIMULTANEOUS))
        self.create(options.linear_solver)
        if e.n_guards:
            self.call("RootInit", e.n_guards, self.model.callback(f"{self.prefix}_root"))
            self.call("SetRootDirection", (c_int * e.n_guards)(*e.directions))
            self.call("SetNoInactiveRootWarn")
        if ns:
            for data in (*self.s_data, *self.sdot_data):
                data[:] = 0.0
            start = (self.s, self.sdot) if e.implicit else (self.s,)
            self.call("SensInit", ns, self.corrector, self.model.callback(f"{self.prefix}_sens"), *start)
            self.call("SensEEtolerances")
            self.call("SetSensErrCon", 1)
            if sensitivity_solver is not None:
                which = "Sim" if self.corrector == SIMULTANEOUS else "Stg"
                self.call(f"SetNonlinearSolverSens{which}", sensitivity_solver)
        if e.implicit and n_integrals:
            self._flow = Kernel(densified(e.functions["flow"].function))
        self.dense_order = MAX_ORDER[self.method]
        self.stepper = backend.Stepper(
            self.model, memory=self.memory, x=self.x, xdot=self.xdot, work=self.work, sensitivities=self.s,
            sensitivity_rates=self.sdot, corrector=self.corrector,
        )  # fmt: skip

    def configure_run(
        self, options: Options, parameters: Array, directions: Array | None, scales: Array | None, *, suppress: bool
    ) -> None:
        """Apply options, parameters and directions of a run; whether algebraic variables stay out of the error test."""
        self.configure(options, parameters)
        e = self.equations
        self.absolute_data[: e.n] = options.absolute(e.variables)
        self._free_algebraic(self.absolute_data)
        if self.size > e.n:
            self.absolute_data[e.n :] = options.absolute(e.functionals)
        self.call("SVtolerances", options.rtol, self.absolute)
        if e.implicit:
            self.call("SetSuppressAlg", int(suppress))
        if directions is not None and scales is not None and self.s is not None:
            self.model.parameter_directions[:] = directions
            self.call("SetSensParams", None, (c_double * scales.size)(*scales), None)

    def begin(self, task: SegmentTask) -> None:
        """Start the segment of a task."""
        n, width = task.equations.n, 1 + task.equations.n
        self.model.memory[:] = task.memory
        self.model.zero_band[:], self.model.departure[:] = task.zero_band, task.departure
        self.x_data[:n], self.x_data[n:] = task.x0, task.integrals[: self.size - n]
        if self.xdot_data is not None:
            self.xdot_data[:n] = task.xdot0
            if self.size > n:  # IDA takes its first step from the rates, those of the integrals too
                self.xdot_data[n:] = self._flow(task.t0, task.x0, task.memory, self.model.parameters)[1]
        if task.sensitivities is not None:
            self._begin_sensitivities(task)
            width += n * len(self.s_data)
        if task.record == "dense":
            width = 3 + (self.dense_order + 1) * n
        flag = self.stepper.begin(
            task.t0, task.t_stop, task.until, task.record, task.t_eval, task.closed_end, width, self.dense_order
        )
        if flag < 0:
            self.fail(flag, task.t0)

    def _begin_sensitivities(self, task: SegmentTask) -> None:
        # a task with sensitivities has the other fields too, which its type does not say
        n, count = task.equations.n, self.size - task.equations.n
        self.model.memory_directions[:] = task.memory_directions
        for i, data in enumerate(self.s_data):
            data[:n], data[n:] = task.sensitivities[i], task.integral_sensitivities[i][:count]  # type: ignore[index]
        for i, data in enumerate(self.sdot_data):
            data[:n], data[n:] = task.sensitivity_rates[i], 0.0  # type: ignore[index]
