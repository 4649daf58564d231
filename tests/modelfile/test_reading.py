"""Reading model files: errors with line and column, data beside the file, and files of an attacker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dae_hybrid as dh
from dae_hybrid.modelfile.files import read_file, read_text
from dae_hybrid.modelfile.positions import Positions

BALL = """\
dae_hybrid = 1
name = "ball"

[run]
t_span = [0.0, 1.0]
rtol = 1e-10

[build]
kinks = "integrate"

[parameters]
g = {value = 9.81, unit = "m/s^2", lower = 9.0}
e = 0.8

[variables]
y = {unit = "m"}
v = {}
count = {kind = "memory", initial = "0*e"}

[definitions]
fall = "-g"
unused = [1, 2]

[modes.flight.ode]
y = "v"
v = "fall"

[transitions.bounce]
source = "flight"
target = "flight"
guard = "y"
direction = "falling"
reset = {v = "-e * v"}
memory = {count = "count + 1"}

[initial]
mode = "flight"
values = {y = 1, v = 0}

[functionals.height]
terminal = "y"

[functionals.misfit]
at_times = [{times = [0.1, 0.2], data = [1, 2], value = "(y - data)**2"}]
"""


def test_a_file_by_hand() -> None:
    file = read_text(BALL)
    assert file.run == {"t_span": (0.0, 1.0), "rtol": 1e-10}
    assert file.build == {"kinks": "integrate"}
    assert file.bounds == {"g": (9.0, np.inf)}
    sol = dh.simulate(file.model.build(native=False), file.run["t_span"], rtol=1e-10)
    assert sol.functionals["height"] == pytest.approx(0.46800445, abs=1e-7)
    assert sol.functionals["misfit"] == pytest.approx((1 - 9.81 / 200 - 1) ** 2 + (1 - 9.81 / 50 - 2) ** 2)
    assert file.model.functionals["misfit"].series[0].data.tolist() == [[1], [2]]


@pytest.mark.parametrize(
    ("old", "new", "line", "column", "word"),
    [
        ('"-e * v"', '"-e * w"', 33, 20, "'w' is not declared"),
        ('v = "fall"', 'v = "fall + "', 26, 12, "not an expression"),
        ("e = 0.8\n", 'e = "0.8"\n', 13, 5, "expected a number"),
        ("e = 0.8\n", "e = nan\n", 13, 5, "finite"),
        ("e = 0.8\n", "e = [1, true]\n", 13, 9, "expected a number"),
        ("e = 0.8\n", "e = 0.8.1\n", 13, 8, "newline"),
        ("e = 0.8\n", "e = 0.8\ne = 1\n", 14, 6, "overwrite"),
        ('kind = "memory"', 'kind = "memo"', 18, 17, "expected one of differential"),
        ('kind = "memory"', 'kind = "memory", of = "w"', 18, 32, "not declared"),
        ('kind = "memory", initial = "0*e"', 'kind = "memory"', 18, 9, "initial value"),
        ('"falling"', '"down"', 28, 1, "direction must be"),
        ('fall = "-g"', 'fall = "2 * rest"\nrest = "fall"', 21, 8, "fall -> rest -> fall"),
        ('fall = "-g"', 'e = "-g"', 21, 5, "declared as a parameter"),
        ("[initial]", "[initials]", 36, 1, "unknown key"),
        ('mode = "flight"', 'mode = "fly"', 36, 1, "not a mode"),
        ("rtol = 1e-10", "rtol = 0", 6, 8, "positive"),
        ("[0.0, 1.0]", "[1.0, 0.0]", 5, 10, "increasing"),
        ('kinks = "integrate"', "kinks = true", 9, 9, "integrate or events"),
        ("dae_hybrid = 1", "dae_hybrid = 2", 1, 14, "version 1"),
        ("data = [1, 2]", "data = [1, 2, 3]", 44, 41, "3 rows for 2 times"),
        ("y = {unit", "y = {size = 10000000, unit", 16, 13, "integer from 1"),
        ('terminal = "y"', 'terminal = "f(y)"', 41, 13, "no function 'f'"),
        ("[modes.flight.ode]", '[functions.sin]\ninputs = {x = 1}\noutputs = {o = "x"}\n\n[modes.flight.ode]',
         24, 1, "function of the grammar"),
    ],
)  # fmt: skip
def test_errors_have_a_place(old: str, new: str, line: int, column: int, word: str) -> None:
    assert BALL.count(old) == 1
    with pytest.raises(dh.ModelFileError, match=re.escape(word)) as caught:
        read_text(BALL.replace(old, new))
    assert (caught.value.line, caught.value.column) == (line, column)
    assert str(caught.value).startswith(f"<text>:{line}:{column}: ")


def test_places_in_json() -> None:
    text = '{"name": "x",\n "parameters": {"a": 1},\n "definitions": {"b": "a +\\n c"}}'
    with pytest.raises(dh.ModelFileError, match="'c' is not declared") as caught:
        read_text(text, "json")
    assert (caught.value.line, caught.value.column, caught.value.entry) == (3, 30, "definitions.b")
    for wrong, word in (("{", "line|Expecting"), ('{"a": 1, "a": 2}', "twice"), ("[1]", "table"),
                        ('{"run": {"rtol": NaN}}', "NaN"), ("[" * 100_000, "deep")):  # fmt: skip
        with pytest.raises(dh.ModelFileError, match=word):
            read_text(wrong, "json")


def test_places_in_strings_of_toml() -> None:
    text = 'a = """\\\n   x \\u00e9y\n  z"""\n[[b]]\nc = \'\'\'\n12\'\'\'\n[[b]]\n"d e"."f" = [1, {g = "h"}]\n'
    places = Positions(text, toml=True)
    assert places.of(("a",), 0) == (2, 4)
    assert places.of(("a",), 3) == (2, 12)
    assert places.of(("a",), 7) == (3, 3)
    assert places.of(("b", 0, "c"), 1) == (6, 2)
    assert places.of(("b", 1, "d e", "f", 1, "g"), 0) == (8, 23)
    assert places.of(("b", 1, "missing")) == (7, 1)


def test_a_definition_with_the_data_of_another_entry_is_refused() -> None:
    rows = '[{times = [0.1, 0.2], data = [1, 2], value = "off"}, {times = [0.3, 0.4], data = [1, 2], value = "off"}]'
    text = re.sub(r"at_times = .*", f"at_times = {rows}", BALL).replace('fall = "-g"', 'fall = "-g"\noff = "y - data"')
    with pytest.raises(dh.ModelFileError, match="data of another entry"):
        read_text(text)


@pytest.mark.parametrize(
    "text", ["det(nz(x, [0, 1, 2, 0], pattern(2, 2)))", "x @ x", "sum(x)", "repmat(x, 1, 9)", "other(x)"]
)
def test_functions_of_scalars_have_scalar_operations_only(text: str) -> None:
    functions = f"""[functions.other]
