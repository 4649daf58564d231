"""Costs of ensembles: throughput, kills, restarts, memory of the client, and growth to a million sets.

    python benchmarks/ensembles.py [--count 100000] [--repeats 3] [--only throughput kills] [--write] [--pictures]

Every ensemble runs in a client process of its own (`ensemble_client.py`). ``--write`` puts the tables into
docs/ensembles.md, ``--pictures`` draws docs/ensembles/.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from dask_cluster import Cluster, Relay
from ensemble_client import SPAN, ball, table
from measuring import put

import dae_hybrid as dh
from dae_hybrid.ensembles.scheduling import Campaign
from dae_hybrid.report.plotting import new_figure, save
from dae_hybrid.tables import align

ROOT = Path(__file__).resolve().parent.parent
PAGE, PICTURES = ROOT / "docs" / "ensembles.md", ROOT / "docs" / "ensembles"
CLIENT = [sys.executable, str(ROOT / "benchmarks" / "ensemble_client.py")]
GRADIENT = {"gradient": "adjoint"}
type Rows = list[list[str]]


def client(**task: Any) -> dict[str, Any]:
    """Run an ensemble in a client process; return its costs, and the runs that were done when it began."""
    done = subprocess.run([*CLIENT, json.dumps(task)], stdout=subprocess.PIPE, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return lines[-1] | {"first": lines[0].get("done", 0)}


def killed(**task: Any) -> dict[str, Any]:
    """Run an ensemble in a client process that is killed when half of the runs are done; return its last report."""
    process = subprocess.Popen([*CLIENT, json.dumps(task)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    last: dict[str, Any] = {}
    for line in process.stdout:
        last = json.loads(line)
        if last["done"] >= task["count"] / 2:
            process.send_signal(signal.SIGKILL)
            break
    process.wait()
    process.stdout.close()
    return last


@contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@contextmanager
def executors(workers: int) -> Iterator[dict[str, tuple[Any, Callable[[], float]]]]:
    """What runs chunks, and a clock of the CPU time of processes that are not children of the client."""
    with Cluster(workers) as cluster:
        names = {"threads": "threads", "processes": "processes", "ProcessPoolExecutor": "pool"}
        found: dict[str, tuple[Any, Callable[[], float]]] = {name: (own, lambda: 0.0) for name, own in names.items()}
        yield found | {"Dask": (cluster.address, lambda: cluster.cpu()[1])}


# -- throughput ---------------------------------------------------------------------------------------------------


def throughput(count: int, repeats: int) -> Rows:
    """Time and CPU time of a run, from the difference of a large and a small ensemble, and the time of the start."""
    rows = [["runs on", "workers", "store", "start, s", "us a run", "runs/s", "relative to dh.batch", "CPU, us a run"]]
    for workers in (1, 2):
        with executors(workers) as ways:
            tasks = {("dh.batch", "no"): ("batch", lambda: 0.0)}
            tasks |= {(name, store): way for name, way in ways.items() for store in ("no", "yes")}
            least = _least(tasks, workers, (count // 10, count), repeats)
        base = 0.0
        for (name, store), (small, large) in least.items():
            more = count - count // 10
            each, cpu = ((large[i] - small[i]) / more for i in range(2))
            base = base or each
            start = max(0.0, small[0] - each * (count // 10))
            rows.append(
                [name, str(workers), store, f"{start:.1f}", f"{1e6 * each:.0f}", f"{1 / each:.0f}",
                 f"{base / each:.2f}", f"{1e6 * cpu:.0f}"]
            )  # fmt: skip
    return rows


def _least(
    tasks: dict[tuple[str, str], tuple[Any, Callable[[], float]]], workers: int, counts: tuple[int, int], repeats: int
) -> dict[tuple[str, str], np.ndarray]:
    """Least wall and CPU seconds of each task for each number of runs."""
    found = {key: np.full((2, 2), np.inf) for key in tasks}
    for _ in range(repeats):
        for (name, store), (executor, clock) in tasks.items():
            for i, count in enumerate(counts):
                own: dict[str, Any] = {"workers": workers} if name != "Dask" else {}
                with folder() as path:
                    own["store"] = str(path / "s") if store == "yes" else None
                    before = clock()
                    got = client(count=count, executor=executor, **own, **GRADIENT)
                    cpu = got["client"] + got["children"] + clock() - before
                best = found[name, store]
                best[i] = np.minimum(best[i], (got["seconds"], cpu))
    return found


# -- kills --------------------------------------------------------------------------------------------------------


def kills(count: int, repeats: int) -> Rows:
    """What a SIGKILL of a worker and of the client costs; an ensemble with a store on two workers."""
    rows = [["runs on", "killed halfway", "seconds", "beyond", "workers lost", "done before", "found done"]]
    with Cluster(2) as cluster:
        ways = {"threads": ("threads", None), "processes": ("processes", 0), "Dask": (cluster.address, cluster.pid)}
        for name, (executor, pid) in ways.items():
            own = {"count": count, "executor": executor, **GRADIENT} | ({"workers": 2} if name != "Dask" else {})
            _stored(own | {"count": count // 10})  # workers of a cluster keep the model
            rounds = [_killed_round(own, pid) for _ in range(repeats)]
            rows += [_killed_row(name, what, rounds) for what in rounds[0]]
    return rows


def _killed_round(task: dict[str, Any], pid: int | Callable[[], int] | None) -> dict[str, dict[str, Any]]:
    """Costs of an undisturbed ensemble and of those in which something is killed, one after the other."""
    found = {"nothing": _stored(task)}
    if pid is not None:
        found["a worker"] = _stored(task | {"kill": pid if isinstance(pid, int) else pid()})
    return found | {"the client": _twice(task)}


def _killed_row(name: str, what: str, rounds: list[dict[str, dict[str, Any]]]) -> list[str]:
    """Medians; `beyond` is that of the differences within a round."""
    beyond = median(own[what]["seconds"] - own["nothing"]["seconds"] for own in rounds)
    got = sorted((own[what] for own in rounds), key=lambda own: own["seconds"])[len(rounds) // 2]
    before, found = (str(got["before"]), str(got["first"])) if "before" in got else ("", "")
    more = f"{beyond:+.1f}" if what != "nothing" else ""
    return [name, what, f"{got['seconds']:.1f}", more, str(got["lost"]), before, found]


def _stored(task: dict[str, Any]) -> dict[str, Any]:
    with folder() as path:
        return client(store=str(path / "s"), **task)


def _twice(task: dict[str, Any]) -> dict[str, Any]:
    with folder() as path:
        first = killed(store=str(path / "s"), **task)
        again = client(store=str(path / "s"), **task)
    return again | {"seconds": first["seconds"] + again["seconds"], "before": first["done"]}


# -- restarts -----------------------------------------------------------------------------------------------------


def restarts(count: int = 10_000, chunk: int = 100) -> Rows:
    """Ensembles that ended halfway and were restarted, compared with one that was not."""
    rows = [["ended halfway by", "restarted on", "chunk=", "runs found done", "equal arrays", "equal files"]]
    own = {"count": count, "workers": 2, **GRADIENT}
    with folder() as path:
        client(store=str(path / "whole"), executor="processes", chunk=chunk, **own)
        reference = path / "whole" / "results.zarr"
        ways = [
            ("SIGKILL of the client", "processes", "processes", chunk),
            ("SIGKILL of the client", "threads", "processes", chunk),
            ("StopIteration", "processes", "threads", chunk),
            ("SIGKILL of the client", "processes", "processes", 7 * chunk // 3),
        ]
        for i, (how, first, then, length) in enumerate(ways):
            store = path / str(i)
            task = {"store": str(store), "chunk": length, **own}
            if how == "StopIteration":
                client(executor=first, stop=True, **task)
            else:
                killed(executor=first, **task)
            again = client(executor=then, **task)
            equal = [_share(digest(store / "results.zarr"), digest(reference)) for digest in (_arrays, _files)]
            rows.append([f"{how} ({first})", then, str(length), str(again["first"]), *equal])
    return rows


def _arrays(path: Path) -> dict[str, str]:
    """Digest of every array."""
    import zarr

    group = zarr.open_group(path, mode="r")
    return {name: hashlib.sha256(np.asarray(group[name][...]).tobytes()).hexdigest() for name in group.array_keys()}


def _files(path: Path) -> dict[str, str]:
    """Digest of every file."""
    files = sorted(own for own in path.rglob("*") if own.is_file())
    return {str(own.relative_to(path)): hashlib.sha256(own.read_bytes()).hexdigest() for own in files}


def _share(found: dict[str, str], reference: dict[str, str]) -> str:
    names = {**found, **reference}
    return f"{sum(found.get(name) == reference.get(name) for name in names)} of {len(names)}"


# -- memory -------------------------------------------------------------------------------------------------------


def memory(count: int) -> tuple[Rows, dict[str, np.ndarray]]:
    """Resident memory of the client, MB, while processes carry out the runs."""
    shares = (0.1, 0.25, 0.5, 0.75, 1.0)
    rows = [["results in", "at the start", *(f"{share * count:.0f} runs" for share in shares)]]
    curves = {}
    with folder() as path:
        for name, store in (("memory", None), ("a store", str(path / "s"))):
            got = client(count=count, executor="processes", workers=2, store=store, sample=0.1, **GRADIENT)
            curves[name] = samples = np.array(got["memory"])
            at = [samples[min(int(np.searchsorted(samples[:, 1], s * count)), len(samples) - 1), 2] for s in shares]
            rows.append([name, *(f"{mb:.1f}" for mb in (samples[0, 2], *at))])
    return rows, curves


# -- growth -------------------------------------------------------------------------------------------------------


def costs_of(count: int = 20_000, repeats: int = 3) -> dict[str, dict[str, dict[str, float]]]:
    """Costs of an ensemble, of a chunk and of a run, from three ensembles with other numbers of runs and chunks."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    sizes = ((count, 10), (count, 100), (count // 10, 10))
    equations = np.array([[1.0, runs / length, runs] for runs, length in sizes])
    with Cluster(2) as cluster, Relay(cluster.address) as relay:
        for name, executor in (("processes", "processes"), ("Dask", relay.address)):
            for is_stored in (False, True):
                one = partial(_counted, cluster, relay, executor, is_stored)
                one(*sizes[2])  # workers of a cluster keep the model
                got = [[one(*size) for _ in range(repeats)] for size in sizes]
                found[f"{name}, {'a store' if is_stored else 'memory'}"] = {
                    key: dict(
                        zip(("ensemble", "chunk", "run"), np.linalg.solve(equations, _medians(got, key)), strict=True)
                    )
                    for key in got[0][0]
                }
    return found


