"""The adapter that is not installed everywhere, as a parameter of tests."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

HAS_SCIKITS_ODES = find_spec("scikits_odes_sundials") is not None
#: parameter "scikits-odes", skipped where the package is missing
needs_scikits_odes = pytest.mark.skipif(
    not HAS_SCIKITS_ODES, reason="not installed: python -m dae_hybrid.adapters.install_scikits_odes"
)
