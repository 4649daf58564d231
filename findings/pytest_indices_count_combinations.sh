#!/bin/sh
# pytest 9.2.0: callspec.indices of a test with several parametrize marks.
#
# Guess: indices says for each argument which value of its mark the test has, so that tests with the same value of "a"
#        have the same index of "a".
# Seen:  for arguments that are passed directly, every index is the number of the combination: three values of "a" and
#        two of "b" give indices 0 to 5 for both. What two tests share has to be told from callspec.params.
# Exit status 0 while this is so.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet pytest==9.2.0
cd "$work"
cat >conftest.py <<'PY'
def pytest_collection_modifyitems(items):
    with open("seen.txt", "w") as file:
        for item in items:
            print(item.callspec.params["a"], item.callspec.indices["a"], item.callspec.indices["b"], file=file)
PY
cat >test_marks.py <<'PY'
import pytest

@pytest.mark.parametrize("a", [10, 20, 30])
@pytest.mark.parametrize("b", [True, False])
def test_both(a, b):
    pass
PY
"$work/venv/bin/pytest" -q --collect-only >/dev/null
cat seen.txt
[ "$(cut -d' ' -f2 seen.txt | sort -u | wc -l)" -eq 6 ] && [ "$(cut -d' ' -f1 seen.txt | sort -u | wc -l)" -eq 3 ]