def _medians(got: list[list[dict[str, float]]], key: str) -> list[float]:
    return [median(own[key] for own in several) for several in got]


def _counted(
    cluster: Cluster, relay: Relay, executor: str, is_stored: bool, count: int, length: int
) -> dict[str, float]:
    """Costs of an ensemble: CPU seconds, messages and bytes through the scheduler, files and bytes of the store."""
    own = {"workers": 2} if executor == "processes" else {}
    with folder() as path:
        before = [cluster.cpu()[0], *relay.messages, *relay.bytes]
        store = str(path / "s") if is_stored else None
        got = client(count=count, executor=executor, chunk=length, store=store, **own, **GRADIENT)
        after = [cluster.cpu()[0], *relay.messages, *relay.bytes]
        files = [file for file in path.rglob("*") if file.is_file()]
        arrays = [file.stat() for file in files if "results.zarr" in str(file)]
        tables = [file.stat() for file in files if "chunks.sqlite" in file.name]
    names = ("scheduler", "messages up", "messages down", "bytes up", "bytes down")
    used = {name: float(b - a) for name, a, b in zip(names, before, after, strict=True)}
    return used | {
        "client": got["client"],
        "files": float(len(files)),
        "blocks": float(sum(512 * file.st_blocks for file in arrays)),
        "table": float(sum(file.st_size for file in tables)),
    }


