"""The step loop of `driver.c` in Python, for `interpreted`."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_double, c_int, c_long
from typing import TYPE_CHECKING, Any

import numpy as np

from dae_hybrid.integrator import Array

from .driver import FOUND_ROOT, PAUSED, REACHED_STOP, TOO_MUCH_WORK
from .library import ONE_STEP, load

if TYPE_CHECKING:
    from .interpreted import Model

EPS = float(np.finfo(float).eps)
POLISH = 10_000  # as in driver.c


class Stepper:
    """The same face as `driver.Stepper`; the loop of `dh_advance` in Python."""

    def __init__(self, model: Model, **handles: Any) -> None:
        e = model.equations
        self.model, self.handles = model, handles
        self.family = "IDA" if e.implicit else "CVode"
        self.library = load()
        self.completed = np.zeros(3 * e.n)
        self.t, self.steps, self.root = 0.0, 0, 0
        self._vectors = {name: model.vector(handles[name]) for name in ("x", "xdot", "work") if handles[name]}
        self._s = [model.vector(v) for v in handles["sensitivities"] or ()]

    def begin(
        self, t0: float, t_stop: float, record: str, t_eval: Array | None, closed_end: bool, width: int, order: int
    ) -> int:
        """Restart the solver from what stands in its vectors; SUNDIALS' return code."""
        self.t, self.t_stop, self.steps, self.record, self.closed_end = t0, t_stop, 0, record, closed_end
        self.t_eval = np.zeros(0) if t_eval is None else t_eval
        self.next_eval, self.width, self.order, self.failures = 0, width, order, (0, 0)
        self.loose = 0.0
        self._rows: list[Array] = []
        self.model.reset()
        h, implicit = self.handles, self.family == "IDA"
        flag = self._call("ReInit", t0, h["x"], *((h["xdot"],) if implicit else ()))
        if flag >= 0 and h["sensitivities"]:
            rates = (h["sensitivity_rates"],) if implicit else ()
            flag = self._call("SensReInit", h["corrector"], h["sensitivities"], *rates)
        if flag >= 0:
            flag = self._call("SetStopTime", t_stop)
        if flag >= 0 and record == "steps":
            if t_eval is None:
                self._record(t0)
            while self.next_eval < self.t_eval.size and self.t_eval[self.next_eval] <= t0:
                self._record(float(self.t_eval[self.next_eval]))
                self.next_eval += 1
        return flag

    def rows(self) -> Array:
        """What was recorded."""
        return np.array(self._rows) if self._rows else np.zeros((0, self.width))

    def advance(self, budget: int) -> int:
        """At most `budget` steps; SUNDIALS' return code, or PAUSED."""
        h, time = self.handles, c_double()
        for _ in range(budget):
            if self.family == "IDA":
                status = self.library.IDASolve(h["memory"], self.t_stop, byref(time), h["x"], h["xdot"], ONE_STEP)
            else:
                status = self.library.CVode(h["memory"], self.t_stop, h["x"], byref(time), ONE_STEP)
            self.t = time.value
            if status < 0:
                return int(status)
            self.steps += 1
            if self.record == "dense":
                self._record_dense()
            if status == FOUND_ROOT:
                self._polish()
                return self._finish(status)
            if status == REACHED_STOP:
                self.t = self.t_stop
                return self._finish(status)
            if self.record == "steps":
                if self.t_eval.size:
                    self._record_outputs(self.t, inclusive=True)
                else:
                    self._fetch(self.t)
                    self._record(self.t)
        return PAUSED

    def stop(self) -> int:
        """End the segment where it was paused."""
        self._fetch(self.t)
        self._complete(self.t)
        self._count_failures()
        return 0

    def _count_failures(self) -> None:
        self.failures = (self._scalar("GetNumErrTestFails", c_long), self._scalar("GetNumNonlinSolvConvFails", c_long))

    def _call(self, name: str, *arguments: Any) -> int:
        return int(getattr(self.library, self.family + name)(self.handles["memory"], *arguments))

    def _get(self, name: str, *arguments: Any) -> None:
        flag = self._call(name, *arguments)
        if flag < 0:
            raise AssertionError(f"{self.family}{name} returned {flag}")

    def _fetch(self, t: float) -> None:
        self._get("GetDky", t, 0, self.handles["x"])
        if "xdot" in self._vectors:
            self._get("GetDky", t, 1, self.handles["xdot"])
        if self._s:
            self._get("GetSensDky", t, 0, self.handles["sensitivities"])

    def _record(self, t: float) -> None:
        n = self.model.equations.n
        self._rows.append(np.concatenate(([t], *(v[:n] for v in (self._vectors["x"], *self._s)))))

    def _record_outputs(self, limit: float, *, inclusive: bool) -> None:
        while self.next_eval < self.t_eval.size:
            t = float(self.t_eval[self.next_eval])
            if t > limit or (t == limit and not inclusive):
                break
            self._fetch(t)
            self._record(t)
            self.next_eval += 1

    def _scalar(self, name: str, kind: Any) -> Any:
        value = kind()
        self._get(name, ctypes.byref(value))
        return value.value

    def _record_dense(self) -> None:
        n, row = self.model.equations.n, np.zeros(self.width)
        order = min(self._scalar("GetLastOrder", c_int), self.order)
        row[:3] = self._scalar("GetCurrentTime", c_double), self._scalar("GetLastStep", c_double), order
        for k in range(order + 1):
            self._get("GetDky", row[0], k, self.handles["work"])
            row[3 + k * n : 3 + (k + 1) * n] = self._vectors["work"][:n]
        self._rows.append(row)

    def _complete(self, t: float) -> None:
        values = self.model.evaluate("complete", t, self._vectors["x"])
        self.completed[:] = 0.0
        flat = np.concatenate(values)
        self.completed[: flat.size] = flat
        n, ny = self.model.equations.n, self.model.equations.n_differential
        scale = float(max(np.abs(flat[:n][ny:]).max(initial=0.0), np.abs(flat[n : n + ny]).max(initial=0.0)))
        off = float(np.abs(flat[ny:n] - self._vectors["x"][ny:n]).max(initial=0.0))
        if off > self.loose * scale:
            self.loose = off / scale
        self.loose = max(self.loose, float(flat[2 * n :].max(initial=0.0)))
        self._vectors["x"][:n] = self.completed[:n]
        if "xdot" in self._vectors:
            self._vectors["xdot"][:n] = self.completed[n : 2 * n]

    def _crossing(self, t: float) -> tuple[int, float, float]:
        """Which guard crossed, its value and its rate."""
        x = self._vectors["x"]
        value, rate = (self.model.evaluate(name, t, x)[0][self.root] for name in ("guards", "rates"))
        return self.root, float(value), float(rate)

    def _polish(self) -> None:
        found = (c_int * self.model.equations.n_guards)()
        self._get("GetRootInfo", found)
        self.root = next((i for i, f in enumerate(found) if f), len(found) - 1)
        now, h = self._scalar("GetCurrentTime", c_double), self._scalar("GetLastStep", c_double)
        t = self.t
        for _ in range(4):
            self._get("GetDky", t, 0, self.handles["x"])
            self._complete(t)
            _, value, rate = self._crossing(t)
            dt = -value / rate if rate else np.inf
            if not abs(t + dt - self.t) <= POLISH * EPS * (abs(now) + abs(h)) or t + dt > now or t + dt < now - h:
                break
            t += dt
            if abs(dt) <= EPS * abs(t):
                break
        self.t = float(t)

    def _finish(self, status: int) -> int:
        t = self.t
        self._record_outputs(t, inclusive=self.closed_end and status == REACHED_STOP)
        self._fetch(t)
        self._complete(t)
        if status == FOUND_ROOT:
            self.crossing = self._crossing(t)
        if self.record == "steps" and not self.t_eval.size:
            self._record(t)
        self._count_failures()
        return int(status)


