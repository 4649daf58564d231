"""Ensembles: the results are those of batches on every executor, and failures, ends and bad input are reported."""

from __future__ import annotations

import _thread
import copy
import pickle
import threading
import time
import warnings
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context

import client
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.cancellation import Cancellation, Cancelled
from dae_hybrid.ensembles import worker
from dae_hybrid.ensembles.chunk_table import RUNNING
from dae_hybrid.ensembles.scheduling import Campaign, EnsembleProgress

#: a call whose runs take for ever
LASTING = {"max_step": 1e-9, "max_steps": 10**12, "method": "erk"}
OPTIONS = {"rtol": 1e-8, "atol": 1e-11}
COUNT = 60
pool = partial(ProcessPoolExecutor, 2, get_context("spawn"))
EXECUTORS = {"threads": "threads", "processes": "processes", "a pool of threads": ThreadPoolExecutor(2), "pools": pool}


@pytest.fixture(scope="module")
def balls() -> dh.HybridSystem:
    """A ball that drifts in two directions, counts its impacts, and feels a measured wind."""
    m = dh.HybridModel("balls")
    e, g = m.parameter("e", 0.8), m.parameter("g", [9.81, 0.2])
    h, v, s = m.differential("h"), m.differential("v"), m.differential("s", size=2)
    wind, impacts = m.signal("wind", [0.0, 1.0, 2.0], [0.0, 0.5, 0.0]), m.memory("impacts", initial=0.0)
    fly = m.mode("fly", ode={h: v, v: -g[0], s: [wind, g[1]]})
    m.transition(fly, fly, guard=h, direction="falling", reset={v: -e * v}, memory={impacts: impacts + 1})
    m.initial(fly, {h: 1.0, v: 0.0, s: [0.0, 0.0]})
    m.functional("height", terminal=h)
    m.functional("way", terminal=s)
    return m.build()


@pytest.fixture(scope="module")
def table() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {"e": rng.uniform(0.7, 0.9, COUNT), "g": rng.uniform(5.0, 10.0, (COUNT, 2))}


@pytest.fixture(scope="module")
def stiff() -> dh.HybridSystem:
    """x' = -k x; runs of large k with small steps take for ever."""
    return client.decay()


@pytest.mark.parametrize("name", EXECUTORS)
def test_results_are_those_of_a_batch(balls: dh.HybridSystem, table: dict, name: str) -> None:
    call = {"x0": {"v": np.linspace(-1, 1, COUNT)}, "gradient": "adjoint", "wrt": "e", "t_eval": [0.5, 1.5], **OPTIONS}
    expected = dh.batch(balls, (0, 2), parameters=table, **call)
    found = dh.ensemble(
        balls, (0, 2), parameters=table, executor=EXECUTORS[name], chunk=7, outputs=["s", "wind", "impacts"], **call
    )
    assert found.complete
    assert found.ok.all()
    for attribute in ("parameters", "values", "gradients", "n_events", "n_steps", "digest", "native", "t_end", "t"):
        np.testing.assert_array_equal(getattr(found, attribute), getattr(expected, attribute))
    for key in expected.functionals:
        np.testing.assert_array_equal(found.functionals[key], expected.functionals[key])
        np.testing.assert_array_equal(found.gradient[key], expected.gradient[key])
    assert list(found.final) == list(expected.final)
    for key in expected.final:
        np.testing.assert_array_equal(found.final[key], expected.final[key])
    for key in ("s", "wind", "impacts"):
        np.testing.assert_array_equal(found[key], expected[key])
    assert found.wrt == expected.wrt
    with pytest.raises(dh.NotKeptError, match="'h'"):
        found["h"]
    assert found.single(3)["height"].value == found.functionals["height"][3]


def test_the_length_of_chunks_follows_from_the_time_of_a_run(balls: dh.HybridSystem, table: dict) -> None:
    many = {name: np.repeat(values, 40, axis=0) for name, values in table.items()}
    found = dh.ensemble(balls, (0, 2), parameters=many, workers=2, **OPTIONS)
    assert found.complete
    assert 8 <= found.statistics["chunks"] <= 100


