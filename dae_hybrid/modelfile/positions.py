"""Lines and columns of the entries of a TOML or JSON document, which the parsers of the standard library drop.

The document has been parsed before, so that the scanner need not check it. It runs only when an error is reported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

Path = tuple[str | int, ...]

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}\n#]*")
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u.{4}|U.{8}|[ \t]*\n\s*|.)", re.DOTALL)


class Positions:
    r"""Places of the entries of a document.

    Parameters
    ----------
    text : str
        The document, with line ends ``\n``.
    toml : bool
        TOML, otherwise JSON.

    Examples
    --------
    >>> from dae_hybrid.modelfile.positions import Positions
    >>> Positions('[run]\nt_span = [0.0, "x"]\n', toml=True).of(("run", "t_span", 1), 0)
    (2, 17)
    """

    def __init__(self, text: str, *, toml: bool) -> None:
        self._text = text
        self._at = 0
        self._places: dict[Path, int] = {(): 0}
        self._arrays: dict[Path, int] = {}  # arrays of tables, with the index of the last
        try:
            if toml:
                self._document()
            else:
                self._space()
                self._value(())
        except (IndexError, RecursionError):  # what has been found is kept
            pass

    def of(self, path: Path, offset: int | None = None) -> tuple[int, int]:
        """Line and column of an entry, from 1, or of a character of its text; of the nearest one that contains it."""
        while path not in self._places:
            path, offset = path[:-1], None
        at = self._places[path]
        if offset is not None and self._text[at : at + 1] in ("'", '"'):
            at = self._character(at, offset)
        line_start = self._text.rfind("\n", 0, at) + 1
        return self._text.count("\n", 0, at) + 1, at - line_start + 1

    # -- tables -------------------------------------------------------------------------------------------

    def _document(self) -> None:
        prefix: Path = ()
        while True:
            self._space()
            if self._at >= len(self._text):
                return
            start = self._at
            if self._text[start] == "[":
                double = self._text[start + 1] == "["
                self._at += 1 + double
                prefix = self._header(self._keys("]"), new=double)
                for i in range(1, len(prefix) + 1):
                    self._places.setdefault(prefix[:i], start)
                self._at += 1 + double
            else:
                self._entry(prefix, "=")

    def _header(self, keys: Sequence[str], *, new: bool) -> Path:
        path: Path = ()
        for i, key in enumerate(keys):
            path = (*path, key)
            if new and i == len(keys) - 1:
                self._arrays[path] = self._arrays.get(path, -1) + 1
            if path in self._arrays:
                path = (*path, self._arrays[path])
        return path

    def _entry(self, prefix: Path, sign: str) -> None:
        start, keys = self._at, self._keys(sign)
        self._at += 1
        for i in range(1, len(keys)):
            self._places.setdefault((*prefix, *keys[:i]), start)
        self._value((*prefix, *keys))

    def _keys(self, end: str) -> list[str]:
        keys: list[str] = []
        while True:
            self._space()
            character = self._text[self._at]
            if character == end:
                return keys
            if character == ".":
                self._at += 1
            elif character in "'\"":
                keys.append(self._string())
            else:
                found = _BARE_KEY.match(self._text, self._at)
                if found is None:
                    raise IndexError(self._at)
                keys.append(found[0])
                self._at = found.end()

    # -- values -------------------------------------------------------------------------------------------

    def _space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        self._at = self._at if found is None else found.end()

    def _value(self, path: Path) -> None:
        self._space()
        self._places[path] = self._at
        character = self._text[self._at]
        if character in "'\"":
            self._string()
        elif character in "[{":
            self._at += 1
            index = 0
            while True:
                self._space()
                if self._text[self._at] == ",":
                    self._at += 1
                elif self._text[self._at] in "]}":
                    self._at += 1
                    return
                elif character == "[":
                    self._value((*path, index))
                    index += 1
                else:
                    self._inline(path)
        else:
            found = _SCALAR.match(self._text, self._at)
            self._at = len(self._text) if found is None else found.end()

    def _inline(self, path: Path) -> None:
        """An entry of an inline table of TOML or of an object of JSON."""
        colon = re.compile(r'"(?:[^"\\\n]|\\.)*"\s*:').match(self._text, self._at)
        self._entry(path, ":" if colon else "=")

    def _string(self) -> str:
        start = self._at
        quote = self._quote(start)
        at = start + len(quote)
        while not self._text.startswith(quote, at):
            if at >= len(self._text):
                raise IndexError(start)
            at += 2 if quote[0] == '"' and self._text[at] == "\\" else 1
        while len(quote) == 3 and self._text[at + 3 : at + 4] == quote[0]:  # quotes that end the text itself
            at += 1
        self._at = at + len(quote)
        body = self._text[start + len(quote) : at]
        if quote[0] == "'" or "\\" not in body:
            return body
        return _ESCAPE.sub(lambda m: _unescaped(m[0]), body)

    def _quote(self, at: int) -> str:
        """The quotation marks of a string, one or three."""
        mark = self._text[at]
        return mark * 3 if self._text.startswith(mark * 3, at) else mark

    def _character(self, start: int, offset: int) -> int:
        """Index in the document of a character of a string."""
        quote = self._quote(start)
        at = start + len(quote)
        if len(quote) == 3 and self._text[at : at + 1] == "\n":
            at += 1
        for step in range(offset + 1):
            found = _ESCAPE.match(self._text, at) if quote[0] == '"' else None
            while found is not None and found[0][1:].isspace():  # a line that is continued
                at = found.end()
                found = _ESCAPE.match(self._text, at)
            if step < offset:
                at = at + 1 if found is None else found.end()
        return min(at, len(self._text) - 1)


def _unescaped(escape: str) -> str:
    if escape[1] in "uU":
        return "".join(chr(int(part, 16)) for part in re.split(r"\\[uU]", escape) if part)
    return {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "e": "\x1b"}.get(escape[1], escape[1:].strip())
