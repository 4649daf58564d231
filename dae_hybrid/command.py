"""Commands of ``dae-hybrid`` that take models by name: ``run``, ``gradient``, ``check``, ``fit`` and ``serve``."""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dae_hybrid.errors import DaeHybridError
from dae_hybrid.fitting.experiment import Experiment
from dae_hybrid.fitting.fit import fit
from dae_hybrid.interface.api import adjoint_gradient, simulate
from dae_hybrid.interface.gradient_check import check_gradient
from dae_hybrid.interface.starts import started
from dae_hybrid.named_models import NamedModel, UsageError, named_model
from dae_hybrid.port.records import EventRecord
from dae_hybrid.progress import Progress
from dae_hybrid.report.plotting import checked_picture, save
from dae_hybrid.tables import align
from dae_hybrid.trajectory.datasets import gradient_columns, optional
from dae_hybrid.trajectory.trajectory import Trajectory

#: an event table wider than this is hard to read
MAX_COLUMNS = 6
#: largest difference between forward and adjoint gradients, in units of rtol, with which ``check`` succeeds
AGREEMENT = 1e4


class CheckError(DaeHybridError):
    """Gradients by two methods differ."""


# -- the parser -------------------------------------------------------------------------------------------


def add_commands(commands: Any) -> None:
    """Add the commands to the parser of ``dae-hybrid``."""
    run = _command(commands, "run", _run, "simulate a model")
    run.add_argument("--output", type=Path, metavar="FILE", help="write the trajectory as .csv, .json, .nc or .parquet")
    run.add_argument("--csv", type=Path, metavar="FILE", help="write the trajectory as CSV")
    run.add_argument("--plot", type=Path, metavar="FILE", help="draw the trajectory (needs matplotlib)")
    for name, action, text in (
        ("gradient", _gradient, "gradient of a functional by the adjoint method"),
        (
            "check",
            _check,
            "compare adjoint, forward and finite-difference gradients; exit code 1 if the first two differ",
        ),
    ):
        command = _command(commands, name, action, text)
        command.add_argument("--functional", metavar="NAME", help="needed if the model has several")
        command.add_argument("--wrt", action="append", metavar="PARAMETER", help="may be repeated (default: all)")
        command.add_argument("--output", type=Path, metavar="FILE", help="write the gradients as .csv or .json")
    command = _command(commands, "fit", _fit, "estimate parameters from the columns of a CSV file")
    command.add_argument("--data", type=Path, required=True, metavar="FILE", help="CSV file with one row per time")
    command.add_argument("--time", default="t", metavar="COLUMN", help="column of the times (default %(default)s)")
    command.add_argument(
        "--measured", action="append", required=True, metavar="VARIABLE[=COLUMN]",
        help="variable and its column (default: of the same name); may be repeated",
    )  # fmt: skip
    command.add_argument("--free", action="append", required=True, metavar="PARAMETER", help="may be repeated")
    command.add_argument("--sigma", type=float, metavar="S", help="standard deviation of the data")
    command.add_argument("--output", type=Path, metavar="FILE", help="write the estimates as .csv or .json")
    _add_serve(commands)


def _bytes(text: str) -> int:
    """A size in MB."""
    megabytes = float(text)
    if not 0 < megabytes < math.inf:
        raise argparse.ArgumentTypeError(f"a size in MB must be a positive number, got {text}")
    return int(1e6 * megabytes)


