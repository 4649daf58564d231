"""Integration methods as the core sees them. An adapter makes one object for each; ``method=`` chooses by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

#: the value of ``method=`` that leaves the choice to the adapter, mode by mode and along the run
AUTO = "auto"
DENSE_COLUMNS = 3  # t_n, h and order come before the derivatives
POINT_COLUMNS = 2  # t_n and h come before the state


class Path(NamedTuple):
    """Layout of the rows of a path, which the adjoint reads backwards.

    `first` is the column of the first state. `exact` says whether the adjoint is the discrete one of the steps; if not,
    it is integrated.
    """

    first: int
    exact: bool


#: the interpolant of every step, on which adjoints are integrated
POLYNOMIALS = Path(DENSE_COLUMNS, exact=False)
#: the end points of the steps, from which explicit steps are reversed one by one
POINTS = Path(POINT_COLUMNS, exact=True)


@dataclass(frozen=True, eq=False, kw_only=True)
class Method:
    """One method of an adapter.

    Parameters
    ----------
    name : str
        The value of ``method=`` and of `Segment.method`.
    implicit : bool
        Whether steps are implicit, so that accuracy alone limits their size in stiff equations.
    orders : tuple of int or None
        Lowest and highest value of ``max_order=``; None leaves them to the adapter.
    path : Path
        Layout of its path.
    compiled : bool
        Whether it needs compiled equations.
    final_outputs : bool
        Whether the algebraic variables of its outputs are results of the method; those of others are solved for again.
    retakes_steps : bool
        Whether its adjoint is the transpose of its steps, which it takes again.
    """

    name: str
    implicit: bool = True
    orders: tuple[int, int] | None = None
    path: Path = POLYNOMIALS
    compiled: bool = False
    final_outputs: bool = False
    retakes_steps: bool = False

    @classmethod
    def of(cls, given: Method | str) -> Method:
        """Return the object itself, or for a name a method with defaults."""
        return given if isinstance(given, Method) else Method(name=given)