kind = "scalar"
inputs = {{x = 3}}
outputs = {{y = "x[0]"}}
[functions.f]
kind = "scalar"
inputs = {{x = 3}}
outputs = {{y = "{text}"}}
"""
    with pytest.raises(dh.ModelFileError, match=r"has no meaning|no function") as caught:
        read_text(BALL + functions)
    assert (caught.value.line, caught.value.entry) == (BALL.count("\n") + 8, "functions.f.outputs.y")


def test_functions_of_many_scalars_are_refused() -> None:
    steps = "\n".join(f'd{i} = "sin(d{i + 1})"' for i in range(100))
    text = f"""[functions.f]
kind = "scalar"
inputs = {{x = 100000}}
outputs = {{y = "d0"}}
[functions.f.definitions]
{steps}
d100 = "x"
"""
    with pytest.raises(dh.ModelFileError, match="intermediate"):
        read_text(BALL + text)


def test_long_chains_of_definitions_need_no_recursion() -> None:
    chain = "\n".join(f'd{i} = "d{i + 1} + 1"' for i in range(5000))
    text = BALL.replace('fall = "-g"', f'fall = "-g + 0*d0"\n{chain}\nd5000 = "e"')
    assert read_text(text).model.name == "ball"


# -- data beside the file ---------------------------------------------------------------------------------------


def with_signal(folder: Path, data: str) -> Path:
    """A model file with a signal from CSV."""
    path = folder / "ball.toml"
    signal = f'push = {{kind = "signal", times = {{{data}, column = "t"}}, values = {{{data}, column = "p"}}}}\n'
    path.write_text(BALL.replace("v = {}\n", "v = {}\n" + signal), encoding="utf-8")
    return path


def test_data_from_csv(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "push.csv").write_text("p, t\n0,0\n\n3,1\n", encoding="utf-8-sig")
    signal = read_file(with_signal(tmp_path, 'csv = "in/push.csv"')).model.declarations["push"].signal
    assert signal is not None
    assert (signal.knots.tolist(), np.array(signal.values.to_DM()).ravel().tolist()) == ([0, 1], [0, 3])


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("../push.csv", "t,p\n0,0\n1,1\n", "in the folder"),
        ("/etc/passwd", "", "in the folder"),
        ("C:\\\\push.csv", "", "in the folder"),
        ("link/push.csv", "", "in the folder|cannot be read"),
        ("none.csv", "", "cannot be read"),
        ("push.csv", "t,q\n0,0\n1,1\n", "no single column 'p'"),
        ("push.csv", "t,p,p\n0,0,0\n", "no single column 'p'"),
        ("push.csv", "t,p\n0,0\n1\n", "row 3: a row is too short"),
        ("push.csv", "t,p\n0,0\n1,x\n", "row 3: could not convert"),
        ("push.csv", "t,p\n0,0\n1,nan\n", "finite"),
        ("push.csv", "", "no single column 'p'"),
        (".", "", "in the folder"),
    ],
)  # fmt: skip
def test_data_files_are_checked(tmp_path: Path, name: str, content: str, word: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "push.csv").write_text("t,p\n0,0\n1,1\n", encoding="utf-8")
    (folder / "link").symlink_to(tmp_path)
    (folder / "push.csv").write_text(content, encoding="utf-8")
    with pytest.raises(dh.ModelFileError, match=word) as caught:
        read_file(with_signal(folder, f'csv = "{name}"'))
    assert caught.value.line == 18


def test_files_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "ball.toml"
    path.write_bytes(b"name = '\xff'")
    with pytest.raises(dh.ModelFileError, match="UTF-8"):
        read_file(path)


# -- files of an attacker ---------------------------------------------------------------------------------------

TOKENS = (
    "9**9**9", "1e999", "-", '"', "[", "]", "{", "}", "=", "inf", "nan", "true", "post(v)", "der(y)", "der(der(y))",
    "`", "lambda: 0", "__import__", "().__class__", "full(1000000,1000000,1)", "full(1000,1000,1) @ full(1000,1000,1)",
    "repmat(y,100000,100000)", "[y]*9", "pattern(2,2)", "nz(y,[0])", "y[0:0]", "y[::0]", "solve(y,y)", "10**400", "\n",
    "#", "'", "data", "t", '"""', "y.T", "y if y else y", "(" * 250, "size = 1000000", "lower = inf", "x" * 200,
    'kind = "signal"', 'of = "y"', "\0", "\ud800", "\uff58", "set_nz(y,[0],1)",
    "y, v", "*y", "None", "1j", "y:=1",
    '{csv = "/etc/passwd", column = "a"}', "[[[[[[1]]]]]]", "\\u0000", "0x1p3", "1_000", "2000-01-01",
)  # fmt: skip
WORDS = [match.span() for match in re.finditer(r'"[^"\n]*"|[\d.]+|\w+|[^\s\w]', BALL)]
changes = st.lists(
    st.tuples(st.sampled_from(WORDS), st.one_of(st.sampled_from(TOKENS), st.text(max_size=8)), st.integers(0, 3)),
    min_size=1, max_size=4,
)  # fmt: skip