def chunk_costs(found: dict[str, dict[str, dict[str, float]]]) -> Rows:
    """The measured costs of a chunk."""
    rows = [["runs on, results in", "client, ms", "scheduler, ms", "messages", "bytes", "files", "SQLite, bytes"]]
    for name, costs in found.items():
        own = {key: cost["chunk"] for key, cost in costs.items()}
        is_dask, is_stored = name.startswith("Dask"), name.endswith("store")
        both = [f"{own[f'{key} up']:.{n}f} + {own[f'{key} down']:.{n}f}" for key, n in (("messages", 1), ("bytes", 0))]
        rows.append([
            name, f"{1e3 * own['client']:.2f}", *([f"{1e3 * own['scheduler']:.2f}", *both] if is_dask else [""] * 3),
            *([f"{own['files']:.1f}", f"{own['table']:.0f}"] if is_stored else [""] * 2),
        ])  # fmt: skip
    return rows


class Fleet:
    """So many workers that answer with the time of a run, to ask for the length of chunks."""

    def __init__(self, width: int, seconds: float) -> None:
        self.width, self._seconds = width, seconds

    def submit(self, *_: Any) -> Future[float]:
        """Return the time of a run."""
        future: Future[float] = Future()
        future.set_result(self._seconds)
        return future

    def check(self) -> None:
        """Nothing can be lost."""


