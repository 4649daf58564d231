"""Import of dae_hybrid.adapters and dae_hybrid.problems from a checkout that is not installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType


class _Beside:
    """Finder of the two packages beside `dae_hybrid/` in the repository."""

    def __init__(self, root: Path) -> None:
        self.folders = {f"dae_hybrid.{name}": root / name for name in ("adapters", "problems")}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        del path, target
        folder = self.folders.get(name)
        if folder is None:
            return None
        return spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])


def install(root: Path) -> None:
    """Make the two packages importable."""
    sys.meta_path.append(_Beside(root))