#: options of `serve`, settings of the service of the same names
SERVE_OPTIONS: tuple[tuple[str, Callable[[str], Any], str, str], ...] = (
    ("--host", str, "ADDRESS", "address (default 127.0.0.1); one that other machines can reach needs a token"),
    ("--port", int, "PORT", "port (default 8000)"),
    ("--workers", int, "N", "worker processes (default: number of cores)"),
    ("--queue", int, "N", "requests that may wait for a worker (default 64)"),
    ("--token-file", Path, "FILE", "file with the token that requests must carry"),
    ("--store", Path, "DIR", "directory of jobs, which the next server continues (default: a temporary one)"),
    ("--dask", str, "ADDRESS", "Dask scheduler that runs the ensembles of jobs"),
    ("--max-seconds", float, "S", "computing time per request (default 30)"),
    ("--max-memory", _bytes, "MB", "memory of a worker process (default 2000)"),
    ("--max-body", _bytes, "MB", "size of a request (default 4)"),
    ("--max-outputs", int, "N", "numbers per response (default 1 million)"),
    ("--max-steps", int, "N", "integration steps per run (default 1 million)"),
    ("--max-runs", int, "N", "runs per job (default 1 million)"),
    ("--max-job-seconds", float, "S", "computing time per job (default 3600)"),
    ("--max-jobs", int, "N", "jobs that are kept (default 1000)"),
    ("--running-jobs", int, "N", "jobs that run at a time (default 1)"),
)


def _add_serve(commands: Any) -> None:
    text = "serve models over HTTP"
    command = commands.add_parser("serve", help=text, description=f"{text.capitalize()} (needs the extra 'serve').")
    command.set_defaults(command=_serve)
    command.add_argument(
        "models", metavar="[NAME=]MODEL", nargs="+",
        help="a name that `dae-hybrid list` lists, package.module:function, or a model file",
    )  # fmt: skip
    for flag, kind, metavar, help_text in SERVE_OPTIONS:
        command.add_argument(flag, type=kind, metavar=metavar, help=help_text)


def _command(
    commands: Any, name: str, action: Callable[[argparse.Namespace], None], text: str
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=f"{text.capitalize()}.")
    command.set_defaults(command=action)
    command.add_argument(
        "name", metavar="MODEL", help="a name that `dae-hybrid list` lists, package.module:function, or a model file"
    )
    command.add_argument("--rtol", type=float, help="relative tolerance (default: of the model file, or 1e-8)")
    command.add_argument("--atol", type=float, help="absolute tolerance (default: of the model file, or 1e-12)")
    command.add_argument(
        "--set", action="append", default=[], metavar="PARAMETER=VALUE",
        help="set a parameter, a vector by numbers with commas; may be repeated",
    )  # fmt: skip
    command.add_argument(
        "--x0", action="append", default=[], metavar="VARIABLE=VALUE",
        help="set an initial value in the same way, in place of that of the model",
    )  # fmt: skip
    command.add_argument("--start-mode", metavar="MODE", help="initial mode (default: that of the model)")
    command.add_argument(
        "--t-span", type=float, nargs=2, metavar=("START", "END"),
        help="interval of the run (default: of the model file or problem)",
    )  # fmt: skip
    command.add_argument("--t-end", type=float, metavar="T", help="end of the run")
    return command


# -- what the commands share ------------------------------------------------------------------------------


def _span(model: NamedModel, arguments: argparse.Namespace) -> tuple[float, float]:
    if arguments.t_span is not None and arguments.t_end is not None:
        raise UsageError("--t-span and --t-end exclude each other.")
    given = model.run.get("t_span") if arguments.t_span is None else arguments.t_span
    if given is None:
        raise UsageError(f"{model.name} states no interval; give --t-span START END.")
    return given[0], given[1] if arguments.t_end is None else arguments.t_end


def _options(model: NamedModel, arguments: argparse.Namespace) -> dict[str, Any]:
    """Tolerances, parameters and start."""
    found: dict[str, Any] = {}
    for key, default in (("rtol", 1e-8), ("atol", 1e-12)):
        stated = getattr(arguments, key)
        found[key] = model.run.get(key, default) if stated is None else stated
    x0 = _assignments("--x0", arguments.x0) or None
    return found | {"parameters": _assignments("--set", arguments.set), "x0": x0, "start_mode": arguments.start_mode}


