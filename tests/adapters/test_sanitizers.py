"""The compiled loops under AddressSanitizer and UndefinedBehaviorSanitizer: no bad access, nothing undefined."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dae_hybrid.codegen.compiler import find_compiler

FOLDER = Path(__file__).parent
#: what the compiled code does: events, clocks, knots, resets, batches, every method, both directions
FILES = [
    *sorted(path.name for path in FOLDER.glob("test_native_*.py")),
    "test_staggered.py", "test_ali3p.py::test_compiled_steps_are_those_of_python", "../interface/test_batch.py",
]  # fmt: skip
#: seconds for a test, so that one that hangs is told with its stack, and for a file
LIMITS = (240, 540)
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
#: AddressSanitizer ends a process that loads a library with RTLD_DEEPBIND, as CasADi does with its plugins
SHALLOW = """
#define _GNU_SOURCE
#include <dlfcn.h>
void *dlopen(const char *name, int flags) {
  void *(*real)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
  return real(name, flags & ~RTLD_DEEPBIND);
}
"""


def preloaded(compiler: tuple[str, ...], folder: Path) -> str:
    """The libraries that have to be loaded before all others."""
    done = subprocess.run([*compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    if done.returncode or not Path(done.stdout.strip()).is_file():
        pytest.skip("the compiler has no AddressSanitizer")
    shallow = folder / "shallow.so"
    shallow.with_suffix(".c").write_text(SHALLOW)
    subprocess.run([*compiler, "-shared", "-fPIC", "-o", str(shallow), str(shallow.with_suffix(".c"))], check=True)
    return f"{shallow} {done.stdout.strip()} libstdc++.so.6"  # the last one for exceptions of CasADi


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The loops of integrators are compiled once for all files."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.campaign
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the runtime is preloaded")
@pytest.mark.parametrize("file", FILES)
def test_compiled_code_is_clean_under_sanitizers(file: str, cache: Path, tmp_path: Path) -> None:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no compiler")
    environment = os.environ | {
        "CC": f"env -u LD_PRELOAD {shlex.join(compiler)} {FLAGS}",
        "LD_PRELOAD": preloaded(compiler, tmp_path),
        # leaks and signals are those of Python and of what it has loaded; pytest captures what is not in a file
        "ASAN_OPTIONS": f"detect_leaks=0:handle_segv=0:verify_asan_link_order=0:log_path={tmp_path}/report",
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={tmp_path}/report",
        "DAE_HYBRID_CACHE": str(cache),
        "PYTEST_ADDOPTS": "",
    }
    command = [str(Path(sys.executable).with_name("pytest")), "-q", "-x", "-p", "no:cacheprovider"]
    command += ["-o", f"faulthandler_timeout={LIMITS[0]}", file]
    done = subprocess.run(
        command, cwd=FOLDER, env=environment, capture_output=True, text=True, check=False, timeout=LIMITS[1]
    )
    reports = "\n".join(path.read_text(errors="replace") for path in tmp_path.glob("report*"))
    assert not reports, reports[:8000]
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    libraries = [path.read_bytes() for path in cache.rglob("*.so")]
    assert libraries
    assert all(b"__asan_report" in library and b"__ubsan_handle" in library for library in libraries)