def test_failed_runs_are_collected_with_their_parameters(stiff: dh.HybridSystem) -> None:
    k = np.linspace(0.1, 1000.0, 40)
    found = dh.ensemble(stiff, (0, 1), parameters={"k": k}, max_steps=100, method="erk", workers=2)
    expected = dh.batch(stiff, (0, 1), parameters={"k": k}, max_steps=100, method="erk")
    assert 0 < len(found.failures) < 40
    assert [own.run for own in found.failures] == np.flatnonzero(~expected.ok).tolist()
    np.testing.assert_array_equal(found.ok, expected.ok)
    np.testing.assert_array_equal(found.values, expected.values)
    for own in found.failures:
        assert own.parameters == {"k": k[own.run]}
        error = expected.errors[own.run]
        assert type(own.error) is type(error)
        assert str(own.error) == str(error)
    assert found.failures[-1].run == 39
    assert [own.run for own in found.failures[:2]] == [own.run for own in found.failures][:2]
    with pytest.raises(dh.StepLimitError):
        found.single(39)


def test_slices_of_failures_are_read_together(stiff: dh.HybridSystem) -> None:
    call = {"max_steps": 100, "method": "erk"}
    found = dh.ensemble(stiff, (0, 1), parameters={"k": np.linspace(500.0, 1000.0, 30)}, **call)
    statements: list[str] = []
    found._table._db.set_trace_callback(statements.append)
    assert [own.run for own in found.failures[::-2]] == list(range(29, 0, -2))
    assert len(statements) == 2
    with pytest.raises(IndexError):
        found.failures[30]


def test_results_are_pickled_and_copied(stiff: dh.HybridSystem, tmp_path) -> None:
    for store in (None, tmp_path / "store"):
        found = dh.ensemble(stiff, (0, 1), parameters={"k": [1.0, 2.0, -900.0]}, store=store, max_steps=100)
        for same in (pickle.loads(pickle.dumps(found)), copy.copy(found), copy.deepcopy(found)):
            np.testing.assert_array_equal(same.values, found.values)
            assert repr(same) == repr(found)
            assert str(same.failures[0].error) == str(found.failures[0].error)
            assert same.single(0).functionals["G"] == found.values[0, 0]
    restored = pickle.loads(pickle.dumps(dh.Ensemble.open(tmp_path / "store")))
    assert restored.complete


def test_exceptions_of_the_models_own_code_are_failures_of_a_run(stiff: dh.HybridSystem) -> None:
    def solver(matrix):
        raise ZeroDivisionError("of a user")

    found = dh.ensemble(
        stiff, (0, 1), parameters={"k": [1.0, 2.0]}, method="bdf", linear_solver="krylov", preconditioner=solver
    )
    assert [type(own.error) for own in found.failures] == [dh.IntegrationError] * 2
    assert "ZeroDivisionError" in found.failures[0].error.message


def test_progress_reports_and_may_end_it(stiff: dh.HybridSystem, tmp_path) -> None:
    seen: list[EnsembleProgress] = []

    def tell(state: EnsembleProgress) -> None:
        seen.append(state)
        if state.done > 2:
            raise StopIteration

    call = {"parameters": {"k": np.linspace(1, 2, 60)}, "chunk": 1, "max_step": 2e-5, "store": tmp_path / "store"}
    stop = Cancellation()
    found = dh.ensemble(stiff, (0, 1), workers=1, progress=tell, cancellation=stop, **call)
    assert not found.complete
    assert not stop.is_cancelled  # it may end other calls
    assert 2 < found.done.sum() < 60
    assert found.done.sum() >= seen[-1].done
    assert np.isnan(found.values[~found.done]).all()
    assert np.isfinite(found.values[found.done]).all()
    seen.clear()
    whole = dh.ensemble(stiff, (0, 1), progress=seen.append, **call)
    assert whole.complete
    assert seen[-1].done == seen[-1].total == 60
    assert seen[-1].remaining == 0.0