def _assignments(flag: str, texts: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            numbers = [float(part) for part in value.split(",")]
        except ValueError:
            raise UsageError(f"{flag} takes NAME=VALUE with a number, got {text!r}.") from None
        values[name.strip()] = numbers[0] if len(numbers) == 1 else numbers
    return values


def _checked(path: Path | None, *endings: str) -> Path | None:
    """The path of an output, checked before the run."""
    if path is not None and path.suffix.lower() not in endings:
        raise UsageError(f"--output takes a file that ends in {', '.join(endings)}, got {path.name!r}.")
    return path


def _write(path: Path, columns: Mapping[str, Any]) -> None:
    """Columns as CSV or JSON, with every digit; a value that does not exist is nan in CSV and null in JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lists = {name: np.asarray(values).tolist() for name, values in columns.items()}
    with path.open("w", newline="", encoding="utf-8") as file:
        if path.suffix.lower() == ".json":
            exist = {name: [value if value == value else None for value in own] for name, own in lists.items()}
            json.dump(exist, file, allow_nan=False)
            file.write("\n")
        else:
            writer = csv.writer(file)
            writer.writerow(lists)
            # the repr of a Python float is its shortest exact one
            writer.writerows(zip(*lists.values(), strict=True))
    print(f"wrote {path}")


# -- run --------------------------------------------------------------------------------------------------


def _run(arguments: argparse.Namespace) -> None:
    output = _checked(arguments.output, ".csv", ".json", ".nc", ".parquet")
    plot = None if arguments.plot is None else checked_picture(arguments.plot)
    model = named_model(arguments.name)
    span, options = _span(model, arguments), _options(model, arguments)
    with Progress(arguments.name) as progress:
        progress.stage("building")
        system = model.build()
        progress.stage("simulating")
        sol = simulate(system, span, **options)
    print(f"{model.name}: {model.title}")
    print(f"t from {span[0]:g} to {sol.final[0]:g}, rtol {options['rtol']:g}, atol {options['atol']:g}\n")
    if system.functionals.names:
        rows = [["functional", "value"]]
        values = np.concatenate([np.atleast_1d(sol.functionals[n]) for n in system.functionals.names])
        rows += [[label, f"{v:.15g}"] for label, v in zip(system.functionals.labels(), values, strict=True)]
        print(*align(rows), sep="\n")
        print()
    print(*(align(_event_rows(sol), left=(2,)) if sol.events else ["no events"]), sep="\n")
    for line in sol.diagnostics:
        print(f"note: {line}")
    if arguments.csv is not None:
        _write(arguments.csv, sol.columns())
    if output is not None:
        _write_trajectory(sol, output)
    if plot is not None:
        print(f"wrote {save(sol.plot(), plot)}")


def _write_trajectory(sol: Trajectory, path: Path) -> None:
    form = path.suffix.lower()
    if form in (".csv", ".json"):
        _write(path, sol.columns())
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if form == ".nc":
        optional("h5netcdf", "--output FILE.nc", "ensemble")
        sol.to_xarray().to_netcdf(path, engine="h5netcdf")
    else:
        optional("pyarrow", "--output FILE.parquet", "ensemble")
        sol.to_dataframe().to_parquet(path, engine="pyarrow")
    print(f"wrote {path}")


def _event_rows(sol: Trajectory) -> list[list[str]]:
    shown = [name for name in sol.names if name not in sol.system.memory and sol.width(name) == 1][:MAX_COLUMNS]
    rows = [["#", "time", "transition", *(f"{name} after" for name in shown)]]
    modes = {mode.name: mode for mode in sol.system.modes}

    def after(event: EventRecord, name: str) -> str:
        layout = modes[event.source if event.target is None else event.target].variables
        return f"{event.x_plus[layout[name]][0]:.9g}" if name in layout else ""

    for i, event in enumerate(sol.events, 1):
        rows.append([str(i), f"{event.time:.12g}", event.transition, *(after(event, name) for name in shown)])
    return rows


# -- gradients --------------------------------------------------------------------------------------------


def _gradient(arguments: argparse.Namespace) -> None:
    output = _checked(arguments.output, ".csv", ".json")
    model = named_model(arguments.name)
    span, options = _span(model, arguments), _options(model, arguments)
    found = adjoint_gradient(model.build(), span, arguments.functional, wrt=arguments.wrt, **options)
    columns = gradient_columns(found.functional, found.parameters, {"gradient": found.gradient})
    rows = [["derivative", "value"], *([n, f"{v:.15g}"] for n, v in zip(*columns.values(), strict=True))]
    for i, value in enumerate(np.atleast_1d(found.value)):
        print(f"{found.functional}{f'[{i}]' if np.ndim(found.value) else ''} = {value:.15g}")
    print(*align(rows), sep="\n")
    for line in found.diagnostics:
        print(f"note: {line}")
    if output is not None:
        _write(output, columns)


def _check(arguments: argparse.Namespace) -> None:
    output = _checked(arguments.output, ".csv", ".json")
    model = named_model(arguments.name)
    span, options = _span(model, arguments), _options(model, arguments)
    found = check_gradient(model.build(), span, arguments.functional, wrt=arguments.wrt, **options)
    print(found)
    if output is not None:
        _write(output, gradient_columns(found.functional, found.parameters, found.gradients))
    difference, allowed = found.difference("adjoint", "forward"), AGREEMENT * options["rtol"]
    if not difference <= allowed:
        raise CheckError(f"The adjoint and the forward gradient differ by {difference:.1e}, more than {allowed:.1e}.")


# -- fit --------------------------------------------------------------------------------------------------


def _fit(arguments: argparse.Namespace) -> None:
    output = _checked(arguments.output, ".csv", ".json")
    model = named_model(arguments.name)
    pairs = [text.partition("=") for text in arguments.measured]
    data = {variable: column or variable for variable, _, column in pairs}
    table = _table(arguments.data, {arguments.time, *data.values()})
    options = _options(model, arguments)
    stated = arguments.t_span is not None or arguments.t_end is not None or "t_span" in model.run
    span = _span(model, arguments) if stated else None
    experiments = Experiment.from_table(table, data, time=arguments.time, sigma=arguments.sigma, t_span=span)
    bounds = {name: pair for name, pair in model.bounds.items() if name in arguments.free}
    start = {key: options.pop(key) for key in ("x0", "start_mode")}
    system = started(model.build(), **start, wrt=arguments.free)
    found = fit(system, experiments, arguments.free, bounds=bounds or None, **options)
    print(found)
    if output is not None:
        _write(output, {"parameter": found.labels, "estimate": found.estimates})


def _table(path: Path, wanted: set[str]) -> dict[str, Any]:
    """Columns of a CSV file; an empty cell is a missing value."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as reason:
        raise UsageError(f"{path} is not a CSV file in UTF-8: {reason}.") from None
    short = next((i for i, row in enumerate(rows, 1) if None in row.values()), None)
    if short is not None:
        raise UsageError(f"{path}: data row {short} has too few cells.")
    missing = sorted(name for name in wanted if not rows or name not in rows[0])
    if missing:
        known = ", ".join(map(str, rows[0])) if rows else "none"
        raise UsageError(f"{path} has no column {', '.join(missing)}; its columns are {known}.")
    try:
        return {name: np.array([float(row[name] or "nan") for row in rows]) for name in wanted}
    except ValueError as reason:
        raise UsageError(f"{path}: {reason}.") from None


# -- serve ------------------------------------------------------------------------------------------------


def _serve(arguments: argparse.Namespace) -> None:
    for module in ("fastapi", "uvicorn", "httptools", "orjson", "psutil", "prometheus_client"):
        try:
            optional(module, "dae-hybrid serve", "serve")
        except ImportError as reason:
            raise UsageError(str(reason)) from None
    from dae_hybrid.service.models import served_models
    from dae_hybrid.service.server import serve
    from dae_hybrid.service.settings import Settings

    names = [flag[2:].replace("-", "_") for flag, *_ in SERVE_OPTIONS]
    given = {name: getattr(arguments, name) for name in names if name != "token_file"}
    if arguments.token_file is not None:
        given["token"] = arguments.token_file.read_text(encoding="utf-8", errors="replace").strip()
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    models = served_models(arguments.models)
    for model in models.values():  # finds wrong names before a process is started
        named_model(model.source)
    serve(settings, models)