def growth(found: dict[str, dict[str, dict[str, float]]], count: int = 1_000_000, width: int = 1000) -> Rows:
    """A million sets on a thousand workers, by the measured costs of a chunk and of a run on Dask with a store."""
    rows = [["time of a run", "chunk, runs", "chunks", "work, s", "client, s", "scheduler, s", "through it, MB",
             "files", "on disk, MB"]]  # fmt: skip
    own = found["Dask, a store"]
    layout = dh.ensemble(ball(), SPAN, parameters=table(2), gradient="adjoint").layout
    given = np.zeros((count, len(layout.given)))

    def total(name: str, chunks: float) -> float:
        return own[name]["ensemble"] + own[name]["chunk"] * chunks + own[name]["run"] * count

    for seconds, text in ((1e-4, "0.1 ms"), (1e-3, "1 ms"), (1e-2, "10 ms"), (1e-1, "0.1 s"), (1.0, "1 s")):
        fleet: Any = Fleet(width, seconds)
        length = Campaign(fleet, None, layout, given, dh.Cancellation()).chunk_length()  # type: ignore[arg-type]
        chunks = -(-count // length)
        through = total("bytes up", chunks) + total("bytes down", chunks)
        store = total("blocks", chunks) + total("table", chunks)
        rows.append([
            text, str(length), str(chunks), f"{count * seconds / width:.1f}", f"{total('client', chunks):.0f}",
            f"{total('scheduler', chunks):.0f}", f"{through / 1e6:.0f}", f"{total('files', chunks):.0f}",
            f"{store / 1e6:.0f}",
        ])  # fmt: skip
    return rows


# -- pictures -----------------------------------------------------------------------------------------------------


def draw_fan(count: int = 20_000) -> None:
    """Heights of balls with uncertain restitution and initial height: quantiles over time, and a histogram."""
    t = np.linspace(*SPAN, 201)
    found = dh.ensemble(ball(), SPAN, parameters=table(count), t_eval=t, outputs="y")
    heights = found["y"][found.ok]
    figure = new_figure(1, 2, size=(10.0, 3.8), width_ratios=(2.2, 1.0))
    fan, side = figure.axes
    for low, shade in ((5, 0.18), (25, 0.35)):
        band = np.percentile(heights, [low, 100 - low], axis=0)
        fan.fill_between(t, *band, color="C0", alpha=shade, linewidth=0, label=f"{100 - 2 * low} % of the runs")
    fan.plot(t, np.median(heights, axis=0), color="C0", label="median")
    fan.plot(t, heights[0], color="0.35", linewidth=0.8, label="one run")
    fan.set(xlabel="time / s", ylabel="height / m", xlim=SPAN, ylim=(0, None))
    fan.legend(frameon=False, ncols=2, loc="upper right")
    bounces = found.n_events[found.ok]
    kinds = np.unique(bounces).tolist()
    side.hist(
        [heights[bounces == n, -1] for n in kinds], np.linspace(0, heights[:, -1].max(), 61), stacked=True,
        label=[f"{n} bounces" for n in kinds],
    )  # fmt: skip
    side.set(xlabel=f"height at {SPAN[1]:g} s / m", ylabel="runs")
    side.legend(frameon=False)
    save(figure, PICTURES / "balls.png", dpi=110)


def draw_costs(curves: dict[str, np.ndarray], count: int) -> None:
    """Memory of the client over the runs, and the CPU time of the client over the length of chunks."""
    figure = new_figure(1, 2, size=(10.0, 3.6))
    left, right = figure.axes
    for name, samples in curves.items():
        left.plot(samples[:, 1] / 1000, samples[:, 2], ".-", markersize=3, label=f"results in {name}")
    left.set(xlabel="thousands of runs done", ylabel="resident memory of the client / MB")
    left.set_ylim(0, 1.2 * max(samples[:, 2].max() for samples in curves.values()))
    left.legend(frameon=False, loc="lower right")
    lengths = [1, 3, 10, 30, 100, 300, 1000]
    for colour, executor in (("C0", "threads"), ("C1", "processes")):
        for is_stored, line in ((False, "--o"), (True, "-o")):
            rates = [_rate(executor, is_stored, length, count) for length in lengths]
            label = f"{executor}, {'a store' if is_stored else 'memory'}"
            right.plot(lengths, rates, line, color=colour, markersize=4, label=label)
    right.set(xscale="log", yscale="log", xlabel="runs per chunk", ylabel="runs per second on 2 workers")
    right.grid(visible=True, alpha=0.3)
    right.legend(frameon=False)
    save(figure, PICTURES / "costs.png", dpi=110)


def _rate(executor: str, is_stored: bool, length: int, count: int) -> float:
    """Runs per second on two workers, without the time of the start."""
    runs = min(count, 1000 * length)
    seconds = []
    for some in (runs // 10, runs):
        with folder() as path:
            store = str(path / "s") if is_stored else None
            got = client(count=some, executor=executor, workers=2, chunk=length, store=store, **GRADIENT)
            seconds.append(got["seconds"])
    return (runs - runs // 10) / (seconds[1] - seconds[0])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="runs of an ensemble")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/ensembles.md")
    parser.add_argument("--pictures", action="store_true", help="draw the pictures of the page")
    names = ("throughput", "kills", "restarts", "memory", "growth", "fan")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="make these alone")
    given = parser.parse_args()

    def show(name: str, rows: Rows, left: int = 1) -> None:
        text = "\n".join(align(rows, left=range(left)))
        print(f"\n{text}", flush=True)
        if given.write:
            put(PAGE, {name: f"```\n{text}\n```"})

    with ExitStack() as last:
        if "throughput" in given.only:
            show("throughput", throughput(given.count, given.repeats))
        if "kills" in given.only:
            show("kills", kills(given.count, given.repeats), left=2)
        if "restarts" in given.only:
            show("restarts", restarts(), left=2)
        if "memory" in given.only:
            rows, curves = memory(given.count)
            show("memory", rows)
            if given.pictures:
                last.callback(partial(draw_costs, curves, given.count))
        if "growth" in given.only:
            found = costs_of(repeats=given.repeats)
            show("chunks", chunk_costs(found))
            show("growth", growth(found))
        if "fan" in given.only and given.pictures:
            draw_fan()


if __name__ == "__main__":
    main()
