"""Group expressions that differ only in numbers, or in the parameters that they use; their functions are built once.

The numbers are kept in tables and appended to the parameters; no derivatives are taken with respect to them. A number
stays in the expression if all members share it, or if it may affect the structure: zero, numbers by which CasADi
simplifies (1, 2, 1/2), and exponents. Where members use different parameters, the number is the index of the parameter
among those of all members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice, repeat
from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.codegen.casadi_tools import with_numbers, without_numbers
from dae_hybrid.codegen.kernels import Kernel, NativeFunction
from dae_hybrid.codegen.shapes import Elements, Place, in_elements, written_out
from dae_hybrid.numerics.arrays import Array

#: longest expressions that are examined, in instructions
MAX_INSTRUCTIONS = 1000
#: numbers by which CasADi simplifies
STRUCTURAL = frozenset((0.0, 1.0, 2.0, 0.5))


@dataclass(frozen=True, eq=False)
class Family[Name: Hashable]:
    """Members whose expressions differ only in numbers and parameters.

    `numbers` has a row per member, with the numbers that vary within the family.
    """

    members: tuple[Name, ...]
    numbers: Array
    values: tuple[float | None, ...]  # shared numbers; None for those that vary
    write: Callable[[ca.MX], list[ca.MX]]  # map a column of all numbers to the expressions

    @property
    def size(self) -> int:
        """Number of varying numbers per member."""
        return self.numbers.shape[1]

    def stated(self, column: ca.MX) -> list[ca.MX]:
        """Return the expressions with the entries of a column in place of the numbers that vary."""
        entries = iter(ca.vertsplit(column) if column.numel() else ())
        return self.write(ca.vertcat(*(next(entries) if value is None else ca.MX(value) for value in self.values)))


def families[Name: Hashable](
    given: Mapping[Name, tuple[Hashable, Sequence[ca.MX]]], least: int, parameters: Sequence[ca.MX] = ()
) -> list[Family[Name]]:
    """Return families of at least `least` members that share a key and whose expressions differ only in numbers.

    Scalar expressions, and vectors of few entries, may also differ in which entries of the `parameters` they use.

    Examples
    --------
    >>> import casadi as ca
    >>> from dae_hybrid.compile.families import families
    >>> x = ca.MX.sym("x")
    >>> found = families({n: ("rate", [-0.1 * n * x]) for n in (3, 4)} | {"other": ("rate", [-x])}, least=2)
    >>> found[0].members, found[0].numbers.ravel(), found[0].stated(ca.MX.sym("k"))
    ((3, 4), array([-0.3, -0.4]), [MX(shape(x, k){0})])
    """
    counts = Counter(key for key, _ in given.values())
    many = {name: one for name, one in given.items() if counts[one[0]] >= least}
    every = [value for _, expressions in many.values() for value in expressions]
    symbols = ca.symvar(ca.veccat(ca.MX(0, 1), *every))
    own = {s.__hash__() for s in parameters}
    chosen = {i for i, s in enumerate(symbols) if s.__hash__() in own}
    found = iter(in_elements(symbols, every, structural=frozenset((0.0,)), chosen=chosen))
    groups: dict[Any, list[tuple[Name, list[Elements]]]] = {}
    writers: dict[Any, Callable[..., list[ca.MX]]] = {}
    for name, (key, expressions) in many.items():
        parts = [part for part in islice(found, len(expressions)) if part is not None]
        if len(parts) == len(expressions):
            stated: Any = tuple(part.key for part in parts)
            write: Callable[..., list[ca.MX]] = partial(_from_elements, symbols, stated)
        elif (other := without_numbers(expressions, structural=STRUCTURAL, longest=MAX_INSTRUCTIONS)) is not None:
            stated, lifted, own_symbols, numbers = other
            parts = [Elements(stated, numbers, ())]
            write = partial(_from_nodes, lifted, own_symbols)
        else:
            continue
        groups.setdefault((key, stated), []).append((name, parts))
        writers.setdefault((key, stated), write)
    return [_family(group, writers[key]) for key, group in groups.items() if len(group) >= least]


def _from_elements(
    symbols: Sequence[ca.MX], keys: Sequence[Any], places: Sequence[Sequence[Sequence[Place]]], pieces: Sequence[ca.MX]
) -> list[ca.MX]:
    return [written_out(*own) for own in zip(keys, repeat(symbols), pieces, places)]


def _from_nodes(
    lifted: Sequence[ca.MX], symbols: Sequence[ca.MX], _: Sequence[Any], pieces: Sequence[ca.MX]
) -> list[ca.MX]:
    return with_numbers(lifted, symbols, pieces[0])


def _family[Name: Hashable](
    group: Sequence[tuple[Name, Sequence[Elements]]], write: Callable[..., list[ca.MX]]
) -> Family[Name]:
    columns, places, ends = list[Array](), list[list[list[Place]]](), [0]
    for parts in zip(*(parts for _, parts in group), strict=True):
        used = [list(dict.fromkeys(own)) for own in zip(*(part.places for part in parts), strict=True)]
        several = [(j, {place: i for i, place in enumerate(among)}) for j, among in enumerate(used) if len(among) > 1]
        indices = [[index[part.places[j]] for j, index in several] for part in parts]
        columns.append(np.hstack((np.array([part.numbers for part in parts]), np.array(indices, dtype=float))))
        places.append(used)
        ends.append(ends[-1] + columns[-1].shape[1])
    numbers = np.hstack((np.zeros((len(group), 0)), *columns))
    differ = (numbers != numbers[0]).any(axis=0)
    values = tuple(None if other else value for value, other in zip(numbers[0].tolist(), differ.tolist(), strict=True))

    def stated(column: ca.MX) -> list[ca.MX]:
        return write(places, ca.vertsplit(column, ends) if len(ends) > 1 else [])

    return Family(tuple(name for name, _ in group), np.ascontiguousarray(numbers[:, differ]), values, stated)


def closed(function: ca.Function, place: int, numbers: Array) -> ca.Function:
    """Fix the numbers that follow the parameters, which are the input at `place`."""
    kind: Any = ca.SX if function.is_a("SXFunction") else ca.MX
    inputs = [kind.sym(function.name_in(i), function.size1_in(i)) for i in range(function.n_in())]
    inputs[place] = kind.sym("p", function.size1_in(place) - numbers.size)
    given = [ca.vertcat(v, ca.DM(numbers)) if i == place else v for i, v in enumerate(inputs)]
    return ca.Function(function.name(), inputs, function.call(given))


def apart(function: ca.Function, place: int, size: int, n_in: int) -> ca.Function:
    """Move the numbers from behind the parameters to a separate last input, after `n_in` others."""
    kind: Any = ca.SX if function.is_a("SXFunction") else ca.MX
    inputs = [kind.sym(function.name_in(i), function.size1_in(i)) for i in range(function.n_in())]
    p, numbers = kind.sym("p", function.size1_in(place) - size), kind.sym("numbers", size)
    given = [ca.vertcat(p, numbers) if i == place else v for i, v in enumerate(inputs)]
    inputs[place] = p
    none = [kind.sym("none", 0) for _ in range(n_in - len(inputs))]
    return ca.Function(function.name(), [*inputs, *none, numbers], function.call(given))


class _OfMember(Kernel):
    """A kernel of a family with the numbers of one member."""

    family: tuple[Kernel, Array]

    def __init__(self, kernel: Kernel, place: int, numbers: Array) -> None:
        self.family, self._place = (kernel, numbers), place
        self.name, self._shapes = kernel.name, kernel._shapes

    @cached_property
    def function(self) -> ca.Function:  # type: ignore[override]
        kernel, numbers = self.family
        return closed(kernel.function, self._place, numbers)

    def __call__(self, *arguments: Any) -> list[Array]:
        given = list(arguments)
        kernel, numbers = self.family
        given[self._place] = np.concatenate((given[self._place], numbers))
        return kernel(*given)


class OfMember[V](Mapping[str, V]):
    """Functions of a family for one member, created on first access."""

    def __init__(self, family: Mapping[str, V], of: Callable[[str, V], V]) -> None:
        self._family, self._of, self._found = family, of, dict[str, V]()

    def __getitem__(self, key: str) -> V:
        if key not in self._found:
            self._found[key] = self._of(key, self._family[key])
        return self._found[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._family)

    def __len__(self) -> int:
        return len(self._family)

    def __contains__(self, key: object) -> bool:
        return key in self._family


def kernels_of(family: Mapping[str, Kernel], places: Callable[[str], int], numbers: Array) -> Mapping[str, Kernel]:
    """Return the kernels of a family for one member; `places` gives the index of the parameter input of each."""
    return OfMember(family, lambda key, kernel: _OfMember(kernel, places(key), numbers))


def functions_of(family: Mapping[str, NativeFunction], place: int, numbers: Array) -> Mapping[str, NativeFunction]:
    """Return the functions of a family for one member, none of them compiled."""
    return OfMember(family, lambda _, f: NativeFunction(closed(f.function, place, numbers), None))
