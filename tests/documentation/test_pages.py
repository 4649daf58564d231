"""Code blocks of docs/ run, links resolve, tables have the format of their programs."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path

import pytest
from service import running

from dae_hybrid.interface.registry import BUILT_IN, capability_table
from dae_hybrid.problems.conformance import CASES
from dae_hybrid.tables import markdown

DOCS = Path(__file__).resolve().parents[2] / "docs"
ADDRESS = "http://127.0.0.1:8000"
PAGES = sorted(DOCS.glob("*.md"))


#: pages that need ten seconds or more; tests of the same folders state what they show
LONG = {"large_systems", "mechanics", "service"}


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.operation] if page.stem in LONG else []) for page in PAGES],
    ids=lambda page: page.stem,
)
def test_code_runs(page: Path) -> None:
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    # the page of the service assumes a running one
    with running("em_hysteresis") if page.stem == "service" else nullcontext() as service:
        for block in blocks:
            exec(block if service is None else block.replace(ADDRESS, service.url), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).is_file(), target


def test_the_table_of_capabilities_is_what_the_adapters_declare() -> None:
    text = (DOCS / "adapters.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- capabilities: begin[^\n]*-->\n(.*?)\n<!-- capabilities: end -->", text, re.DOTALL)
    heading, *rows = capability_table()
    assert found is not None
    assert found[1] == markdown([heading, *(row for row in rows if row[0] in BUILT_IN)])


def test_the_conformance_table_has_no_adapter_that_does_not_conform() -> None:
    text = (DOCS / "conformance.md").read_text(encoding="utf-8")
    conform = re.search(r"(\d+) of (\d+) combinations conform", text)
    assert conform is not None
    assert conform[1] == conform[2]
    for case in CASES:
        assert case.title in text
    for name in BUILT_IN:
        assert text.count(f"| {name} |") == (0 if name == "ali3p" else len(CASES))


def test_the_convergence_table_shows_that_errors_follow_the_tolerance() -> None:
    rows = [line.split("|")[1:-1] for line in (DOCS / "convergence.md").read_text(encoding="utf-8").splitlines()]
    slopes = [row[-1].strip() for row in rows if len(row) == 6 and row[1].strip() in ("value", "FSA", "ASA")]
    assert len(slopes) >= 27
    assert all(0.5 < float(slope) < 1.5 for slope in slopes)
