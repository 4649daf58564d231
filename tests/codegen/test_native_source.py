"""The C source that is compiled with every model."""

from __future__ import annotations

import re
from collections import Counter

from dae_hybrid.adapters.sundials import header


def test_every_constant_is_defined_once() -> None:
    """A second definition, of another constant, would be the one that counts from there on."""
    defined = Counter(re.findall(r"^#define (\w+) +\S", header.source(), flags=re.MULTILINE))
    assert len(defined) > 100
    assert [name for name, count in defined.items() if count > 1] == []
