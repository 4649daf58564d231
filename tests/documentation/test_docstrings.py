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


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


def test_there_are_examples() -> None:
    assert sum(doctest.testmod(importlib.import_module(name)).attempted for name in MODULES) > 20
