"""The step loop of `steps.c` in Python, for `interpreted`."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_double, c_int, c_long
from typing import TYPE_CHECKING, Any

import numpy as np

from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.numerics.crossings import GuardSample, Pace, Scan, Turn, Turns, is_calm
from dae_hybrid.port.failure_messages import unresolved_guard

from .driver import AT_ROUNDING, FOUND_ROOT, PAUSED, REACHED_STOP, SINGULAR, STALLED, STUCK
from .header import CONSTANTS
from .library import ONE_STEP, load

if TYPE_CHECKING:
    from .interpreted import EquationCallbacks

POLISH, FROM_END, FROM_START, FINE, NEARBY = (
    CONSTANTS[name] for name in ("POLISH", "FROM_END", "FROM_START", "FINE", "NEARBY")
)


class _CallFailed(AssertionError):
    """A SUNDIALS function that succeeds after any completed step has failed."""

    def __init__(self, name: str, flag: int) -> None:
        super().__init__(f"{name} returned {flag}")
        self.flag = flag


class ForwardLoop:
    """Interface of `compiled.ForwardLoop`, with the loop of `dh_advance` in Python."""

    def __init__(self, model: EquationCallbacks, **handles: Any) -> None:
        e = model.equations
        self.model, self.handles = model, handles
        self.family = "IDA" if e.implicit else "CVode"
        self.library = load()
        self.completed = np.zeros(3 * e.n)
        self.t, self.steps, self.root = 0.0, 0, 0
        self.take_turns()
        self._vectors = {name: model.vector(handles[name]) for name in ("x", "xdot", "work") if handles[name]}
        self._s = [model.vector(v) for v in handles["sensitivities"] or ()]

    def prepare(
        self, t_stop: float, until: float, record: str, t_eval: Array | None, closed_end: bool, width: int, order: int,
        path_width: int,
    ) -> None:  # fmt: skip
        """Set the quantities to record; with a `path_width` also the path."""
        self.t_stop, self.until, self.record, self.closed_end = t_stop, until, record, closed_end
        self.every_step, self.t_eval = t_eval is None, np.zeros(0) if t_eval is None else t_eval
        self.width, self.order, self.path_width = width, order, path_width
        self.next_eval = 0
        self._rows: list[Array] = []
        self._path: list[Array] = []

    def begin(self, t0: float) -> int:
        """Restart the solver from its vectors; return SUNDIALS' code."""
        self.t, self.steps, self.failures, self.loose = t0, 0, (0, 0), 0.0
        self._longest, self._blurred = 0.0, False
        self.model.reset()
        self.model.forget_spread()
        self.model.root_calls = 0
        self._band, self._pace = self.model.zero_band.copy(), Pace(self.model.equations.n_guards)
        self.model.take_returned()
        h, implicit = self.handles, self.family == "IDA"
        flag = self._call("ReInit", t0, h["x"], *((h["xdot"],) if implicit else ()))
        if flag >= 0 and h["sensitivities"]:
            rates = (h["sensitivity_rates"],) if implicit else ()
            flag = self._call("SensReInit", h["corrector"], h["sensitivities"], *rates)
        if flag >= 0:
            flag = self._call("SetStopTime", self.t_stop)
        if self.model.equations.n_guards:
            self._before = self._guards(t0, here=True)
            self._past = [(t0, self._before.tolist())]
        if flag >= 0 and self.record == "steps":
            if self.every_step:
                self._record(t0)
            while self.next_eval < self.t_eval.size and self.t_eval[self.next_eval] <= t0:
                self._record(float(self.t_eval[self.next_eval]))
                self.next_eval += 1
        return flag

    def take_turns(self) -> list[Turn]:
        """See `compiled.ForwardLoop.take_turns`."""
        e = self.model.equations
        found, self._turns = getattr(self, "_turns", None), Turns(e.n_guards - e.n_singularities)
        return [] if found is None else [turn for _, turn in found.found]

    def rows(self, first: int = 0) -> Array:
        """The recorded rows."""
        return np.array(self._rows[first:]) if self._rows[first:] else np.zeros((0, self.width))

    def path(self, first: int = 0) -> Array | None:
        """The path, or None if it was not kept."""
        if not self.path_width:
            return None
        return np.array(self._path[first:]) if self._path[first:] else np.zeros((0, self.path_width))

    def advance(self, budget: int) -> int:
        """Take at most `budget` steps; return SUNDIALS' code, or PAUSED."""
        h, time, stuck = self.handles, c_double(), 0
        for _ in range(budget):
            before = self.t
            if self.family == "IDA":
                status = self.library.IDASolve(h["memory"], self.t_stop, byref(time), h["x"], h["xdot"], ONE_STEP)
            else:
                status = self.library.CVode(h["memory"], self.t_stop, h["x"], byref(time), ONE_STEP)
            self.t = time.value
            if status < 0:
                return int(status)
            self.steps += 1
            stuck = stuck + 1 if self.t == before else 0
            blurred = 0 if status in (REACHED_STOP, FOUND_ROOT) else self._at_rounding(self.t - before)
            if stuck >= STUCK or blurred == STALLED:
                return STALLED
            if self.path_width:
                self._path.append(self._polynomial())
            if self.record == "dense":
                self._rows.append(self._polynomial())
                if self.t >= self.until:
                    return self._finish(REACHED_STOP)
            try:
                found = self._look(before, status)
            except _CallFailed as failure:
                return failure.flag
            if found:
                e = self.model.equations
                if self.root >= e.n_guards - e.n_singularities:
                    self._record_outputs(self.t, inclusive=False)
                    self._count_failures()
                    return SINGULAR
                self._polish()
                return self._finish(FOUND_ROOT)
            if status == REACHED_STOP:
                self.t = self.t_stop
                return self._finish(status)
            if self.record == "steps":
                if self.t_eval.size:
                    self._record_outputs(self.t, inclusive=True)
                else:
                    self._fetch(self.t)
                    self._record(self.t)
            if blurred:
                return blurred
        return PAUSED

    def _at_rounding(self, moved: float) -> int:
        """See `at_rounding` in steps.c."""
        rounding = EPS * abs(self.t)
        self._longest = max(self._longest, moved)
        if moved > FINE * rounding:
            return STALLED if self._blurred else 0
        if moved >= rounding or self._longest <= FINE * rounding or self._blurred:
            return 0
        self._blurred = True
        return AT_ROUNDING

    def stop(self) -> int:
        """End the segment where it was paused."""
        try:
            self._fetch(self.t)
            self._complete(self.t)
        except _CallFailed as failure:
            return failure.flag
        self._count_failures()
        return 0

    def move_to(self, t: float) -> None:
        """Set the current time to one within the last step."""
        self.t = t

    def _count_failures(self) -> None:
        self.failures = (self._scalar("GetNumErrTestFails", c_long), self._scalar("GetNumNonlinSolvConvFails", c_long))

    def _call(self, name: str, *arguments: Any) -> int:
        return int(getattr(self.library, self.family + name)(self.handles["memory"], *arguments))

    def _get(self, name: str, *arguments: Any) -> None:
        flag = self._call(name, *arguments)
        if flag < 0:
            raise _CallFailed(f"{self.family}{name}", flag)

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

    def _polynomial(self) -> Array:
        n = self.model.equations.n
        row = np.zeros(3 + (self.order + 1) * n)
        order = min(self._scalar("GetLastOrder", c_int), self.order)
        row[:3] = self._scalar("GetCurrentTime", c_double), self._scalar("GetLastStep", c_double), order
        for k in range(order + 1):
            self._get("GetDky", row[0], k, self.handles["work"])
            row[3 + k * n : 3 + (k + 1) * n] = self._vectors["work"][:n]
        return row

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
        """Index of the guard that crossed, its value and its rate."""
        x = self._vectors["x"]
        value, rate = (self.model.evaluate(name, t, x)[0][self.root] for name in ("guards", "rates"))
        return self.root, float(value), float(rate)

    def _guards(self, t: float, *, here: bool = False) -> Array:
        """Guards at the current state if `here`, else at the step's polynomial."""
        if not here:
            self._get("GetDky", t, 0, self.handles["work"])
        values = self.model.evaluate("guards", t, self._vectors["x" if here else "work"])[0]
        self.model.calls["guard_calls"] += 1
        return np.where(np.abs(values) <= self._band, 0.0, values)

    def _glance(self, t: float, *, here: bool = False) -> GuardSample:
        values = self._guards(t, here=here)
        return GuardSample(t, values, self.model.evaluate("rates", t, self._vectors["x" if here else "work"])[0])

    def _is_calm(self) -> bool:
        times, values = zip(*self._past, strict=True)
        return is_calm(times, values, lambda t: self._guards(t).tolist(), self._pace)

    def _look(self, begin: float, status: int) -> bool:
        """Whether a guard crossed zero within the last step; self.t is then the approximate time."""
        e = self.model.equations
        if not e.n_guards or self.record == "dense":
            return False
        self._past = [(self.t, self._guards(self.t, here=True).tolist()), *self._past[:2]]
        self._turns.at_end(*zip(*self._past, strict=True))
        returned = self.model.take_returned()
        if status != FOUND_ROOT and returned is None and self.t - begin <= e.resolution and self._is_calm():
            self._before, self._band = np.array(self._past[0][1]), self.model.zero_band.copy()
            return False
        end = self._glance(self.t, here=True)
        if status == FOUND_ROOT:
            found = (c_int * e.n_guards)()
            self._get("GetRootInfo", found)
            self.root = next((i for i, f in enumerate(found) if f), e.n_guards - 1)
            end.values[[bool(f) for f in found]] = 0.0
        start = GuardSample(begin, self._before, self._glance(begin).rates)
        self._turns.between(start, end)
        scan = Scan(
            np.array(e.directions), self._band, np.zeros(e.n_guards), self._glance,
            lambda t, i: float(self._guards(t)[i]), lambda returned, t: None,
            e.n_singularities,
        )  # fmt: skip
        self._before = end.after(start).values
        end = GuardSample(end.t, self._before, end.rates)
        crossing = scan.first(start, end, e.resolution, self._pace) if self.t > begin else None
        if returned is not None and crossing is None:
            # it has left in its direction; its return does not concern its transition
            if e.directions[returned] * self.model.leaving_sign[returned] <= 0:
                raise unresolved_guard(returned, mode=e.name, time=self.t)
            self.model.zero_band[returned] = 0.0
        self._band = self.model.zero_band.copy()
        if crossing is not None:
            self.root, self.t = crossing
        return crossing is not None or status == FOUND_ROOT

    def _polish(self) -> None:
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


