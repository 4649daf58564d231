"""The folders are layers: a module imports from its own folder and from those before it, for types as for the rest."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = (
    "root", "numerics", "codegen", "statement", "port", "system", "steppers", "trajectory", "simulation",
    "sensitivity", "conditions", "compile", "interface", "report", "mechanics",
)  # fmt: skip
#: folders that an adapter may import, besides other adapters and the root
PORT = ("root", "numerics", "codegen", "port", "steppers")
#: methods of one layer that lead into a later one, and what C and Python share
DOORS = {
    ("statement/model.py", "compile"),  # HybridModel.build
    ("statement/model.py", "system"),
    ("compile/pipeline.py", "interface"),  # the library of the default adapter, begun early
    ("trajectory/trajectory.py", "report"),  # Trajectory.plot
    ("trajectory/diagnostics.py", "simulation"),
    ("port/records.py", "system"),  # types of what a record points to
    ("port/record_table.py", "system"),
    ("system/system.py", "conditions"),
    ("errors.py", "trajectory"),  # the partial result that an error carries
    ("sundials/header.py", "interface"),
}


def imported(path: Path) -> Iterator[str]:
    """The layers that a file imports from."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "dae_hybrid":
            for name in node.names:
                parts = [*node.module.split(".")[1:], name.name]
                yield parts[0] if parts[0] in (*LAYERS, "adapters", "problems") else "root"


@pytest.mark.parametrize("layer", LAYERS[1:])
def test_a_layer_imports_from_those_before_it(layer: str) -> None:
    allowed = LAYERS[: LAYERS.index(layer) + 1]
    for path in (ROOT / "dae_hybrid" / layer).glob("*.py"):
        up = {to for to in imported(path) if to not in allowed and (f"{layer}/{path.name}", to) not in DOORS}
        assert not up, f"{path} imports from {up}"


def test_adapters_import_from_the_port() -> None:
    for path in (ROOT / "adapters").rglob("*.py"):
        up = {
            to
            for to in imported(path)
            if to not in (*PORT, "adapters") and (f"{path.parent.name}/{path.name}", to) not in DOORS
        }
        assert not up, f"{path} imports from {up}"


def test_the_root_stands_on_nothing() -> None:
    ground = [p for p in (ROOT / "dae_hybrid").glob("*.py") if p.name not in ("__init__.py", "cli.py")]
    assert ground
    for path in ground:
        up = {to for to in imported(path) if to != "root" and (path.name, to) not in DOORS}
        assert not up, f"{path} imports from {up}"
