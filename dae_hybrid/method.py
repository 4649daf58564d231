"""What the core knows of a method of integration. Adapters make one object for each; `method=` chooses by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

#: the value of ``method=`` that leaves the choice to the adapter, mode by mode and along the run
AUTO = "auto"
DENSE_COLUMNS = 3  # t_n, h and order come before the derivatives


class Path(NamedTuple):
    """How the rows of a path are laid out that the adjoint follows.

    `first` is the column of the first state. `exact` says whether the adjoint is that of the steps themselves, instead
    of an integration of its own.
    """

    first: int
    exact: bool


#: the interpolant of every step, along which adjoints are integrated
POLYNOMIALS = Path(DENSE_COLUMNS, exact=False)
#: where the steps begin and end, from which they are taken back one by one
POINTS = Path(1, exact=True)


@dataclass(frozen=True, eq=False, kw_only=True)
class Method:
    """One method of an adapter.

    Parameters
    ----------
    name : str
        The value of ``method=``, and what `Segment.method` says.
    implicit : bool
        Solves equations for its steps, which are then as long as accuracy allows, however fast something decays.
    orders : tuple of int or None
        Lowest and highest value of ``max_order=``; None leaves them to the adapter.
    path : Path
        How its path is kept and gone back.
    compiled : bool
        Needs compiled equations.
    """

    name: str
    implicit: bool = True
    orders: tuple[int, int] | None = None
    path: Path = POLYNOMIALS
    compiled: bool = False

    @classmethod
    def of(cls, given: Method | str) -> Method:
        """The object itself; of a name, a method of which nothing else is known."""
        return given if isinstance(given, Method) else Method(name=given)