def test_progress_is_reported_and_ends_it_while_runs_are_timed(stiff: dh.HybridSystem) -> None:
    seen: list[EnsembleProgress] = []

    def tell(state: EnsembleProgress) -> None:
        seen.append(state)
        if len(seen) > 1:
            raise StopIteration

    found = dh.ensemble(stiff, (0, 1), parameters={"k": np.ones(100)}, progress=tell, **LASTING)
    assert not found.done.any()
    assert [own[:3] for own in seen] == [(0, 0, 100)] * 2


@pytest.mark.first(1, size="operation")
@pytest.mark.parametrize("executor", ["threads", "processes", "pools"])
def test_cancellation_reaches_running_chunks(stiff: dh.HybridSystem, executor: str) -> None:
    stop, began = Cancellation(), threading.Event()
    lasting = {"parameters": {"k": [1.0, 2.0, 3.0]}, **LASTING}

    def cancel() -> None:
        began.wait(60.0)
        time.sleep(2.0)
        stop.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    found = dh.ensemble(
        stiff, (0, 1), executor=EXECUTORS[executor], cancellation=stop, chunk=1,
        progress=lambda state: began.set(), **lasting,
    )  # fmt: skip
    end = time.monotonic()
    thread.join()
    assert not found.complete
    assert not found.done.any()
    assert time.monotonic() - end < 5.0
    # and the system is as good as before
    assert dh.simulate(stiff, (0, 1), **OPTIONS).functionals["G"] == pytest.approx(np.exp(-1.0), rel=1e-7)


def test_cancellation_reaches_the_runs_that_are_timed_before_there_is_a_store(stiff: dh.HybridSystem, tmp_path) -> None:
    stop = Cancellation()
    timer = threading.Timer(2.0, stop.cancel)
    timer.start()
    path = tmp_path / "new" / "store"
    call = {"parameters": {"k": np.ones(100)}, **LASTING}
    found = dh.ensemble(stiff, (0, 1), executor=pool, cancellation=stop, store=path, **call)
    timer.join()
    assert not found.done.any()
    assert np.isnan(found.values).all()
    assert list(path.parent.iterdir()) == []  # the length of its chunks would be a guess, for good


@pytest.mark.parametrize("count", [3, 100], ids=["in chunks", "while runs are timed"])
def test_a_cancellation_that_is_entered_ends_it(stiff: dh.HybridSystem, count: int) -> None:
    with Cancellation() as stop:
        threading.Timer(1.0, stop.cancel).start()
        with pytest.raises(Cancelled):
            dh.ensemble(stiff, (0, 1), parameters={"k": np.ones(count)}, **LASTING)


