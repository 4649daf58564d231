"""Compile the plain-C yardstick against the SUNDIALS that the ``sundials4py`` wheel carries.

The yardstick links the wheel's static libraries, so that it and ``dae_hybrid`` run the same solver
code and what differs is only who drives it.

    python benchmarks/c/build.py OUTPUT_DIR
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = (HERE / "em_hysteresis.c", HERE / "wheel_hooks.c")

#: In link order: the solvers use the core. Each solver's archive already contains the serial
#: vectors and the dense and fixed-point solvers, so those need no archives of their own.
LIBRARIES = ("libsundials_cvodes.a", "libsundials_idas.a", "libsundials_core.a")

COMPILE_FLAGS = ("-std=c11", "-O3")


class BuildError(RuntimeError):
    """The yardstick cannot be built here; the message says what is missing."""


def find_sundials() -> tuple[Path, list[Path]]:
    """Return the include folder and the static libraries, in link order, of the installed wheel.

    Raises
    ------
    BuildError
        If ``sundials4py`` is missing, or was installed without headers or static libraries.
    """
    spec = importlib.util.find_spec("sundials4py")
    if spec is None or spec.origin is None:
        msg = "sundials4py is not installed in this Python; install it to build the C yardstick."
        raise BuildError(msg)
    site = Path(spec.origin).parent

    include = site / "include"
    if not (include / "cvodes" / "cvodes.h").is_file():
        msg = f"no SUNDIALS headers in {include}; install sundials4py from its official wheel."
        raise BuildError(msg)
    for folder in (site / "lib64", site / "lib"):
        libraries = [folder / name for name in LIBRARIES]
        if all(library.is_file() for library in libraries):
            return include, libraries
    msg = (
        f"{', '.join(LIBRARIES)} not found in lib64 or lib beside {spec.origin}; "
        "install sundials4py from its official wheel."
    )
    raise BuildError(msg)


def find_compiler() -> list[str]:
    """Return the C compiler as a command: ``$CC`` with any flags it holds, else ``cc``.

    Raises
    ------
    BuildError
        If that command is not on the path.
    """
    command = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if shutil.which(command[0]) is None:
        msg = f"C compiler {command[0]!r} not found; install one or name one in the variable CC."
        raise BuildError(msg)
    return command


def build(output: Path) -> Path:
    """Compile the yardstick into the folder ``output`` and return the path of the program.

    Raises
    ------
    BuildError
        If parts of the wheel or the compiler are missing, or if compilation fails.
    """
    include, libraries = find_sundials()
    compiler = find_compiler()
    output.mkdir(parents=True, exist_ok=True)
    binary = output / "em_hysteresis"
    inputs = [str(path) for path in (*SOURCES, *libraries)]
    command = [*compiler, *COMPILE_FLAGS, f"-I{include}", *inputs, "-lm", "-o", str(binary)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        msg = f"compilation failed: {shlex.join(command)}\n{done.stderr.rstrip()}"
        raise BuildError(msg)
    return binary


def main(arguments: list[str]) -> int:
    """Build into the folder named on the command line and print the path of the program."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python build.py OUTPUT_DIR", file=sys.stderr)
        return 2
    try:
        print(build(Path(arguments[0])))
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
