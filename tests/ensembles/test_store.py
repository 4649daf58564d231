"""Stores: the same call continues and gives the same bytes; everything else is refused; a full disk loses nothing."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any

import client
import deadly
import numpy as np
import pytest
import zarr

import dae_hybrid as dh
from dae_hybrid.ensembles import chunk_table, identity, scheduling
from dae_hybrid.ensembles.chunk_table import DONE, RUNNING, SUSPECT, WAITING, ChunkTable
from dae_hybrid.ensembles.failures import FailedRun, report_of
from dae_hybrid.ensembles.result import ARRAYS, TABLE
from dae_hybrid.ensembles.results_store import ZarrArrays


@pytest.fixture(scope="module")
def system() -> dh.HybridSystem:
    return client.decay()


@pytest.fixture(scope="module")
def whole(system: dh.HybridSystem, tmp_path_factory) -> Path:
    """The store of an undisturbed call."""
    path = tmp_path_factory.mktemp("whole") / "store"
    assert dh.ensemble(system, (0, 1), store=path, **client.CALL).complete
    return path


def files(path: Path, folder: str = ARRAYS) -> dict[str, str]:
    """Digests of the files of the arrays, or of another folder."""
    found = (path / folder).rglob("*")
    return {str(own.relative_to(path)): hashlib.sha256(own.read_bytes()).hexdigest() for own in found if own.is_file()}


def start(path: Path, executor: str = "threads") -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, client.__file__, path, executor], stdout=subprocess.PIPE, text=True)


def stop_after(count: int) -> Any:
    def tell(state: Any) -> None:
        if state.done >= count:
            raise StopIteration

    return tell


def check_refused(system: dh.HybridSystem, path: Path, text: str) -> None:
    """A store is refused by both ways to read it."""
    for read in (dh.Ensemble.open, lambda own: dh.ensemble(system, (0, 1), store=own, **client.CALL)):
        with pytest.raises(dh.StoreError, match=text):
            read(path)


def test_a_complete_store_is_read_without_a_run(system: dh.HybridSystem, whole: Path) -> None:
    before = {own: own.stat().st_mtime_ns for own in whole.rglob("*.zarr/**/c/*")}
    found = dh.ensemble(system, (0, 1), store=whole, executor="nonsense://never asked", **client.CALL)
    direct = client.direct(system)
    np.testing.assert_array_equal(found.values, direct.values)
    np.testing.assert_array_equal(found.gradients, direct.gradients)
    np.testing.assert_array_equal(found["x"], direct["x"])
    assert before == {own: own.stat().st_mtime_ns for own in whole.rglob("*.zarr/**/c/*")}


def test_a_store_opens_without_its_model(system: dh.HybridSystem, whole: Path) -> None:
    found = dh.Ensemble.open(whole)
    direct = client.direct(system)
    np.testing.assert_array_equal(found.values, direct.values)
    np.testing.assert_array_equal(found.final["x"], direct.final["x"])
    np.testing.assert_array_equal(found.t, [0.5, 1.0])
    np.testing.assert_array_equal(found.parameters[:, 0], client.CALL["parameters"]["k"])
    assert found.complete


def test_a_store_in_a_folder_that_cannot_be_written_to_is_read(
    system: dh.HybridSystem, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shutil.copytree(whole, tmp_path / "store with spaces, #1?")
    before = files(path, "")
    path.chmod(0o555)
    monkeypatch.setattr(chunk_table.os, "access", lambda *_: False)  # also for root, who may write anywhere
    opened, again = dh.Ensemble.open(path), dh.ensemble(system, (0, 1), store=path, **client.CALL)
    assert opened.complete
    assert opened.statistics == again.statistics
    np.testing.assert_array_equal(opened.values, again.values)
    assert files(path, "") == before
    path.chmod(0o755)


def test_a_store_of_another_format_is_refused(system: dh.HybridSystem, whole: Path, tmp_path: Path) -> None:
    path = shutil.copytree(whole, tmp_path / "store")
    attributes = path / ARRAYS / "zarr.json"
    attributes.write_text(attributes.read_text().replace('"format": 1', '"format": 99'))
    check_refused(system, path, "has format 99, and this version of the library reads format 1")


def test_a_call_that_was_ended_continues_and_gives_the_same_bytes(
    system: dh.HybridSystem, whole: Path, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    half = dh.ensemble(system, (0, 1), store=path, workers=1, progress=stop_after(1), **client.CALL)
    assert not half.complete
    kept = {own: own.stat().st_mtime_ns for own in path.rglob("values/c/*/0")}
    assert len(kept) == half.done.sum() / 3
    assert dh.ensemble(system, (0, 1), store=path, executor="processes", **client.CALL).complete
    assert {own: own.stat().st_mtime_ns for own in kept} == kept
    assert files(path) == files(whole)


@pytest.mark.operation
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_killed_client_loses_nothing_that_was_done(
    system: dh.HybridSystem, whole: Path, tmp_path: Path, executor: str
) -> None:
    path = tmp_path / "store"
    with start(path, executor) as process:
        assert process.stdout is not None
        while (line := process.stdout.readline().strip()) == "0":
            pass
        process.send_signal(signal.SIGKILL)
    assert 0 < int(line) < client.COUNT
    so_far = dh.Ensemble.open(path)
    assert int(line) <= so_far.done.sum() < client.COUNT
    done = [
        path / ARRAYS / f"values/c/{first // 3}/0" for first, _, state, *_ in so_far._table.chunks() if state == DONE
    ]
    kept = {own: own.stat().st_mtime_ns for own in done}
    found = dh.ensemble(system, (0, 1), store=path, **client.CALL)  # at once: not after the lease of the dead client
    assert found.complete
    assert kept == {own: own.stat().st_mtime_ns for own in done}
    assert files(path) == files(whole)


def test_files_are_no_longer_than_the_ensemble(system: dh.HybridSystem, tmp_path: Path) -> None:
    call = {"parameters": {"k": [1.0, 2.0, 3.0]}, "chunk": 10**6}
    assert dh.ensemble(system, (0, 1), store=tmp_path / "store", **call).complete
    assert sum(own.stat().st_size for own in tmp_path.rglob("c/*/0")) < 1000


def test_two_clients_share_a_store(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with start(path) as one, start(path) as other:
        said = [own.communicate()[0].split() for own in (one, other)]
    assert [own[-1] for own in said] == ["complete", "complete"]
    assert files(path) == files(whole)


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "tolerance": ({"rtol": 1e-6}, "option rtol: stored 1e-08, now 1e-06"),
    "number of runs": ({"parameters": {"k": np.ones(7)}}, "stored 120 runs, now 7"),
    "a parameter": (
        {"parameters": {"k": np.r_[np.linspace(0.5, 2.0, 120)[:-1], 3.0]}},
        r"'k' of run 119: stored 2.0, now 3.0 \(different in 1 run\)",
    ),
    "gradient": ({"gradient": "adjoint"}, "gradient: stored 'forward', now 'adjoint'"),
    "no gradient": ({"gradient": None}, "gradient: stored 'forward', now None"),
    "times": ({"t_eval": [0.5, 0.9]}, "t_eval: entry 1: stored 1.0, now 0.9"),
    "outputs": ({"outputs": []}, "outputs"),
    "initial values": ({"x0": {"x": 2.0}}, "x0: stored 0 entries, now 1"),
    "adapter": ({"adapter": "scipy", "gradient": "forward"}, "adapter: stored 'sundials', now 'scipy'"),
    "strictness": ({"strict": False}, "strict"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_store_of_another_call_is_refused(system: dh.HybridSystem, whole: Path, name: str) -> None:
    change, text = CHANGES[name]
    with pytest.raises(dh.StoreError, match=text):
        dh.ensemble(system, (0, 1), store=whole, **client.CALL | change)


def test_a_store_of_another_span_model_or_version_is_refused(whole: Path, system: dh.HybridSystem, monkeypatch) -> None:
    with pytest.raises(dh.StoreError, match=r"t_span: entry 1: stored 1\.0, now 2\.0"):
        dh.ensemble(system, (0, 2), store=whole, **client.CALL)
    m = dh.HybridModel("decay")
    k, x = m.parameter("k", 1.0), m.differential("x")
    m.initial(m.mode("run", ode={x: -k * x + 0.0625}), {x: 1.0})
    m.functional("G", terminal=x)
    with pytest.raises(dh.StoreError, match=r"another call: equations: [^;]*$"):
        dh.ensemble(m.build(), (0, 1), store=whole, **client.CALL)
    monkeypatch.setattr(identity, "_version", lambda name: "0.0")
    with pytest.raises(dh.StoreError, match=r"version of casadi: stored .*, now '0\.0'"):
        dh.ensemble(system, (0, 1), store=whole, **client.CALL)


def test_the_same_model_built_or_restored_again_is_the_same(whole: Path, system: dh.HybridSystem) -> None:
    import pickle

    for same in (client.decay(), pickle.loads(pickle.dumps(system))):
        assert dh.ensemble(same, (0, 1), store=whole, **client.CALL).complete


@pytest.mark.parametrize("wrt", [None, "x(0)"])
def test_a_store_knows_the_start(system: dh.HybridSystem, tmp_path: Path, wrt: str | None) -> None:
    call: dict[str, Any] = {"parameters": {"k": [1.0, 2.0]}, "store": tmp_path / "store"}
    first = dh.ensemble(dh.started(system, x0={"x": 2.0}, wrt=wrt), (0, 1), **call)
    np.testing.assert_allclose(first.values, 2 * dh.ensemble(system, (0, 1), parameters=call["parameters"]).values)
    again = dh.ensemble(dh.started(system, x0={"x": 2.0}, wrt=wrt), (0, 1), **call)
    np.testing.assert_array_equal(again.values, first.values)
    with pytest.raises(dh.StoreError, match=r"start|nominal"):
        dh.ensemble(dh.started(system, x0={"x": 3.0}, wrt=wrt), (0, 1), **call)


def test_a_folder_that_is_no_store_is_refused(system: dh.HybridSystem, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(dh.StoreError, match="not the store"):
        dh.ensemble(system, (0, 1), store=tmp_path, **client.CALL)
    assert [own.name for own in tmp_path.iterdir()] == ["letter.txt"]
    for path in (tmp_path / "letter.txt", tmp_path / "letter.txt" / "below"):
        with pytest.raises(dh.StoreError):
            dh.ensemble(system, (0, 1), store=path, **client.CALL)
    with pytest.raises(dh.StoreError, match="not the store"):
        dh.Ensemble.open(tmp_path / "missing")


@pytest.mark.parametrize("store", [5, b"store", "", "file://host/store"])
def test_a_store_must_be_a_path(system: dh.HybridSystem, store: Any) -> None:
    for read in (dh.Ensemble.open, lambda own: dh.ensemble(system, (0, 1), store=own, **client.CALL)):
        with pytest.raises(dh.OptionError, match="store must be the path of a directory"):
            read(store)


def test_a_store_is_found_in_the_home_directory(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(whole.parent))
    assert dh.Ensemble.open("~/store").path == whole


def test_damage_is_noticed(system: dh.HybridSystem, tmp_path: Path) -> None:
    path = tmp_path / "store"
    dh.ensemble(system, (0, 1), store=path, **client.CALL)
    own = path / ARRAYS / "values" / "c" / "2" / "0"
    content = bytearray(own.read_bytes())
    content[3] ^= 1
    own.write_bytes(content)
    with pytest.raises(dh.StoreError, match=r"(?i)checksum"):
        _ = dh.Ensemble.open(path).values
    (path / TABLE).write_bytes(b"not a database at all, but long enough to be looked at" * 100)
    with pytest.raises(dh.StoreError, match="table of chunks"):
        dh.Ensemble.open(path)


DAMAGE = {
    "tables missing": "drop table chunks",
    "a row missing": "delete from chunks where first = 6",
    "last row missing": "delete from chunks where first = 117",
    "rows that overlap": "update chunks set last = 12 where first = 6",
    "an unknown state": "update chunks set state = 'asleep' where first = 6",
    "no table of failures": "drop table failures",
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_table_of_chunks_is_refused(system: dh.HybridSystem, whole: Path, tmp_path: Path, name: str) -> None:
    path = shutil.copytree(whole, tmp_path / "store")
    with sqlite3.connect(path / TABLE) as db:
        db.execute(DAMAGE[name])
    db.close()
    check_refused(system, path, r"(?s)table of chunks.*Remove the store")


def test_runs_whose_files_are_lost_are_carried_out_again(system: dh.HybridSystem, whole: Path, tmp_path: Path) -> None:
    path = shutil.copytree(whole, tmp_path / "store")
    (path / ARRAYS / "values/c/3/0").unlink()
    (path / ARRAYS / "counts/c/5/0").unlink()
    (path / ARRAYS / "gradients/c/7/0/0").write_bytes(b"")
    with pytest.raises(dh.StoreError, match="lacks files of 3 chunks that are done"):
        dh.Ensemble.open(path)
    runs: list[int] = []
    assert dh.ensemble(
        system, (0, 1), store=path, progress=lambda state: runs.append(state.done), **client.CALL
    ).complete
    assert min(runs) >= client.COUNT - 9
    assert files(path) == files(whole)


def test_runs_to_be_repeated_are_neither_done_nor_failed(system: dh.HybridSystem, whole: Path, tmp_path: Path) -> None:
    path = shutil.copytree(whole, tmp_path / "store")
    table = ChunkTable(path / TABLE)
    assert table.counts() == {WAITING: 0, RUNNING: 0, SUSPECT: 0, DONE: client.COUNT}
    report = report_of(dh.WorkerLostError("killed"))
    with table._transaction() as db:
        table._store(db, [FailedRun(0, report)])
    table.close()
    (path / ARRAYS / "values/c/0/0").unlink()
    part = dh.ensemble(system, (0, 1), store=path, progress=stop_after(0), **client.CALL)
    opened = dh.Ensemble.open(path)
    assert np.isfinite(opened.values[opened.done]).all()
    assert opened.done.sum() == opened.statistics["done"] == part.done.sum()
    whole_again = dh.ensemble(system, (0, 1), store=path, **client.CALL)
    assert whole_again.ok.all()
    assert not whole_again.failures


def test_runs_are_repeated_without_writing_to_files_of_other_clients(tmp_path: Path) -> None:
    one, other = ChunkTable(tmp_path / "table"), ChunkTable(tmp_path / "table")
    one.lay_out(4, 2)
    cleared: list[tuple[int, int]] = []
    given_up = FailedRun(0, report_of(dh.WorkerLostError("killed")))
    for chunk in one.claim(2):
        one.lose(chunk, "killed", 2, is_certain=True)
    lost, _, later, _ = one.claim(4)
    one.finish([(lost, [given_up]), (later, [given_up._replace(run=2)])])
    other.retry_lost(lambda first, last: cleared.append((first, last)))
    assert not cleared  # `one` runs the other halves
    assert not other.n_failures()
    one.release()
    assert [(own.first, own.attempts) for own in other.claim(4)] == [(0, 0), (1, 1), (2, 0), (3, 1)]
    one.close()
    other.close()


@pytest.mark.parametrize("name", ["given", "given/c/0/0", "t", "t/c/0", "values"])
def test_files_that_no_run_restores_are_refused(
    system: dh.HybridSystem, whole: Path, tmp_path: Path, name: str
) -> None:
    path = shutil.copytree(whole, tmp_path / "store")
    lost = path / ARRAYS / name
    if lost.is_dir():
        shutil.rmtree(lost)
    else:
        lost.unlink()
    check_refused(system, path, f"lacks files of the array '{name.partition('/')[0]}'")


def test_results_of_failed_runs_alone_are_no_damage(tmp_path: Path, system: dh.HybridSystem) -> None:
    call = {"parameters": {"k": np.linspace(1, 2, 6)}, "max_steps": 1, "chunk": 2, "store": tmp_path / "store"}
    assert len(dh.ensemble(system, (0, 1), **call).failures) == 6
    assert not dh.Ensemble.open(tmp_path / "store").ok.any()
    assert len(dh.ensemble(system, (0, 1), **call).failures) == 6


def test_options_that_python_takes_for_equal_are_compared(system: dh.HybridSystem, tmp_path: Path) -> None:
    call = {"parameters": {"k": [1.0, 2.0]}, "x0": {"x": [0.0, 1.0]}, "store": tmp_path / "store"}
    dh.ensemble(system, (0, 1), gradient="adjoint", duality=1.0, **call)
    with pytest.raises(dh.StoreError, match=r"duality: stored 1\.0, now True"):
        dh.ensemble(system, (0, 1), gradient="adjoint", duality=True, **call)
    with pytest.raises(dh.StoreError, match=r"stored 0\.0, now -0\.0"):
        dh.ensemble(system, (0, 1), gradient="adjoint", duality=1.0, **call | {"x0": {"x": [-0.0, 1.0]}})


def test_functions_are_compared_by_their_content(tmp_path: Path) -> None:
    system = deadly.decay()
    call = {"parameters": {"k": [1.0, 2.0]}, "store": tmp_path / "store", **deadly.OPTIONS}
    dh.ensemble(system, (0, 1), preconditioner=deadly.preconditioner, **call)
    assert dh.ensemble(system, (0, 1), preconditioner=deadly.preconditioner, **call).complete
    with pytest.raises(dh.StoreError, match="option preconditioner"):
        dh.ensemble(system, (0, 1), preconditioner=partial(deadly.preconditioner), **call)
    with pytest.raises(dh.UnsupportedError, match="a function of a module"):
        dh.ensemble(system, (0, 1), preconditioner=lambda matrix: deadly.preconditioner(matrix), **call)


def test_a_full_disk_loses_nothing(system: dh.HybridSystem, whole: Path, tmp_path: Path, monkeypatch) -> None:
    path, write, left = tmp_path / "store", ZarrArrays.write, [5]

    class Full:
        def __init__(self, array: Any) -> None:
            self.array = array

        def __setitem__(self, key: Any, value: Any) -> None:
            if not left[0]:
                raise OSError(errno.ENOSPC, "No space left on device")
            left[0] -= 1
            self.array[key] = value

    def limited(self: ZarrArrays, first: int, rows: Any) -> None:
        time.sleep(0.3)  # until several chunks have landed
        arrays = self._arrays
        self._arrays = {name: Full(array) for name, array in arrays.items()}
        try:
            write(self, first, rows)
        finally:
            self._arrays = arrays

    with monkeypatch.context() as patch:
        patch.setattr(ZarrArrays, "write", limited)
        patch.setattr(scheduling, "PATIENCE", 120.0)
        begin = time.monotonic()
        with pytest.raises(dh.StoreError, match="No space left") as caught:
            dh.ensemble(system, (0, 1), store=path, **client.CALL)
        assert time.monotonic() - begin < 60.0  # chunks that have landed are not waited for
    assert caught.value.ensemble is not None
    assert caught.value.ensemble.done.sum() in (3, 6)  # four arrays per chunk, and the fifth write fails
    assert dh.ensemble(system, (0, 1), store=path, **client.CALL).complete
    assert files(path) == files(whole)


@pytest.mark.operation
def test_a_limit_on_the_table_of_chunks_loses_nothing(system: dh.HybridSystem, whole: Path, tmp_path: Path) -> None:
    """After four chunks no file of the process may grow beyond a size that the log of SQLite has reached."""
    path = tmp_path / "store"
    code = (
        "import resource, sys, client, dae_hybrid as dh\n"
        "from dae_hybrid.ensembles.results_store import ZarrArrays\n"
        "write, written = ZarrArrays.write, []\n"
        "def limited(self, first, rows):\n"
        "    write(self, first, rows)\n"
        "    written.append(first)\n"
        "    if len(written) == 4:\n"
        "        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "ZarrArrays.write = limited\n"
        "try:\n"
        "    dh.ensemble(client.decay(), (0, 1), store=sys.argv[1], workers=1, **client.CALL)\n"
        "except dh.StoreError as error:\n"
        "    print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, cwd=Path(client.__file__).parent, check=True
    )
    assert "table of chunks" in run.stdout
    assert 9 < dh.Ensemble.open(path).done.sum() < client.COUNT
    assert dh.ensemble(system, (0, 1), store=path, **client.CALL).complete
    assert files(path) == files(whole)


def test_leases_of_living_clients_are_kept_and_of_silent_ones_expire(tmp_path: Path, monkeypatch) -> None:
    one, other = ChunkTable(tmp_path / "table"), ChunkTable(tmp_path / "table")
    one.lay_out(10, 5)
    other.owner = f"another-host:1:{other.owner[-8:]}"
    held = other.claim(1)
    assert [(own.first, own.last) for own in held] == [(0, 5)]
    assert [(own.first, own.last) for own in one.claim(5)] == [(5, 10)]
    now = chunk_table.time.time
    monkeypatch.setattr(chunk_table.time, "time", lambda: now() + chunk_table.LEASE / 2)
    other.renew()
    monkeypatch.setattr(chunk_table.time, "time", lambda: now() + chunk_table.LEASE * 1.2)
    one.renew()
    assert not one.claim(5)
    monkeypatch.setattr(chunk_table.time, "time", lambda: now() + chunk_table.LEASE * 2)
    assert [(own.first, own.last) for own in one.claim(5)] == [(0, 5)]
    assert not other.holds(held[0])
    assert not other.lose(held[0], "late", 1, is_certain=True)
    other.finish([(held[0], [])])
    assert one.counts()[RUNNING] == 10
    one.close()
    other.close()


def test_claims_of_an_ended_call_of_this_process_are_free(tmp_path: Path) -> None:
    one, other = ChunkTable(tmp_path / "table"), ChunkTable(tmp_path / "table")
    one.lay_out(10, 5)
    assert one.claim(1)
    assert len(other.claim(5)) == 1
    other.release()
    one.close()
    with pytest.raises(dh.StoreError):  # as on a full disk
        one.release()
    assert len(other.claim(5)) == 2
    other.close()


@pytest.mark.skipif(sys.platform == "win32", reason="os.kill ends a process there")
def test_ctrl_c_while_a_claim_waits_leaves_no_transaction_open(tmp_path: Path) -> None:
    one = ChunkTable(tmp_path / "table")
    one.lay_out(10, 5)
    other = sqlite3.connect(tmp_path / "table", isolation_level=None, check_same_thread=False)
    other.execute("begin immediate")
    interrupt, let_go = Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)), Timer(0.5, other.execute, ("rollback",))
    interrupt.start()
    let_go.start()
    with pytest.raises(KeyboardInterrupt):
        one.claim(1)
    let_go.join()
    assert len(one.claim(2)) == 2
    other.close()
    one.close()


def test_halves_of_a_block_are_not_for_two_clients(tmp_path: Path) -> None:
    one, other = ChunkTable(tmp_path / "table"), ChunkTable(tmp_path / "table")
    other.owner = f"{socket.gethostname()}:1:other"  # a process that is alive
    one.lay_out(8, 8)
    (chunk,) = one.claim(1)
    assert not one.lose(chunk, "killed", 2, is_certain=True)
    (first,) = one.claim(1)
    assert (first.first, first.last) == (0, 4)
    assert not other.claim(1)
    one.finish([(first, [])])
    assert [(own.first, own.last) for own in other.claim(1)] == [(4, 8)]
    with sqlite3.connect(tmp_path / "table") as db:
        assert db.execute("select state from chunks order by first").fetchall() == [(DONE,), (RUNNING,)]
    db.close()
    one.close()
    other.close()


def test_a_run_has_a_status_only_if_all_its_results_are_written(
    system: dh.HybridSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = zarr.Array.__setitem__

    def ends(self: Any, rows: Any, values: Any) -> None:
        if self.basename == "gradients":
            raise OSError("killed")
        write(self, rows, values)

    monkeypatch.setattr(zarr.Array, "__setitem__", ends)
    with pytest.raises(dh.StoreError, match="killed"):
        dh.ensemble(system, (0, 1), store=tmp_path / "store", **client.CALL | {"gradient": "forward"})
    opened = dh.Ensemble.open(tmp_path / "store")
    assert np.isfinite(opened.values).any()
    assert not opened.done.any()
    assert not opened.ok.any()
