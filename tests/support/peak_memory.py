"""Peak memory of a call."""

import tracemalloc
from collections.abc import Callable
from typing import Any


def peak(run: Callable[[], Any]) -> float:
    """The most memory that Python and NumPy held during a call, in bytes."""
    run()
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
