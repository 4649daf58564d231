"""Conversion of results to tables and labelled arrays of other libraries, imported on use."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dae_hybrid.errors import OptionError
from dae_hybrid.numerics.arrays import Array

if TYPE_CHECKING:
    from dae_hybrid.trajectory.trajectory import Trajectory


class Described(Protocol):
    """Has units and descriptions of variables and parameters by name."""

    @property
    def units(self) -> Mapping[str, str]:
        """Units, of those that have one."""

    @property
    def descriptions(self) -> Mapping[str, str]:
        """Descriptions, likewise."""


def optional(name: str, what: str, extra: str = "data") -> Any:
    """Import an optional library, which an extra installs.

    Raises
    ------
    ImportError
        It is not installed, or its import fails.
    """
    try:
        return import_module(name)
    except ImportError as reason:
        raise ImportError(
            f"{what} needs {name}, which cannot be imported ({reason}). Install it: pip install 'dae-hybrid[{extra}]'."
        ) from reason


def dataset(
    trajectory: Trajectory,
    values: Mapping[str, Array],
    behind: Mapping[str, Sequence[str]],
    further: Mapping[str, tuple[tuple[str, ...], Array]],
    *,
    derivatives: bool = False,
) -> Any:
    """Return an `xarray.Dataset` of variables at the output times.

    Parameters
    ----------
    values : mapping of str to ndarray
        (n_t, ...) or (n_t, size, ...), with the dimensions `behind` in place of the dots.
    behind : mapping of str to sequence of str
        Further dimensions of all variables, with the labels along each.
    further : mapping of str to (dimensions, values)
        Variables without a dimension of time.
    derivatives : bool
        Whether the values are derivatives with respect to the parameters.

    Raises
    ------
    ImportError
        xarray is not installed.
    OptionError
        A variable of the model has a name that the dataset needs.
    """
    xr, system = optional("xarray", "to_xarray()"), trajectory.system
    variables: dict[str, Any] = {}
    for name, array in values.items():
        is_vector = array.ndim > 1 + len(behind)
        dims = ("t", *([f"{name}_entry"] if is_vector else []), *behind)
        variables[name] = dims, array, attributes(system, name, derivative=derivatives)
    others = {name: (dims, array) for name, (dims, array) in further.items()}
    dimensions = {dim for dims, *_ in (*variables.values(), *others.values()) for dim in dims}
    refuse_reserved(values, {"mode", "parameter_unit", *others, *dimensions})
    variables |= others
    coordinates: dict[str, Any] = {"t": trajectory.t, "mode": ("t", trajectory.modes)}
    coordinates |= {name: (name, np.array(labels)) for name, labels in behind.items()}
    if derivatives:
        units = [system.units.get(label.partition("[")[0], "") for label in behind["parameter"]]
        coordinates["parameter_unit"] = "parameter", np.array(units)
    facts: dict[str, Any] = {"model": system.name, "n_events": trajectory.n_events}
    facts |= {f"functional {name}": value for name, value in trajectory.functionals.items()}
    labels = system.parameters.labels()
    facts |= {f"parameter {name}": p for name, p in zip(labels, trajectory.parameters.tolist(), strict=True)}
    return xr.Dataset(variables, coordinates, facts)


def refuse_reserved(names: Iterable[str], reserved: Collection[str]) -> None:
    """Raise an `OptionError` if a variable of the model has a name that a table or dataset needs."""
    if taken := sorted(set(names) & set(reserved)):
        raise OptionError(
            f"Names of the model are reserved in tables of results: {', '.join(map(repr, taken))}.",
            remedy="Rename the variable of the model, or read its values by sol[name].",
        )


def attributes(owner: Described, name: str, *, derivative: bool = False) -> dict[str, str]:
    """Declared unit and description of a variable or parameter."""
    unit, description = owner.units.get(name, ""), owner.descriptions.get(name, "")
    if derivative:
        unit, description = f"{unit} per unit of the parameter" if unit else "", f"derivative of {description or name}"
    return {key: text for key, text in (("units", unit), ("long_name", description)) if text}


def gradient_columns(functional: str, parameters: Sequence[str], ways: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the names of derivatives, ``dG/dp`` or ``dG[0]/dp``, and a column of values by method."""
    found = {way: np.asarray(values) for way, values in ways.items()}
    first = next(iter(found.values()))
    heads = [f"d{functional}"] if first.ndim == 1 else [f"d{functional}[{i}]" for i in range(first.shape[0])]
    names = [f"{head}/d{name}" for head in heads for name in parameters]
    return {"derivative": names} | {way: values.ravel().tolist() for way, values in found.items()}
