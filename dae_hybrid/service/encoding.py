"""Results as JSON, CSV and Arrow.

JSON has every digit of a float, and null for a number that does not exist. CSV and Arrow have columns only: outputs of
a run, or derivatives; what belongs to the whole result is in JSON, and in the metadata of an Arrow schema.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from dae_hybrid.trajectory.datasets import optional

JSON, CSV, ARROW = "application/json", "text/csv; charset=utf-8", "application/vnd.apache.arrow.stream"
#: media types by the form of a request
MEDIA = {"json": JSON, "csv": CSV, "arrow": ARROW}


def json_bytes(content: Any) -> bytes:
    """Content as JSON."""
    return orjson.dumps(content, default=_default, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


def _default(value: Any) -> Any:
    if isinstance(value, np.ndarray):  # not contiguous, or of strings
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def csv_bytes(columns: Mapping[str, Any]) -> bytes:
    """Columns as CSV; a number that does not exist is ``nan``."""
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(columns)
    # the repr of a Python float is its shortest exact one
    writer.writerows(zip(*(np.asarray(values).tolist() for values in columns.values()), strict=True))
    return file.getvalue().encode()


def arrow_bytes(columns: Mapping[str, Any], facts: Mapping[str, Any]) -> bytes:
    """Columns as an Arrow stream, with further facts as JSON in the metadata of its schema, key ``dae_hybrid``."""
    pa = optional("pyarrow", "A response in Arrow", "serve")
    table = pa.table({name: pa.array(np.asarray(values)) for name, values in columns.items()})
    table = table.replace_schema_metadata({"dae_hybrid": json_bytes(facts)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()