class BackwardLoop:
    """Interface of `compiled.BackwardLoop`, with the loop of `dh_back` in Python."""

    def __init__(self, model: EquationCallbacks, **handles: Any) -> None:
        self.model, self.handles = model, handles
        self.family = "IDA" if model.equations.implicit else "CVode"
        self.library = load()
        self.t, self.steps, self.samples = 0.0, 0, np.zeros((0, 0))

    def begin(self, t: float, t_stop: float, max_step: float, longest: Array, t_eval: Array) -> int:
        """Start the solver at t from its vectors; return SUNDIALS' code."""
        self.t, self.begun, self.t_stop, self.steps, self.max_step, self.bound = t, t, t_stop, 0, max_step, -1.0
        self.longest, self.t_eval, self.next_eval = longest, t_eval, 0
        self.samples = np.zeros((t_eval.size, self.model.equations.n))
        self._start_values = self.model.vector(self.handles["x"]).copy()
        self.anchor, self.clock, self.cautious = FROM_END, 0.0, False
        self.model.set_clocks(t)
        return self._start()

    def _start(self) -> int:
        """See `start_back` in steps.c."""
        h, model, from_end = self.handles, self.model, self.anchor == FROM_END
        model.origin, model.earliest = self.begun if from_end else self.t_stop, self.t_stop
        self.target = self.toward = model.start_of(0) if from_end else 0.0
        if self.cautious and self.family == "CVode":
            self.toward = self.clock + NEARBY * (self.target - self.clock)
        flag = self._flag("ReInit", self.clock, h["x"], *((h["xdot"],) if self.family == "IDA" else ()))
        if flag >= 0 and model.weights.size:
            flag = self._flag("QuadReInit", h["integrals"])
        return flag if flag < 0 else self._flag("SetStopTime", self.target)

    def _restart(self, anchor: int) -> int:
        """See `restart_back` in steps.c."""
        h, model, e = self.handles, self.model, self.model.equations
        if not self.steps:
            model.vector(h["x"])[:] = self._start_values
        elif model.weights.size and (flag := self._flag("GetQuad", byref(c_double()), h["integrals"])) < 0:
            return flag
        if self.family == "IDA":
            rates, ny, x = model.vector(h["xdot"]), e.n_differential, model.vector(h["x"])
            rates[: e.n], rates[e.n] = -model.adjoint(self.clock, x), model.guide(self.clock, x)
            rates[ny : e.n] = 0.0
        self.anchor = anchor
        i, since = model.row(self.clock)
        model.set_clocks(self.begun if anchor == FROM_END else None)
        self.clock = model.start_of(i) + since
        return self._start()

    def _longest_step(self, clock: float) -> float:
        """See `longest_step` in steps.c."""
        i, since = self.model.row(clock)
        return float(min(self.longest[i], self.longest[i - 1] + since / 2) if i else self.longest[0])

    def advance(self, budget: int) -> int:
        """Take at most `budget` steps; return SUNDIALS' code, or PAUSED."""
        h, time, n, stuck = self.handles, c_double(), self.model.equations.n, 0
        last = self.steps + budget
        while self.steps < last:
            ahead = c_double()  # see `dh_back` in steps.c
            if self.steps:
                self._call("GetCurrentStep", byref(ahead))
            most = min(self.max_step, self._longest_step(self.clock))
            stop = max(self.target, self.clock - most)
            short = self.steps > 0 and abs(ahead.value) > most and stop > self.target
            self._call("SetStopTime", stop if short else self.target)
            bound = min(self.max_step, self._longest_step(self.clock - most if short else self.clock + ahead.value))
            if bound != self.bound:
                self._call("SetMaxStep", bound if np.isfinite(bound) else 0.0)
                self.bound = bound
            if self.family == "IDA":
                status = self.library.IDASolve(h["memory"], self.toward, byref(time), h["x"], h["xdot"], ONE_STEP)
            else:
                status = self.library.CVode(h["memory"], self.toward, h["x"], byref(time), ONE_STEP)
            if status == REACHED_STOP and short:
                status = 0
            before, moved = self.clock, 0.0 if status < 0 else abs(time.value - self.clock)
            blurred = status != REACHED_STOP and moved < FINE * EPS * abs(time.value if self.steps else self.toward)
            if not self.steps and not self.cautious and blurred and not self.model.has_failed:
                self.cautious = True
                flag = self._restart(FROM_END)
                if flag < 0:
                    return flag
                continue
            if status < 0:
                return int(status)
            self.clock, self.toward, self.steps = time.value, self.target, self.steps + 1
            self.t = self.t_stop if status == REACHED_STOP else max(self.model.origin + self.clock, self.t_stop)
            stuck = stuck + 1 if moved == 0 else 0
            if stuck >= STUCK:
                return STALLED
            asked = self.t_eval - self.model.origin
            while self.next_eval < asked.size and (asked[self.next_eval] >= self.clock or status == REACHED_STOP):
                at = float(np.clip(asked[self.next_eval], self.clock, before))  # to the rounding of time
                self._call("GetDky", at, 0, h["sample"])
                self.samples[self.next_eval] = self.model.vector(h["sample"])[:n]
                self.next_eval += 1
            if status == REACHED_STOP:
                return int(status)
            anchor = FROM_END if self.t - self.t_stop > (self.begun - self.t_stop) / 2 else FROM_START
            flag = self._restart(anchor) if blurred and anchor != self.anchor else 0
            if flag < 0:
                return flag
        return PAUSED

    def _flag(self, name: str, *arguments: Any) -> int:
        return int(getattr(self.library, f"{self.family}{name}")(self.handles["memory"], *arguments))

    def _call(self, name: str, *arguments: Any) -> None:
        flag = self._flag(name, *arguments)
        if flag < 0:
            raise AssertionError(f"{self.family}{name} returned {flag}")
