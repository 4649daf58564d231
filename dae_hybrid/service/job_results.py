"""Results of jobs as JSON, CSV and Arrow, made and sent in parts."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dae_hybrid.ensembles.export import Source
from dae_hybrid.ensembles.failures import FailedRun
from dae_hybrid.ensembles.result import Ensemble
from dae_hybrid.service.encoding import arrow_bytes, csv_bytes, json_bytes
from dae_hybrid.service.job_store import RESULT, RUNS
from dae_hybrid.service.jobs import Job
from dae_hybrid.trajectory.datasets import optional

#: numbers in a part
NUMBERS = 200_000


def result_parts(job: Job, form: str) -> Iterator[bytes] | None:
    """The result of a job that has ended, in parts; None if there is none.

    Parameters
    ----------
    form : {"json", "csv", "arrow"}

    Raises
    ------
    StoreError
        The store of the runs is damaged.
    OptionError
        Two columns would have the same name.
    """
    folder = job.folder.path
    if job.body.kind == "fit":
        return _fit_parts(job, form) if (folder / RESULT).is_file() else None
    if not (folder / RUNS).is_dir():
        return None
    found = Ensemble.open(folder / RUNS)
    if form == "json":
        return _json_parts(job, found)
    source = found._source
    source.columns(0, 1)  # names that occur twice are refused before the first byte
    return (_csv_parts if form == "csv" else _arrow_parts)(found, source)


def _fit_parts(job: Job, form: str) -> Iterator[bytes]:
    content = job.folder.read(RESULT)
    if form == "json":
        return iter([json_bytes({"id": job.id, "kind": "fit", **content})])
    errors = content["standard_errors"] or [None] * len(content["labels"])
    columns = {
        "parameter": content["labels"],
        "estimate": np.array(content["estimates"], dtype=float),
        "standard_error": np.array(errors, dtype=float),
    }
    return iter([csv_bytes(columns) if form == "csv" else arrow_bytes(columns, content)])


def _spans(total: int, width: int) -> Iterator[tuple[int, int]]:
    """First and last run of parts with about `NUMBERS` numbers."""
    step = max(1, NUMBERS // max(1, width))
    return ((first, min(first + step, total)) for first in range(0, total, step))


def _width(source: Source) -> int:
    specs = source.layout.arrays
    return source.given.shape[1] + sum(specs[name].bytes_per_run // 8 for name in specs if name != "outputs") + 8


def _csv_parts(found: Ensemble, source: Source) -> Iterator[bytes]:
    for first, last in _spans(len(found), _width(source)):
        columns = source.columns(first, last)
        file = io.StringIO(newline="")
        writer = csv.writer(file)
        if not first:
            writer.writerow(columns)
        writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
        yield file.getvalue().encode()


def _arrow_parts(found: Ensemble, source: Source) -> Iterator[bytes]:
    pa = optional("pyarrow", "A response in Arrow", "serve")
    schema, sink = source.schema(pa), io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        for first, last in _spans(len(found), _width(source)):
            writer.write_table(pa.table(source.columns(first, last), schema=schema))
            yield _taken(sink)
    yield _taken(sink)


def _taken(sink: io.BytesIO) -> bytes:
    content = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return content


def _json_parts(job: Job, found: Ensemble) -> Iterator[bytes]:
    """An object whose arrays are written a few runs at a time."""
    layout, read, total = found.layout, found._arrays.read, len(found)
    source, inputs = found._source, len(found.layout.parameters)
    facts = {
        "id": job.id, "kind": "ensemble", "model": job.body.model, "runs": total, "complete": found.complete,
        "wrt": layout.wrt, "t": found.t, "statistics": dict(found.statistics), "warnings": job.state["warnings"],
    }  # fmt: skip
    yield json_bytes(facts)[:-1]
    columns = [(label, found.parameters[:, i]) for i, label in enumerate(layout.parameters)]
    yield from _object("parameters", total, [(label, 1, _rows(values)) for label, values in columns])
    columns = [(label, source.given[:, inputs + i]) for i, label in enumerate(layout.starts)]
    yield from _object("x0", total, [(label, 1, _rows(values)) for label, values in columns])
    for key, array, names, blocks in (
        ("functionals", "values", layout.functionals.names, layout.functionals),
        ("gradients", "gradients", layout.functionals.names if layout.wrt else (), layout.functionals),
        ("final", "final", layout.variables.names, layout.variables),
        ("outputs", "outputs", layout.outputs.names, layout.outputs),
    ):
        members = []
        for name in names:
            part = blocks[name]
            if key == "final":
                part = slice(part.start + 1, part.stop + 1)
            axis = 2 if key == "outputs" else 1
            width = layout.arrays[array].bytes_per_run // 8
            members.append((name, width, _part(read, array, part, axis)))
        yield from _object(key, total, members)
    yield b',"t_end":'
    yield from _array(total, layout.variables.size, lambda first, last: read("final", first, last)[:, 0])
    for name in ("ok", "done", "n_events", "n_steps"):
        yield b"," + json_bytes(name) + b":"
        yield from _array(total, 1, _rows(getattr(found, name)))
    yield b',"failures":['
    is_first = True
    for first, last in _spans(total, 100):
        for failed in source.table.failures_among(first, last):
            content = _failure(failed, source)
            yield (b"" if is_first else b",") + json_bytes(content)
            is_first = False
    yield b"]}"


def _rows(values: Any) -> Callable[[int, int], Any]:
    return lambda first, last: values[first:last]


def _part(read: Callable[..., Any], array: str, part: slice, axis: int) -> Callable[[int, int], Any]:
    def rows(first: int, last: int) -> Any:
        values = read(array, first, last)
        found = values[:, part] if axis == 1 else values[:, :, part]
        return found.squeeze(axis) if found.shape[axis] == 1 else found

    return rows


def _object(key: str, total: int, members: list[tuple[str, int, Callable[[int, int], Any]]]) -> Iterator[bytes]:
    yield b"," + json_bytes(key) + b":{"
    for i, (name, width, rows) in enumerate(members):
        yield (b"," if i else b"") + json_bytes(name) + b":"
        yield from _array(total, width, rows)
    yield b"}"


def _array(total: int, width: int, rows: Callable[[int, int], Any]) -> Iterator[bytes]:
    yield b"["
    for first, last in _spans(total, width):
        yield (b"," if first else b"") + json_bytes(np.ascontiguousarray(rows(first, last)))[1:-1]
    yield b"]"


def _failure(failed: FailedRun, source: Source) -> dict[str, Any]:
    given = dict(zip(source.layout.given, source.given[failed.run].tolist(), strict=True))
    return {"run": failed.run, "parameters": given, **failed.report}