class ForwardPass:
    """The same face as `driver.ForwardPass`; the loop of `dh_pass` in Python."""

    def __init__(self, model: Model, absolute: Array, **handles: Any) -> None:
        self.model, self.absolute, self.handles = model, absolute, handles
        self.family = "IDA" if model.equations.implicit else "CVode"
        self.library = load()

    def advance(self, t0: float, t1: float, rtol: float, limit: float, budget: int) -> tuple[int, float]:
        """Run to t1: SUNDIALS' return code, or PAUSED and the longest step that keeps the interpolation's limit."""
        h, tested = self.handles, self.model.equations.n_differential
        x, work = self.model.vector(h["x"])[:tested], self.model.vector(h["work"])[:tested]
        time, checkpoints, before, longest = c_double(t0), c_int(), t0, np.inf
        x0, rate0 = x.copy(), None
        for _ in range(budget):
            if self.family == "IDA":
                status = self.library.IDASolveF(
                    h["memory"], t1, byref(time), h["x"], h["xdot"], ONE_STEP, byref(checkpoints)
                )
            else:
                status = self.library.CVodeF(h["memory"], t1, h["x"], byref(time), ONE_STEP, byref(checkpoints))
            if status < 0:
                return int(status), 0.0
            t, step = time.value, time.value - before
            rate0 = self._dky(before, 1, work) if rate0 is None else rate0
            middle, rate = self._dky(before + step / 2, 0, work), self._dky(t, 1, work)
            cubic = (x0 + x) / 2 + step / 8 * (rate0 - rate)
            error = float(
                np.max(np.abs(cubic - middle) / (self.absolute[:tested] + rtol * np.abs(middle)), initial=0.0)
            )
            if not error <= limit:
                longest = min(longest, 0.9 * abs(step) * (limit / error) ** 0.25)
            x0, rate0, before = x.copy(), rate, t
            if status == REACHED_STOP or t >= t1:
                return (0 if longest == np.inf else PAUSED), longest
        return TOO_MUCH_WORK, 0.0

    def _dky(self, t: float, k: int, work: Array) -> Array:
        flag = getattr(self.library, f"{self.family}GetDky")(self.handles["memory"], t, k, self.handles["work"])
        if flag < 0:
            raise AssertionError(f"{self.family}GetDky returned {flag}")
        return work.copy()