@pytest.mark.first(1, size="operation")
@pytest.mark.parametrize("executor", ["threads", "pools"])
def test_ctrl_c_stops_the_runs_that_are_timed(stiff: dh.HybridSystem, executor: str) -> None:
    threading.Timer(2.0, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        dh.ensemble(stiff, (0, 1), executor=EXECUTORS[executor], parameters={"k": np.ones(100)}, **LASTING)
    time.sleep(1.0)
    assert not [own.name for own in threading.enumerate() if own.name.startswith("ensemble")]


def test_an_ensemble_that_is_cancelled_at_the_start_has_no_results(stiff: dh.HybridSystem) -> None:
    stop = Cancellation()
    stop.cancel()
    found = dh.ensemble(stiff, (0, 1), parameters={"k": np.ones(100)}, cancellation=stop)
    assert not found.done.any()


def test_warnings_of_processes_arrive(balls: dh.HybridSystem) -> None:
    """At the second impact the end of the run coincides with an event: the derivative is one-sided."""
    e = 0.8
    fall = np.sqrt(2 / 9.81)
    call = {"parameters": {"e": [e, e]}, "functional": "height", "gradient": "forward", "strict": False, **OPTIONS}
    with pytest.warns(dh.DerivativeWarning) as direct:
        dh.batch(balls, (0, fall), **call)
    with pytest.warns(dh.DerivativeWarning) as found:
        dh.ensemble(balls, (0, fall), executor="processes", workers=1, **call)
    assert {str(own.message) for own in found} == {str(own.message) for own in direct}


def test_threads_of_a_worker_collect_their_own_warnings(stiff: dh.HybridSystem, monkeypatch) -> None:
    """As two threads of a Dask worker do, the first of which ends first."""
    barrier = threading.Barrier(2)

    def carry_out(case: object, given: np.ndarray, *_: object) -> None:
        barrier.wait(20.0)
        if given[0, 0] == 2.0:
            time.sleep(0.5)
        warnings.warn(f"of {given[0, 0]}", UserWarning, stacklevel=1)
        raise ZeroDivisionError

    found = dh.ensemble(stiff, (0, 1), parameters={"k": [1.0]})
    monkeypatch.setattr(worker, "carry_out", carry_out)
    recipe = worker.Recipe("key", "another process", (found._case, found.layout), {}, native=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = (warnings.showwarning, warnings._showwarnmsg_impl, warnings.filters[:])
        with ThreadPoolExecutor(2) as own:
            chunks = [own.submit(worker.run_chunk, recipe, np.array([[k]]), 0, "token") for k in (1.0, 2.0)]
        assert (warnings.showwarning, warnings._showwarnmsg_impl, warnings.filters[:]) == before
    assert [own.result().warnings for own in chunks] == [[(UserWarning, "of 1.0")], [(UserWarning, "of 2.0")]]


BAD = {
    "NaN": ({"e": [0.8, np.nan]}, dh.ParameterError, "row 1, 'e'"),
    "an unknown column": ({"f": [0.8]}, dh.ParameterError, "'f'"),
    "too many columns": (np.ones((3, 5)), dh.ParameterError, "shape"),
    "columns of different lengths": (
        {"e": [0.8, 0.7], "g": np.ones((3, 2))},
        dh.ParameterError,
        "same number",
    ),
    "no rows": ({"e": []}, dh.ParameterError, "no rows"),
    "words": ({"e": ["a"]}, dh.ParameterError, "numeric"),
}


def test_no_outputs_can_be_kept(balls: dh.HybridSystem) -> None:
    found = dh.ensemble(balls, (0, 2), parameters={"e": [0.8, 0.7]}, t_eval=[1.0], outputs=[])
    assert found.ok.all()
    with pytest.raises(dh.NotKeptError, match="'h'"):
        found["h"]


@pytest.mark.parametrize("name", BAD)
def test_a_bad_table_is_refused(balls: dh.HybridSystem, name: str, tmp_path) -> None:
    given, kind, text = BAD[name]
    with pytest.raises(kind, match=text):
        dh.ensemble(balls, (0, 2), parameters=given, store=tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_names_given_twice_are_refused(balls: dh.HybridSystem) -> None:
    import pandas as pd

    frame = pd.DataFrame([[0.8, 0.9]], columns=["e", "e"])
    for call in (dh.ensemble, dh.batch):
        with pytest.raises(dh.ParameterError, match="twice"):
            call(balls, (0, 2), parameters=frame)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"executor": "cluster"}, "executor"),
        ({"executor": 3}, "executor"),
        ({"executor": ThreadPoolExecutor}, "executor"),
        ({"executor": lambda: 3}, "executor"),
        ({"workers": 0}, "workers"),
        ({"workers": True}, "workers"),
        ({"chunk": 0}, "chunk"),
        ({"retry_lost": True}, "store="),
        ({"progress": 3}, "progress"),
        ({"cancellation": threading.Event()}, "cancellation"),
        ({"outputs": "h"}, "t_eval"),
        ({"outputs": "q", "t_eval": [1.0]}, "'q'"),
        ({"outputs": ["h", "h"], "t_eval": [1.0]}, "each once"),
        ({"outputs": 3, "t_eval": [1.0]}, "got 3"),
        ({"outputs": [["h"]], "t_eval": [1.0]}, "must name"),
        ({"keep": "all"}, "keep"),
    ],
    ids=range(16),
)
def test_bad_arguments_are_refused(balls: dh.HybridSystem, given: dict, text: str) -> None:
    with pytest.raises(dh.OptionError, match=text):
        dh.ensemble(balls, (0, 2), parameters={"e": [0.8, 0.7]}, **given)


