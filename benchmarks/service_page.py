"""Pictures of the page of the service, and the time from a key to the picture.

    python benchmarks/service_page.py [--pictures] [--presses 50] [--chromium FILE]

Starts a service and Chromium. Prints the time from a key at a slider to the linearised run, and to the computed one;
``--pictures`` writes the pictures of docs/service.md into docs/service/.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from dae_hybrid.tables import align

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))
from service import running  # noqa: E402

FOLDER = ROOT / "docs" / "service"
#: as root, and without a display
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu"]
#: collects the milliseconds from the last change of a slider to the first state of each kind
WATCH = """() => {
    let begin = 0, seen = new Set();
    window.times = {linearised: [], computed: []};
    addEventListener("input", (event) => { begin = event.timeStamp; seen = new Set(); }, true);
    const state = document.getElementById("state");
    new MutationObserver(() => {
        const { kind } = state.dataset;
        if (begin && !seen.has(kind)) window.times[kind].push(performance.now() - begin);
        seen.add(kind);
    }).observe(state, { attributes: true });
}"""


def main() -> None:
    """Print the times; write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", action="store_true", help="write the pictures into docs/service/")
    parser.add_argument("--presses", type=int, default=50, help="keys that are timed")
    parser.add_argument("--chromium", default=shutil.which("chromium"), help="the browser")
    given = parser.parse_args()
    if given.chromium is None:
        parser.error("Chromium is not installed; --chromium names another browser of its kind.")
    with running("em_hysteresis", "impact_oscillator", workers=2) as service, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=given.chromium, args=FLAGS)
        if given.pictures:
            for name, draw in (("page", linearised), ("page_compare", compared), ("page_phone", phone)):
                draw(browser, service.url, FOLDER / f"{name}.png")
                print(f"wrote {FOLDER / name}.png")
        print(*align(times(browser, service.url, given.presses), left=(0,)), sep="\n")
        browser.close()


@contextmanager
def opened(browser: Browser, address: str, **options: Any) -> Iterator[Page]:
    """Open a page and wait for its first run."""
    context = browser.new_context(**{"viewport": {"width": 1440, "height": 1000}, **options})
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("#functionals .bar")
    yield page
    context.close()


def press(page: Page, slider: str, key: str, times: int) -> None:
    page.locator(slider).focus()
    for _ in range(times):
        page.keyboard.press(key)


def keep_linearised(page: Page) -> None:
    """Delay computed runs beyond the picture."""
    page.evaluate("() => { window.fetch = () => new Promise(() => {}); }")


def linearised(browser: Browser, url: str, path: Path) -> None:
    """A slider that moves."""
    with opened(browser, f"{url}/#model=em_hysteresis&show=u,z&phase=u,z") as page:
        keep_linearised(page)
        press(page, "#slider-1", "ArrowRight", 24)
        page.wait_for_selector("[data-kind=linearised]")
        page.wait_for_timeout(400)
        page.screenshot(path=path)


def compared(browser: Browser, url: str, path: Path) -> None:
    """Two settings in dark colours."""
    with opened(browser, f"{url}/#model=impact_oscillator&show=x,v", color_scheme="dark") as page:
        page.locator("#keep").click()
        page.locator("#number-6").fill("0.5")
        page.wait_for_selector("#state:not([data-kind=computed])")
        page.wait_for_selector("#state[data-kind=computed]")
        page.wait_for_timeout(400)
        page.screenshot(path=path, full_page=True)


def phone(browser: Browser, url: str, path: Path) -> None:
    """The same on a phone, with the sliders in view."""
    size = {"width": 360, "height": 740}
    address = f"{url}/#model=impact_oscillator&show=x"
    with opened(browser, address, viewport=size, device_scale_factor=2, is_mobile=True, has_touch=True) as page:
        keep_linearised(page)
        press(page, "#slider-2", "ArrowRight", 8)
        page.wait_for_selector("[data-kind=linearised]")
        page.wait_for_timeout(400)
        page.screenshot(path=path)


def times(browser: Browser, url: str, presses: int) -> list[list[str]]:
    """Rows of a table: medians over single keys, in ms."""
    rows = [["model", "linearised / ms", "computed / ms"]]
    for model in ("em_hysteresis", "impact_oscillator"):
        with opened(browser, f"{url}/#model={model}") as page:
            page.evaluate(WATCH)
            page.locator("#slider-1").focus()
            for _ in range(presses):
                page.keyboard.press("ArrowRight")
                page.wait_for_selector("#state[data-kind=linearised]")
                page.wait_for_selector("#state[data-kind=computed]")
                page.wait_for_timeout(100)
            found = page.evaluate("() => window.times")
        rows.append([model, *(f"{median(found[kind]):.0f}" for kind in ("linearised", "computed"))])
    return rows


if __name__ == "__main__":
    main()
