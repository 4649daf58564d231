#!/bin/sh
# setuptools 80.9.0 (pip 25.3), Python 3.12: an editable install whose package-dir maps a subpackage to a folder elsewhere.
#
# Guess: PYTHONPATH comes before site-packages, so PYTHONPATH=COPY tests COPY as a whole.
# Seen:  the package comes from COPY, its mapped subpackage from the checkout that is installed: the finder of the
#        editable install knows "demo.parts" by its full name and is asked when COPY/demo has no folder "parts". Two
#        trees are mixed without a word, and a change of COPY/elsewhere has no effect. A copy laid out as installed
#        (demo/parts inside demo) is taken whole.
# Exit status 0 while this is so.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet pip==25.3 setuptools==80.9.0 wheel==0.45.1
mkdir -p "$work/checkout/demo" "$work/checkout/elsewhere"
cd "$work/checkout"
cat >pyproject.toml <<'TOML'
[build-system]
requires = ["setuptools==80.9.0"]
build-backend = "setuptools.build_meta"
[project]
name = "demo"
version = "1"
[tool.setuptools]
packages = ["demo", "demo.parts"]
[tool.setuptools.package-dir]
demo = "demo"
"demo.parts" = "elsewhere"
TOML
touch demo/__init__.py elsewhere/__init__.py
"$work/venv/bin/python" -m pip install --quiet --no-build-isolation -e .
cp -r "$work/checkout" "$work/copy"
mkdir "$work/laid_out"
cp -r demo "$work/laid_out/demo"
cp -r elsewhere "$work/laid_out/demo/parts"
cd "$work"
where() {
    PYTHONPATH=$1 "$work/venv/bin/python" -c '
import demo, demo.parts, pathlib
print(*(pathlib.Path(m.__file__).relative_to(pathlib.Path.cwd()).parts[0] for m in (demo, demo.parts)))'
}
mixed=$(where "$work/copy")
whole=$(where "$work/laid_out")
echo "PYTHONPATH=copy:     demo, demo.parts from: $mixed"
echo "PYTHONPATH=laid_out: demo, demo.parts from: $whole"
[ "$mixed" = "copy checkout" ] && [ "$whole" = "laid_out laid_out" ]