def test_a_wrong_address_is_refused_soon(balls: dh.HybridSystem) -> None:
    import distributed

    with pytest.raises(dh.EnsembleError, match="no Dask scheduler"):
        dh.ensemble(balls, (0, 2), parameters={"e": [0.8, 0.7]}, executor="nonsense://127.0.0.1:9")
    with pytest.raises(ValueError, match="No clients found"):  # which xarray would use
        distributed.default_client()


def test_a_function_that_creates_no_executor_is_told(balls: dh.HybridSystem) -> None:
    with pytest.raises(dh.EnsembleError, match="creates the executor has failed: TypeError"):
        dh.ensemble(balls, (0, 2), parameters={"e": [0.8, 0.7]}, executor=lambda count: ThreadPoolExecutor(count))


def test_an_executor_that_is_shut_down_is_refused(balls: dh.HybridSystem) -> None:
    executor: Executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(dh.EnsembleError, match="does not take work"):
        dh.ensemble(balls, (0, 2), parameters={"e": [0.8, 0.7]}, executor=executor)


def test_models_that_cannot_be_sent_run_on_threads_only(stiff: dh.HybridSystem) -> None:
    call = {"method": "bdf", "linear_solver": "krylov", "preconditioner": lambda matrix: lambda b: b}
    with pytest.raises(dh.UnsupportedError, match="executor='threads'"):
        dh.ensemble(stiff, (0, 1), parameters={"k": [1.0, 2.0]}, executor="processes", **call)
    assert dh.ensemble(stiff, (0, 1), parameters={"k": [1.0, 2.0]}, **call).ok.all()


def test_workers_of_other_versions_are_refused(stiff: dh.HybridSystem, monkeypatch) -> None:
    def other() -> dict[str, str]:
        return dict.fromkeys(("dae_hybrid", "casadi"), "0.0")

    of = worker.Recipe.of
    monkeypatch.setattr(
        worker.Recipe, "of", lambda *args, **named: of(*args, **named)._replace(versions=other())
    )  # fmt: skip
    with pytest.raises(dh.EnsembleError, match="other versions"):
        dh.ensemble(stiff, (0, 1), parameters={"k": [1.0, 2.0]}, executor="processes", workers=1)


def test_ctrl_c_ends_it(stiff: dh.HybridSystem, tmp_path) -> None:
    def tell(state: EnsembleProgress) -> None:
        if state.done:
            raise KeyboardInterrupt

    call = {"parameters": {"k": np.linspace(1, 2, 60)}, "max_step": 2e-5, "chunk": 1, "store": tmp_path / "store"}
    with pytest.raises(KeyboardInterrupt):
        dh.ensemble(stiff, (0, 1), progress=tell, **call)
    so_far = dh.Ensemble.open(tmp_path / "store")
    assert 0 < so_far.done.sum() < 60
    with pytest.raises(dh.OptionError, match="without their model"):
        so_far.single(0)
    assert dh.ensemble(stiff, (0, 1), **call).complete


def test_a_second_ctrl_c_leaves_no_claims(stiff: dh.HybridSystem, tmp_path, monkeypatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    call = {"parameters": {"k": np.linspace(1, 2, 30)}, "max_step": 1e-4, "chunk": 3, "store": tmp_path / "store"}
    monkeypatch.setattr(Campaign, "_stop", interrupt)
    with pytest.raises(KeyboardInterrupt):
        dh.ensemble(stiff, (0, 1), progress=interrupt, **call)
    assert RUNNING not in {state for _, _, state, *_ in dh.Ensemble.open(tmp_path / "store")._table.chunks()}


@pytest.mark.operation
def test_nothing_is_warned_of_and_no_thread_stays(balls: dh.HybridSystem, table: dict) -> None:
    before = {thread.name for thread in threading.enumerate()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dh.ensemble(balls, (0, 2), parameters=table, executor="processes", workers=2)
        dh.ensemble(balls, (0, 2), parameters=table)
    time.sleep(0.2)
    assert not {thread.name for thread in threading.enumerate() if thread.name.startswith("ensemble")} - before
