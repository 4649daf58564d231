"""The command line ``dae-hybrid``: models by name, and the worked problems.

Exit codes: 0 done; 1 a run or the validation failed, or a file could not be written; 2 the command was not understood.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from dae_hybrid import __version__, problems
from dae_hybrid.command import add_commands
from dae_hybrid.errors import DaeHybridError
from dae_hybrid.interface import registry
from dae_hybrid.named_models import UsageError, imported
from dae_hybrid.progress import Progress
from dae_hybrid.report import validation_figures, validation_report
from dae_hybrid.report.plotting import save
from dae_hybrid.report.reproduce import Reproduced, draw, reproduce, summary
from dae_hybrid.report.validate import Validation, ValidationError, validate


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments, ``sys.argv[1:]`` by default.

    Returns
    -------
    int
        The exit code.

    Examples
    --------
    >>> from dae_hybrid.cli import main
    >>> main(["list"])  # doctest: +ELLIPSIS
    hybrid_ode       a hybrid ODE with hidden discontinuities (Serban and Recuero 2019, section 5.1)
    em_hysteresis    an oscillator with hysteretic material (Serban and Recuero 2019, section 5.2)
    ...
    0
    """
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as stop:  # argparse has printed the reason or the help
        return int(stop.code or 0)
    arguments.typed = ["dae-hybrid", *(sys.argv[1:] if argv is None else argv)]
    try:
        arguments.command(arguments)
        sys.stdout.flush()
    except (UsageError, problems.UnknownProblemError) as reason:
        print(f"dae-hybrid: {reason}", file=sys.stderr)
        return 2
    except DaeHybridError as reason:
        print(f"dae-hybrid: {reason}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # closed by the reader, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as reason:
        print(f"dae-hybrid: {reason.strerror or reason}: {reason.filename}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("dae-hybrid: interrupted", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dae-hybrid", description="Simulation and exact derivatives of hybrid DAE systems with memory."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("list", help="list the worked problems")
    command.set_defaults(command=_list)

    add_commands(commands)

    command = commands.add_parser(
        "reproduce",
        help="compute published results again",
        description="Compute published results again: a table beside the paper's numbers and exact ones, the same "
        "as JSON, and the paper's figures (which need matplotlib).",
    )
    command.set_defaults(command=_reproduce)
    command.add_argument("names", nargs="*", metavar="NAME", help="problem to reproduce")
    command.add_argument("--all", action="store_true", help="all problems that have published results")
    command.add_argument(
        "--output",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help="folder of the figures (default %(default)s)",
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="where to write JSON (default DIR/results.json)")
    command.add_argument("--markdown", type=Path, metavar="FILE", help="also write a summary as a Markdown table")

    command = commands.add_parser(
        "validate",
        help="compare with ode15s",
        description="Compare trajectories, event tables, sensitivities and gradients with those of ode15s, and both "
        "with the truth: tables with the largest differences and where they occur, and a picture of each problem "
        "(which needs matplotlib). Exit code 1 where the errors of the two do not explain a difference.",
    )
    command.set_defaults(command=_validate)
    command.add_argument("--rtol", type=float, help="relative tolerance (default: that of the problem)")
    command.add_argument("--atol", type=float, help="absolute tolerance (default: that of the problem)")
    command.add_argument("--adapter", default="sundials", metavar="NAME", help="integrator (default %(default)s)")
    command.add_argument(
        "--output",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help="folder of the pictures (default %(default)s)",
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="also write everything as JSON")
    command.add_argument("--markdown", type=Path, metavar="FILE", help="also write a page of Markdown")

    command = commands.add_parser("adapters", help="list the integrators, what they can do, and which can be used here")
    command.set_defaults(command=_adapters)

    command = commands.add_parser(
        "conformance",
        help="hold adapters against reference values",
        description="Run every worked problem through adapters, compare with independent reference values and measure "
        "how errors follow the tolerance. Exit code 1 where one does not conform.",
    )
    command.set_defaults(command=_conformance)
    command.add_argument(
        "names", nargs="*", metavar="ADAPTER", help="name, or MODULE:CLASS (default: all that can be used here)"
    )
    command.add_argument("--quick", action="store_true", help="no slopes and no timing")
    command.add_argument("--markdown", type=Path, metavar="FILE", help="also write a page of Markdown")
    return parser


def _list(arguments: argparse.Namespace) -> None:  # noqa: ARG001 - every command takes its arguments
    width = max(map(len, problems.names()))
    for name in problems.names():
        print(f"{name:{width}}  {problems.TITLES[name]}")


# -- reproduce --------------------------------------------------------------------------------------


def _reproduce(arguments: argparse.Namespace) -> None:
    if arguments.all == bool(arguments.names):
        raise UsageError("reproduce takes the name of a problem, or --all.")
    chosen: dict[str, ModuleType] = {name: problems.load(name) for name in arguments.names or problems.names()}
    for name, problem in list(chosen.items()):
        if not hasattr(problem, "figures"):
            if arguments.names:
                raise UsageError(f"Problem {name!r} has no published results to reproduce.")
            del chosen[name]
    results: list[Reproduced] = []
    for name, problem in chosen.items():
        with Progress(name) as progress:
            results.append(reproduce(name, problems.TITLES[name], problem, progress.stage))
        print(results[-1].table(), end="\n\n")
    path = arguments.json or arguments.output / "results.json"
    _write(path, json.dumps({result.name: result.as_json() for result in results}, indent=2) + "\n")
    if arguments.markdown is not None:
        _write(arguments.markdown, summary(results) + "\n")
    # last, so that the numbers are there without matplotlib
    for result in results:
        with Progress(result.name) as progress:
            written = list(draw(chosen[result.name], result, arguments.output, progress.stage))
        for picture, caption in written:
            print(f"wrote {picture}: {caption}")


# -- validate ---------------------------------------------------------------------------------------


def _validate(arguments: argparse.Namespace) -> None:
    results: list[Validation] = []
    for name in problems.names():
        problem = problems.load(name)
        if not hasattr(problem, "witness"):
            continue
        options = {"rtol": arguments.rtol, "atol": arguments.atol, "adapter": arguments.adapter}
        with Progress(name) as progress:
            results.append(validate(name, problems.TITLES[name], problem, **options, stage=progress.stage))
        print(validation_report.table(results[-1]), end="\n\n")
    pictures = {found.name: arguments.output / f"validate_{found.name}.png" for found in results}
    if arguments.json is not None:
        _write(arguments.json, json.dumps(validation_report.as_json(results), indent=2) + "\n")
    if arguments.markdown is not None:
        named = {name: _beside(path, arguments.markdown) for name, path in pictures.items()}
        _write(arguments.markdown, validation_report.page(results, shlex.join(arguments.typed), named))
    # last, so that the numbers are there without matplotlib
    for found in results:
        with Progress(found.name) as progress:
            progress.stage("picture")
            written = save(validation_figures.draw(found), pictures[found.name], dpi=validation_figures.DPI)
        print(f"wrote {written}")
    objections = [text for found in results for text in found.objections]
    if objections:
        raise ValidationError("The errors of ode15s and of ours do not explain:\n  " + "\n  ".join(objections))


# -- adapters ---------------------------------------------------------------------------------------


def _adapters(arguments: argparse.Namespace) -> None:  # noqa: ARG001 - every command takes its arguments
    print(registry.describe_adapters())


def _conformance(arguments: argparse.Namespace) -> None:
    # imported here because the problems are slow to import
    from dae_hybrid.problems import _conformance_report as text
    from dae_hybrid.problems import conformance as suite

    names = [_adapter(name) for name in arguments.names] or registry.general_adapters()
    rtols = () if arguments.quick else suite.RTOLS
    with Progress("conformance") as progress:
        found = suite.conformance(*names, rtols=rtols, timed=not arguments.quick, report=progress.stage)
    print(text.table(found))
    if arguments.markdown is not None:
        _write(arguments.markdown, text.page(found, shlex.join(arguments.typed), suite.RTOLS))
    found.check()


def _adapter(name: str) -> str:
    """Return the name of an adapter; MODULE:CLASS is registered first."""
    if ":" not in name:
        return name
    return registry.register_adapter(imported(name), replace=True).name


def _beside(path: Path, page: Path) -> str:
    """Return the path of a file relative to a page."""
    return path.resolve().relative_to(page.resolve().parent, walk_up=True).as_posix()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main())
