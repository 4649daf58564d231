"""The installer of scikits-odes: messages, files, and coexistence with sundials4py."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import PackageNotFoundError
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import pytest

from dae_hybrid.adapters import install_scikits_odes as command

USERS = {
    "native": """
import dae_hybrid as dh
m = dh.HybridModel("decay")
y = m.differential("y")
m.initial(m.mode("run", ode={y: -y}), {y: 1.0})
m.functional("end", terminal=y)
assert abs(dh.simulate(m.build(), (0.0, 1.0)).functionals["end"] - 0.36787944) < 1e-5
""",
    "scikits_odes": command.CHECK,
    "casadi": """
import casadi as ca
x = ca.SX.sym("x")
for name in ("cvodes", "idas"):
    assert abs(float(ca.integrator("i", name, {"x": x, "ode": -x}, 0.0, 1.0)(x0=1.0)["xf"]) - 0.36787944) < 1e-5
""",
}


@pytest.fixture
def absent(monkeypatch):
    """An environment in which scikits-odes does not work, and nothing can be built by accident."""
    monkeypatch.setattr(command, "_failure", lambda: "ModuleNotFoundError: No module named 'scikits_odes_sundials'")
    monkeypatch.setattr(command, "_pip_install", lambda *arguments: pytest.fail("the build began"))
    monkeypatch.setattr(sys, "platform", "linux")


def refusal(capsys) -> str:
    """Run the command, which must fail with one sentence; that sentence."""
    assert command.main([]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    head, _, sentence = line.partition("scikits-odes was not installed: ")
    assert head == ""
    return sentence


# -- missing tools ------------------------------------------------------------------------------------


def test_without_a_compiler(absent, monkeypatch, capsys):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert refusal(capsys) == "there is no C compiler (cc, gcc or clang); install gcc, or set CC."


def test_with_a_compiler_that_is_not_there(absent, monkeypatch, capsys):
    monkeypatch.setenv("CC", "no-such-cc -O1")
    assert refusal(capsys) == "the C compiler that CC names, no-such-cc -O1, is not there."


def test_a_compiler_may_carry_options(monkeypatch):
    monkeypatch.setenv("CC", "ccache gcc -O1")
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert command._find_compiler() == ["ccache", "gcc", "-O1"]


def test_without_static_libraries(absent, monkeypatch, capsys):
    rest = [file for file in command.files("sundials4py") if not file.name.endswith("_idas.a")]
    monkeypatch.setattr(command, "files", lambda name: rest)
    assert refusal(capsys) == (
        "the installed sundials4py lacks SUNDIALS' headers or static libraries; reinstall its wheel with pip."
    )


def test_without_sundials4py(absent, monkeypatch, capsys):
    def files(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(command, "files", files)
    assert refusal(capsys) == "sundials4py, which carries SUNDIALS, is not installed."


def test_without_pip(absent, monkeypatch, capsys):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert refusal(capsys) == "this Python has no pip; install it with `python -m ensurepip`."


def test_without_the_headers_of_python(absent, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(command, "_find_compiler", lambda: ["cc"])
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert refusal(capsys) == "Python's C headers are missing; install python3-dev, or python3-devel."


def test_where_nothing_can_be_written(absent, monkeypatch, capsys, tmp_path):
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(command, "_find_compiler", lambda: ["cc"])
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(command.os, "access", lambda path, mode: False)
    assert refusal(capsys) == f"{tmp_path} cannot be written; use a virtual environment."


def test_on_another_system(absent, monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert refusal(capsys) == "this command is made for Linux, and this system is darwin."


# -- installation -------------------------------------------------------------------------------------


def test_what_is_installed_is_left_alone(absent, monkeypatch, capsys):
    monkeypatch.setattr(command, "_failure", lambda: None)
    monkeypatch.setattr(command, "version", lambda name: "3.1.1")
    assert command.main([]) == 0
    assert capsys.readouterr().out == "scikits-odes-sundials 3.1.1 is installed and works: nothing to do.\n"


def test_force_builds_what_is_installed(absent, monkeypatch, capsys):
    built = []
    monkeypatch.setattr(command, "_failure", lambda: None)
    monkeypatch.setattr(command, "install", lambda: built.append(True))
    monkeypatch.setattr(command, "version", lambda name: "3.1.1")
    assert command.main(["--force"]) == 0
    assert built == [True]
    assert capsys.readouterr().out == "scikits-odes-sundials 3.1.1 is installed and works.\n"


def test_classic_headers_name_the_others(tmp_path):
    headers, _ = command._find_sundials()
    command._write_headers(tmp_path / "include", headers)
    assert (tmp_path / "include/cvode/cvode_ls.h").read_text() == '#include "cvodes/cvodes_ls.h"\n'
    assert (tmp_path / "include/ida/ida.h").read_text() == '#include "idas/idas.h"\n'
    for header in ("cvodes/cvodes_ls.h", "idas/idas.h", "sundials/sundials_config.h", "nvector/nvector_serial.h"):
        assert (tmp_path / "include" / header).is_file()


def test_functions_of_the_binding_are_found_in_the_archives():
    _, archives = command._find_sundials()
    (core,) = (path for path in archives if path.name == "libsundials_core.a")
    (cvodes,) = (path for path in archives if path.name == "libsundials_cvodes.a")
    assert b"SUNLinearSolverFunctionTable_Destroy" in command.BINDING.findall(core.read_bytes())
    assert b"cvode_user_supplied_fn_table_destroy" in command.BINDING.findall(cvodes.read_bytes())


def test_a_failed_build_shows_its_end_and_where_the_rest_is(monkeypatch, capsys, tmp_path):
    def run(arguments, *, env, stdout, **others):
        assert env["SUNDIALS_LIBDIR"] == str(tmp_path / "lib")
        stdout.write("".join(f"line {n}\n" for n in range(100)))
        return SimpleNamespace(returncode=1)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(command.tempfile, "tempdir", str(tmp_path))
    with pytest.raises(command._CannotInstallError, match="the build failed; its whole output is in ") as failure:
        command._pip_install(tmp_path, ["cc"])
    assert capsys.readouterr().err.splitlines() == [f"line {n}" for n in range(70, 100)]
    (log,) = tmp_path.glob("*.log")
    assert str(log) in str(failure.value)
    assert log.read_text().startswith("line 0\n")


def test_the_extra_is_what_pip_can_build_of_it():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert tuple(project["optional-dependencies"]["scikits-odes"]) == command.REQUIREMENTS[:1]


# -- three copies of SUNDIALS in one process ----------------------------------------------------------


@pytest.mark.parametrize("order", list(permutations(USERS)), ids=" ".join)
def test_all_users_of_sundials_live_in_one_process(order, tmp_path):
    import scikits_odes_sundials  # noqa: F401

    # each once to load it, and once more after all have been loaded
    script = "".join(USERS[name] for name in order * 2)
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
