"""Install scikits-odes, built against the SUNDIALS of the sundials4py wheel.

``python -m dae_hybrid.adapters.install_scikits_odes`` builds ``scikits-odes-core`` and ``scikits-odes-sundials``,
which have no wheels, into the environment of the running interpreter. This takes about a minute and needs a C compiler.
The distribution ``scikits-odes`` itself adds only Fortran solvers, needs a Fortran compiler, and is not installed.

The static libraries of sundials4py are linked into the extensions with hidden symbols. Nothing has to be
found at run time, and other copies of SUNDIALS in the process, those of sundials4py and CasADi, cannot interfere.
``pip uninstall scikits-odes-sundials scikits-odes-core`` removes everything.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, files, version
from importlib.util import find_spec
from pathlib import Path

#: the first is that of the extra ``scikits-odes`` in pyproject.toml
REQUIREMENTS = ("scikits-odes-core>=3.1.1,<3.2", "scikits-odes-sundials>=3.1.1,<3.2")
COMMAND = "python -m dae_hybrid.adapters.install_scikits_odes"

#: archives required for the build
NEEDED = ("libsundials_core.a", "libsundials_cvodes.a", "libsundials_idas.a")
#: scikits-odes uses the classic solvers; those with sensitivities export the same functions
CLASSIC = {"cvode": "cvodes", "ida": "idas"}
#: functions of the Python binding that the archives call but do not contain
BINDING = re.compile(rb"\w+(?:FunctionTable_D|fn_table_d)estroy")
#: number of lines shown from a failed build
MAX_LOG_LINES = 30

CHECK = """
from scikits_odes_sundials import cvode, ida

def rhs(t, y, ydot):
    ydot[0] = -y[0]

def residual(t, y, ydot, result):
    result[0] = ydot[0] + y[0]

ode = cvode.CVODE(rhs, old_api=False).solve([0.0, 1.0], [1.0])
dae = ida.IDA(residual, old_api=False).solve([0.0, 1.0], [1.0], [-1.0])
for solution in (ode, dae):
    if abs(solution.values.y[-1, 0] - 0.36787944) > 1e-4:
        raise SystemExit(f"a wrong solution: {solution}")
"""


class _CannotInstallError(Exception):
    """Reason why the installation is not possible, as a sentence for the user."""


def main(argv: Sequence[str] | None = None) -> int:
    """Install scikits-odes into the environment of this interpreter.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments, ``sys.argv[1:]`` by default. ``--force`` rebuilds an existing installation.

    Returns
    -------
    int
        0 if scikits-odes works, 1 if it could not be installed; the reason has been printed.
    """
    parser = argparse.ArgumentParser(
        prog=COMMAND, description="Install scikits-odes, built against the SUNDIALS of the sundials4py wheel (Linux)."
    )
    parser.add_argument("--force", action="store_true", help="build again even if scikits-odes is installed")
    arguments = parser.parse_args(argv)
    try:
        if not arguments.force and _failure() is None:
            print(f"scikits-odes-sundials {version('scikits-odes-sundials')} is installed and works: nothing to do.")
            return 0
        install()
    except _CannotInstallError as reason:
        print(f"scikits-odes was not installed: {reason}", file=sys.stderr)
        return 1
    print(f"scikits-odes-sundials {version('scikits-odes-sundials')} is installed and works.")
    return 0


def install() -> None:
    """Build and install scikits-odes, replacing an existing installation.

    Raises
    ------
    _CannotInstallError
        A requirement is missing, or the build failed.
    """
    compiler, headers, archives = _requirements()
    with tempfile.TemporaryDirectory(prefix="dae_hybrid-") as folder:
        print(f"preparing SUNDIALS {version('sundials4py')} of sundials4py")
        prefix = Path(folder)
        _write_headers(prefix / "include", headers)
        _write_libraries(prefix / "lib", archives, compiler)
        print("building scikits-odes (about a minute)", flush=True)
        _pip_install(prefix, compiler)
    print("checking")
    if (failure := _failure()) is not None:
        raise _CannotInstallError(f"it was built, but does not work here: {failure}")


# -- requirements -----------------------------------------------------------------------------------


def _requirements() -> tuple[list[str], Path, list[Path]]:
    """Return the compiler's command, the directory of the headers and the static libraries."""
    if not sys.platform.startswith("linux"):
        raise _CannotInstallError(f"this command is made for Linux, and this system is {sys.platform}.")
    if find_spec("pip") is None:
        raise _CannotInstallError("this Python has no pip; install it with `python -m ensurepip`.")
    headers, archives = _find_sundials()
    compiler = _find_compiler()
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        raise _CannotInstallError("Python's C headers are missing; install python3-dev, or python3-devel.")
    site_packages = sysconfig.get_path("platlib")
    if not os.access(site_packages, os.W_OK):
        raise _CannotInstallError(f"{site_packages} cannot be written; use a virtual environment.")
    return compiler, headers, archives


