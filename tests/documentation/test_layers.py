"""The folders are layers: a module imports from its own folder and from those before it, for types as for the rest."""

import ast
import tomllib
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = (
    "root", "numerics", "codegen", "statement", "modelfile", "importers", "port", "system", "steppers", "trajectory",
    "simulation", "sensitivity", "conditions", "compile", "interface", "report", "mechanics", "optimization", "fitting",
    "ensembles", "bridges", "uncertainty", "service", "client",
)  # fmt: skip
#: what an adapter may import, besides other adapters
PORT = ("root", "numerics", "codegen", "port", "steppers", "adapters")
DOORS = {
    ("statement/model.py", "compile"): "HybridModel.build starts the compilation",
    ("statement/model.py", "modelfile"): "HybridModel.to_file, HybridModel.from_file",
    ("statement/model.py", "system"): "type of the result of HybridModel.build",
    ("compile/pipeline.py", "interface"): "compiles the library of the default adapter beside the model",
    ("trajectory/trajectory.py", "report"): "Trajectory.plot",
    ("port/records.py", "system"): "types of what a record points to",
    ("port/record_table.py", "system"): "type of the argument of RecordTable.measurements",
    ("system/system.py", "conditions"): "type of the table of branches",
    ("errors.py", "trajectory"): "type of the partial result that an error carries",
    ("errors.py", "ensembles"): "type of the partial result that an error carries",
    ("sundials/header.py", "interface"): "constants that C and Python share",
}


#: modules of the root that import from every layer
FACE = [ROOT / "dae_hybrid" / name for name in ("__init__.py", "cli.py", "command.py", "named_models.py")]


def layer_of(module: str) -> str | None:
    """Return the layer of a module or of a name in the package itself, which the interface provides."""
    top, _, rest = module.partition(".")
    name = rest.split(".")[0]
    if top != "dae_hybrid":
        return None
    if name in (*LAYERS, "adapters", "problems"):
        return name
    return "root" if (ROOT / "dae_hybrid" / f"{name}.py").exists() else "interface"


def modules_in(code: str, package: str) -> Iterator[str]:
    """Yield every module that a module of a package imports, for `from` with each name."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imported(path: Path) -> set[str]:
    """Return the modules that a file imports."""
    package = ".".join(path.relative_to(ROOT).parent.parts)
    return set(modules_in(path.read_text(), package if package.startswith("dae_hybrid") else f"dae_hybrid.{package}"))


def through_doors(path: Path, allowed: tuple[str, ...]) -> set[tuple[str, str]]:
    """Return the imports of a file from layers that are not allowed."""
    file = f"{path.parent.name}/{path.name}".removeprefix("dae_hybrid/")
    return {(file, to) for module in imported(path) if (to := layer_of(module)) and to not in allowed}


def test_a_folder_imports_from_those_before_it() -> None:
    allowed = {layer: (*LAYERS[:i], layer) for i, layer in enumerate(LAYERS)}
    allowed |= dict.fromkeys(("adapters", "sundials", "ali3p"), PORT)
    files = [path for top in ("dae_hybrid", "adapters") for path in (ROOT / top).rglob("*.py")]
    found = set[tuple[str, str]]()
    for path in files:
        if path not in FACE:
            name = path.parent.name
            found |= through_doors(path, allowed["root" if name == "dae_hybrid" else name])
    assert found == set(DOORS)


def test_sensitivities_know_no_event_loop() -> None:
    for path in (ROOT / "dae_hybrid/sensitivity").glob("*.py"):
        assert not [module for module in imported(path) if "simulation.automaton" in module], path


@pytest.mark.parametrize(
    ("code", "layer"),
    [
        ("import dae_hybrid.report.plotting", "report"),
        ("from ..report import plotting", "report"),
        ("from dae_hybrid import simulate", "interface"),
        ("from .automaton import Automaton", "simulation"),
        ("from dae_hybrid import errors", "root"),
    ],
)
def test_every_form_of_import_counts(code: str, layer: str) -> None:
    assert [layer_of(module) for module in modules_in(code, "dae_hybrid.simulation")] == [layer]


def test_every_folder_with_modules_is_installed() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    files = [path for top in ("dae_hybrid", "adapters", "problems") for path in (ROOT / top).rglob("*.py")]
    folders = {path.parent.relative_to(ROOT) for path in files}
    names = {".".join(folder.parts) for folder in folders if folder.parts[:2] != ("problems", "reference")}
    assert {name if name.startswith("dae_hybrid") else f"dae_hybrid.{name}" for name in names} == set(packages)
