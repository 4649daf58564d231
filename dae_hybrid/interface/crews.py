"""Many runs on threads: native runs by compiled code, and single calls for the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from threading import Lock, Thread
from time import monotonic
from typing import NamedTuple

import numpy as np

from dae_hybrid.cancellation import Cancellation, carried, raise_if_cancelled
from dae_hybrid.conditions.sequences import codes_of, digest
from dae_hybrid.errors import DaeHybridError
from dae_hybrid.interface.prepared_case import CheckedCall, Single, gradients_of, trajectory_of
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.native_batch import DONE, LEFT_OUT, STEEP, Crew, Outcomes, Reason

#: share of the remaining work, divided by the threads, that a thread takes at once, and its limit
WORK_SHARE, MAX_RUNS_TAKEN = 0.25, 1000
#: single calls per thread that justify another thread
CALLS_PER_THREAD = 2
#: seconds between checks of whether threads have ended, and before unresponsive threads are abandoned
POLL_SECONDS, THREAD_TIMEOUT = 0.05, 5.0

type Failures = dict[int, DaeHybridError]
type Outputs = dict[int, dict[str, Array]]


class Completed(NamedTuple):
    """Results of many runs.

    `failures` are the errors of failed runs, `outputs` the outputs of single calls at given times, both by run.
    `reason` is the reason why all runs were single calls, if it is the same.
    """

    out: Outcomes
    failures: Failures
    outputs: Outputs
    reason: str | None


def carry_out(case: CheckedCall, given: Array, workers: int, cancellation: Cancellation | None = None) -> Completed:
    """Carry out runs on threads: native runs first, then single calls for the others.

    Raises
    ------
    Cancelled
        By `cancellation`, or by another one that this thread has entered; there is no result then.
    """
    with nullcontext() if cancellation is None else cancellation:
        out = case.outcomes(len(given))
        reason = by_crews(case, given, out, workers)
        failures, outputs = by_single_calls(case, given, out, workers)
    return Completed(out, failures, outputs, reason)


def by_crews(case: CheckedCall, given: Array, out: Outcomes, workers: int) -> str | None:
    """Carry out native runs; those not marked `done` are left to single calls.

    Return a reason if it concerns all runs; that of each run is in `out`.
    """
    crews: list[Crew] = []
    for _ in range(min(workers, len(given))):
        crew = case.crew()
        if isinstance(crew, str):
            return crew
        crew.aim(given, out)
        crews.append(crew)

    def stop() -> None:
        for crew in crews:
            crew.stop()

    share_out(len(given), [crew.run for crew in crews], stop)
    nothing = case.outcomes(0)
    for crew in crews:  # a crew that was stopped is not reused
        crew.aim(given[:0].copy(), nothing)
        case.rest(crew)
    if case.analysis is not None:
        judge_growth(case, given, out, workers)
    return None


def judge_growth(case: CheckedCall, given: Array, out: Outcomes, workers: int) -> None:
    """Where perturbations may have grown, check whether gradients agree at another tolerance."""
    grown = np.flatnonzero(out.done == STEEP)
    if not grown.size:
        return
    again, n_p = case.looser.outcomes(grown.size), case.system.parameters.size
    out.done[grown], out.reasons[grown] = LEFT_OUT, (Reason.AMPLIFYING, -1)
    by_crews(case.looser, given[grown], again, workers)
    for i, k in enumerate(grown.tolist()):
        if again.done[i] and case.is_determined(given[k, :n_p], out.gradients[k], again.gradients[i]):
            out.done[k] = DONE


def by_single_calls(case: CheckedCall, given: Array, out: Outcomes, workers: int) -> tuple[Failures, Outputs]:
    """Carry out the remaining runs one by one; return their errors, and outputs at given times."""
    left, n_p = np.flatnonzero(out.done != DONE).tolist(), case.system.parameters.size
    failures: Failures = {}
    outputs: Outputs = {}
    stopped: list[bool] = []

    def run(begin: int, end: int) -> None:
        for i in left[begin:end]:
            if stopped:
                return
            try:
                single = case.single(given[i, :n_p].copy(), given[i, n_p:].copy())
            except DaeHybridError as error:
                failures[i] = error
                error.release()
            else:
                take_over(case, single, i, out, outputs)

    threads = min(workers, len(left) // CALLS_PER_THREAD) or 1
    share_out(len(left), [run] * threads, lambda: stopped.append(True))
    return failures, outputs


def take_over(case: CheckedCall, single: Single, i: int, out: Outcomes, outputs: Outputs) -> None:
    """Store the result of a single call."""
    run, system = trajectory_of(single), case.system
    t, mode, x, m = run.final
    out.times[i], out.modes[i], out.n_events[i], out.n_steps[i] = t, mode, run.n_events, run.statistics["steps"]
    out.digests[i] = digest(codes_of(run, branches=case.analysis is not None))
    out.ends[i, : x.size], out.ends[i, out.ends.shape[1] - m.size :] = x, m
    for name in system.functionals.names:
        out.values[i, system.functionals[name]] = run.functionals[name]
    out.gradients[i] = gradients_of(single) if case.analysis is not None else np.nan
    if case.setup.t_eval is not None:
        outputs[i] = {name: run[name] for name in run.names}


def share_out(count: int, work: Sequence[Callable[[int, int], None]], stop: Callable[[], None]) -> None:
    """Divide `count` pieces of work among threads, one for each callable of `work`; a single one runs on this thread.

    An exception in one of them, or an interrupt or a cancellation of this thread, stops all of them and is raised.
    """
    if len(work) == 1:
        for begin, end in _chunks(count, 1):
            raise_if_cancelled()
            work[0](begin, end)
        return
    chunks, lock, raised = _chunks(count, len(work)), Lock(), list[BaseException]()

    def go_on(one: Callable[[int, int], None]) -> None:
        try:
            while not raised:
                with lock:
                    chunk = next(chunks, None)
                if chunk is None:
                    return
                raise_if_cancelled()
                one(*chunk)
        except BaseException as error:
            raised.append(error)

    threads = [Thread(target=carried(go_on), args=(one,), daemon=True) for one in work]
    try:
        for thread in threads:
            thread.start()
        while (alive := [thread for thread in threads if thread.is_alive()]) and not raised:
            raise_if_cancelled()
            alive[0].join(POLL_SECONDS)
    except BaseException as error:
        raised.insert(0, error)
        raise
    finally:
        patient_until = monotonic() + THREAD_TIMEOUT
        while raised and any(thread.is_alive() for thread in threads) and monotonic() < patient_until:
            stop()  # repeatedly: a thread may have started another piece
            threads[0].join(POLL_SECONDS)
    if raised:
        raise raised[0]


def _chunks(count: int, threads: int) -> Iterator[tuple[int, int]]:
    """Yield chunks of the work, from large to small."""
    begin = 0
    while begin < count:
        end = begin + max(1, min(MAX_RUNS_TAKEN, int(WORK_SHARE * (count - begin) / threads)))
        yield begin, end
        begin = end