@settings(max_examples=1000, deadline=None)
@given(changes)
def test_changed_files_are_read_or_refused(changed: list[tuple[tuple[int, int], str, int]]) -> None:
    text = BALL
    for (start, end), token, way in changed:
        new = (token, f'"{token}"', f"{text[start:end]} {token}", "")[way]
        text = text[:start] + new + text[end:]
    for form in ("toml", "json"):
        try:
            found: Any = read_text(text, form)  # type: ignore[arg-type]
        except dh.ModelFileError as reason:
            found = reason
        is_error = isinstance(found, dh.ModelFileError)
        assert str(found).startswith("<text>") if is_error else isinstance(found.model, dh.HybridModel)


def test_the_name_data_in_a_definition_is_refused_if_the_model_has_it() -> None:
    text = """
[variables]
data = {}
[definitions]
r = "1 - data"
[functionals]
f = {at_times = [{times = [0.1, 0.2], data = [7, 8], value = "r"}]}
"""
    with pytest.raises(dh.ModelFileError, match=r"<text>:5:10: definitions.r: 'data' is ambiguous"):
        read_text(text)
    read_text(text.replace("1 - data", "1 - `data`"))


@pytest.mark.parametrize(
    "text",
    [
        f"name{'.a' * 3000} = 1",
        f"run.rtol{'.a' * 100_000} = 1",
        f'build."x"{'."a"' * 50}.eliminate = 1',
        f"[run]\nrtol = {'[' * 200}{']' * 200}",
        f"[{'.'.join('a' * 40)}]",
    ],
)
def test_deep_names_and_lists_are_refused(text: str) -> None:
    with pytest.raises(dh.ModelFileError, match=r"parts between dots|nested"):
        read_text(text)


def test_deep_objects_are_refused() -> None:
    with pytest.raises(dh.ModelFileError, match="nested"):
        read_text(f'{{"name": {'{"a": ' * 500}1{"}" * 500}}}', "json")


@pytest.mark.parametrize("bounds", ["lower = 3, upper = 1", "lower = [1, 2]", "lower = [[1]]"])
def test_bounds_of_a_parameter_are_checked(bounds: str) -> None:
    with pytest.raises(dh.ModelFileError, match=r"lower and upper of 'g'"):
        read_text(BALL.replace("lower = 9.0", bounds))
