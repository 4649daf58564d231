"""Examples in docstrings produce the output they show."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import dae_hybrid

MODULES = sorted(
    m.name
    for m in pkgutil.walk_packages(dae_hybrid.__path__, "dae_hybrid.")
    if m.name.split(".")[1] not in ("__main__", "adapters", "problems")
)
#: modules that need a library which may be absent
OPTIONAL = {"dae_hybrid.bridges.jax": "jax", "dae_hybrid.bridges.torch": "torch"}


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    if name in OPTIONAL:
        importlib.import_module(OPTIONAL[name])
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder()
    modules = (importlib.import_module(name) for name in MODULES if name not in OPTIONAL)
    assert sum(len(test.examples) for module in modules for test in finder.find(module)) > 20
