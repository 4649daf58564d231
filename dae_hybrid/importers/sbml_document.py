"""Read an SBML document: levels 1 to 3, package comp, validity, units."""

from __future__ import annotations

import warnings
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from dae_hybrid.errors import ModelFileError, OptionError, UnsupportedError
from dae_hybrid.importers.errors import ImporterError, UnitWarning, unsupported
from dae_hybrid.numeric_input import shown

Units = Literal["warn", "error", "ignore"]
#: packages that add no equations to a time course, or that libSBML converts to core elements
KNOWN_PACKAGES = frozenset({"comp", "fbc", "groups", "layout", "render", "qual", "l3v2extendedmath"})
#: rules of SBML about units that differ; others are about units that are not declared
UNIT_RULES = range(10500, 10600)
#: messages that an error or a warning quotes
MAX_QUOTED = 3


def library() -> Any:
    """Import libSBML.

    Raises
    ------
    ImporterError
        It is not installed.
    """
    try:
        return import_module("libsbml")
    except ImportError as reason:
        raise ImporterError(
            "The importer of SBML needs python-libsbml, which is not installed.",
            remedy='Install it by: pip install "dae-hybrid[sbml]"',
        ) from reason


def read_document(source: str | Path, units: Units) -> Any:
    """Return the libSBML document of a file or a text, flattened and checked.

    Raises
    ------
    ModelFileError
        The document is not valid SBML, or, with ``units="error"``, its units are inconsistent.
    UnsupportedError
        The document requires a package that has no counterpart.
    OptionError
        An argument is not legal.
    """
    if units not in ("warn", "error", "ignore"):
        raise OptionError(f"units must be 'warn', 'error' or 'ignore', got {units!r}.")
    if not isinstance(source, str | Path) or not str(source).strip():
        raise OptionError(f"sbml() takes the path of a file, or the text of a document, got {shown(source)}.")
    lib = library()
    is_text = isinstance(source, str) and source.lstrip().startswith("<")
    if is_text:
        name, document = "<text>", lib.readSBMLFromString(source)
    else:
        path = Path(source)
        path.stat()  # an OSError of Python's own if the file cannot be read
        name, document = str(path), lib.readSBMLFromFile(str(path))
    _refuse_errors(lib, document, name)
    for i in range(document.getNumPlugins()):
        package = document.getPlugin(i).getPackageName()
        if package not in KNOWN_PACKAGES and document.getPackageRequired(package):
            raise unsupported("the document requires a package that has no counterpart.", f"package '{package}'")
    if document.getPlugin("comp") is not None:
        _flatten(lib, document, name)
    if document.getModel() is None:
        raise _invalid(name, None, None, "the document contains no model.")
    _check(lib, document, name, units)
    return document


def _refuse_errors(lib: Any, document: Any, name: str) -> None:
    log = document.getErrorLog()
    for i in range(document.getNumErrors()):
        error = log.getError(i)
        if error.getSeverity() >= lib.LIBSBML_SEV_ERROR:
            raise _invalid(name, error.getLine(), error.getColumn(), _text(error))


def _invalid(name: str, line: int | None, column: int | None, text: str) -> ModelFileError:
    place = name if line is None else f"{name}:{line}:{column}"
    error = ModelFileError(f"{place}: {text}", remedy="Check the document with a validator of SBML.")
    error.file, error.line, error.column = name, line, column
    return error


def _text(error: Any) -> str:
    return f"{' '.join(error.getMessage().split())} (libSBML {error.getErrorId()})"


def _flatten(lib: Any, document: Any, name: str) -> None:
    """Replace submodels by their contents."""
    options = lib.ConversionProperties()
    options.addOption("flatten comp", True)
    options.addOption("performValidation", False)
    options.addOption("leavePorts", False)
    document.getErrorLog().clearLog()
    if document.convert(options) != lib.LIBSBML_OPERATION_SUCCESS:
        log = document.getErrorLog()
        said = "; ".join(_text(log.getError(i)) for i in range(min(document.getNumErrors(), MAX_QUOTED)))
        raise UnsupportedError(
            f"{name}: the submodels cannot be flattened: {said or 'libSBML gives no reason'}.",
            remedy="Documents of external submodels are found only beside a file, not from a text.",
        )


def _check(lib: Any, document: Any, name: str, units: Units) -> None:
    """Check the consistency of a document, as SBML's own validator does."""
    log = document.getErrorLog()
    log.clearLog()
    wanted = {
        lib.LIBSBML_CAT_GENERAL_CONSISTENCY,
        lib.LIBSBML_CAT_IDENTIFIER_CONSISTENCY,
        lib.LIBSBML_CAT_MATHML_CONSISTENCY,
    }
    if units != "ignore":
        wanted.add(lib.LIBSBML_CAT_UNITS_CONSISTENCY)
    for category in range(lib.LIBSBML_CAT_SBML, lib.LIBSBML_CAT_STRICT_UNITS_CONSISTENCY + 1):
        document.setConsistencyChecks(category, category in wanted)
    document.checkConsistency()
    found = [log.getError(i) for i in range(log.getNumErrors())]
    differing = [e for e in found if e.getErrorId() in UNIT_RULES and e.getSeverity() >= lib.LIBSBML_SEV_WARNING]
    for error in found:
        if error not in differing and error.getSeverity() >= lib.LIBSBML_SEV_ERROR:
            raise _invalid(name, error.getLine(), error.getColumn(), _text(error))
    if not differing or units == "ignore":
        return
    first = differing[0]
    if units == "error":
        raise _invalid(name, first.getLine(), first.getColumn(), _text(first))
    more = f" ({len(differing) - 1} more)" if len(differing) > 1 else ""
    warnings.warn(f"{name}:{first.getLine()}: {_text(first)}{more}", UnitWarning, stacklevel=4)