def _find_compiler() -> list[str]:
    """Return the command of the C compiler: ``$CC``, ``cc``, ``gcc`` or ``clang``."""
    given = os.environ.get("CC")
    for candidate in [given] if given else ["cc", "gcc", "clang"]:
        command = shlex.split(candidate)
        if command and shutil.which(command[0]):
            return command
    if given:
        raise _CannotInstallError(f"the C compiler that CC names, {given}, is not there.")
    raise _CannotInstallError("there is no C compiler (cc, gcc or clang); install gcc, or set CC.")


def _find_sundials() -> tuple[Path, list[Path]]:
    """Return the directory of SUNDIALS' headers and the static libraries of the sundials4py wheel."""
    try:
        installed = [Path(str(file.locate())) for file in files("sundials4py") or []]
    except PackageNotFoundError:
        raise _CannotInstallError("sundials4py, which carries SUNDIALS, is not installed.") from None
    headers = [path for path in installed if path.name == "sundials_config.h"]
    archives = [path for path in installed if path.suffix == ".a" and path.is_file()]
    if not headers or not {path.name for path in archives}.issuperset(NEEDED):
        raise _CannotInstallError(
            "the installed sundials4py lacks SUNDIALS' headers or static libraries; reinstall its wheel with pip."
        )
    return headers[0].parents[1], archives


def _failure() -> str | None:
    """Reason why scikits-odes does not solve an ODE and a DAE here; None if it does."""
    # a separate process: an extension is loaded only once, and --force is about to replace it
    done = subprocess.run([sys.executable, "-P", "-c", CHECK], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


# -- the prefix that scikits-odes builds against ----------------------------------------------------


def _write_headers(target: Path, headers: Path) -> None:
    """Write the headers: those of the wheel, and forwarding headers for the classic solvers."""
    target.mkdir()
    for folder in headers.iterdir():
        if folder.is_dir():
            (target / folder.name).symlink_to(folder.resolve())
    for classic, actual in CLASSIC.items():
        (target / classic).mkdir()
        for header in (headers / actual).glob("*.h"):
            name = header.name.replace(actual, classic, 1)
            (target / classic / name).write_text(f'#include "{actual}/{header.name}"\n', encoding="utf-8")


def _write_libraries(target: Path, archives: Sequence[Path], compiler: Sequence[str]) -> None:
    """Write each library that scikits-odes may link as a linker script that names all archives.

    The archives depend on each other, and scikits-odes lists libraries in an order that suits shared libraries only.
    """
    target.mkdir()
    source, binding = target / "binding.c", target / "binding.o"
    missing = sorted({name.decode() for archive in archives for name in BINDING.findall(archive.read_bytes())})
    # never called: they destroy tables created only by the Python binding. Weak, as every script includes them
    attributes = '__attribute__((weak, visibility("hidden")))'
    source.write_text("".join(f"{attributes} void {name}(void *t) {{}}\n" for name in missing), encoding="utf-8")
    _compile(compiler, source, binding)
    inputs = " ".join(f'"{path}"' for path in [binding, *map(Path.resolve, archives)])
    for name in [*(archive.stem for archive in archives), *(f"libsundials_{name}" for name in CLASSIC)]:
        (target / f"{name}.a").write_text(f"GROUP({inputs} -lm)\n", encoding="utf-8")


def _compile(compiler: Sequence[str], source: Path, target: Path) -> None:
    command = [*compiler, "-c", "-fPIC", str(source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stderr, end="", file=sys.stderr)
        raise _CannotInstallError(f"the C compiler {shlex.join(compiler)} does not work.")


# -- the build --------------------------------------------------------------------------------------


def _pip_install(prefix: Path, compiler: Sequence[str]) -> None:
    """Build and install with pip, which downloads the sources and build requirements."""
    names = ",".join(re.split("[<>=]", requirement)[0] for requirement in REQUIREMENTS)
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    # no cached wheel of another build; numpy, the only dependency, is installed and must not change
    command += ["--no-cache-dir", "--no-binary", names, "--no-deps", "--force-reinstall", *REQUIREMENTS]
    environment = os.environ | {
        "CC": shlex.join(compiler),
        "LDFLAGS": f"{os.environ.get('LDFLAGS', '')} -Wl,--exclude-libs,ALL".strip(),
        "SUNDIALS_INCLUDEDIR": str(prefix / "include"),
        "SUNDIALS_LIBDIR": str(prefix / "lib"),
    }
    descriptor, log = tempfile.mkstemp(prefix="scikits-odes-", suffix=".log")
    with open(descriptor, "w", encoding="utf-8") as output:
        done = subprocess.run(command, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        lines = Path(log).read_text(encoding="utf-8", errors="replace").splitlines()
        print(*lines[-MAX_LOG_LINES:], sep="\n", file=sys.stderr)
        raise _CannotInstallError(f"the build failed; its whole output is in {log}.")
    os.remove(log)


if __name__ == "__main__":
    raise SystemExit(main())
