"""The page in Debian's Chromium: numbers of the library, linearised runs, errors, a stopped server, accessibility.

One test takes a service from its start to its end; the others share a service in this process.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from playwright.sync_api import Browser, BrowserContext, Error, Page, Route, expect, sync_playwright
from service import SLOW, LocalService, decay, running, serving

import dae_hybrid as dh
from dae_hybrid.named_models import named_model
from dae_hybrid.problems import em_hysteresis, impact_oscillator
from dae_hybrid.service.page_routes import FILES, POLICY

CHROMIUM = os.environ.get("DAE_HYBRID_CHROMIUM") or shutil.which("chromium")
if CHROMIUM is None:
    raise ModuleNotFoundError("Chromium is not installed", name="chromium")

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync")  # fmt: skip
TOLERANCES = {"rtol": 1e-8, "atol": 1e-12}
TIMES = np.linspace(0, 10, 801)
PHONE = {"width": 360, "height": 740}
RUNS = re.compile(r"/(simulate|forward)$")
COMPUTED, LINEARISED = "[data-kind=computed]", "[data-kind=linearised]"
#: a script may be refused by the policy of the page, but not the arguments of functions
OWN_MODULE = "async ([file, name, args]) => (await import(new URL(`page/${file}`, document.baseURI)))[name](...args)"


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    models = ("em_hysteresis", "hybrid_ode", "impact_oscillator", "service:chain", "graze=service:grazing")
    with serving(*models) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield found
        found.close()


@pytest.fixture(scope="module")
def shown(service: LocalService, browser: Browser) -> Iterator[Page]:
    """A page that tests look at, and leave as it is."""
    with browser.new_context(viewport={"width": 1400, "height": 900}) as context:
        page = context.new_page()
        page.goto(f"{service.url}/#model=em_hysteresis")
        computed(page)
        yield page


@pytest.fixture
def context(browser: Browser) -> Iterator[Callable[..., BrowserContext]]:
    made = []

    def make(**options: Any) -> BrowserContext:
        made.append(browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options}))
        made[-1].set_default_timeout(20_000)
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def visit(service: LocalService, context: Callable[..., BrowserContext]) -> Callable[..., Page]:
    """Open the page with a fragment of its address, and wait for the first run with its derivatives."""

    def go(fragment: str = "model=em_hysteresis", **options: Any) -> Page:
        page = context(**options).new_page()
        page.goto(f"{service.url}/#{fragment}")
        computed(page)
        return page

    return go


def computed(page: Page, derivatives: bool = True) -> None:
    """Wait until what is shown belongs to the settings, with its derivatives, which may be shown after the run."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")  # draws a change
    expect(page.locator(f"#state{COMPUTED}")).to_be_visible(timeout=30_000)
    if derivatives:
        expect(page.locator("#refusal:visible", has_text="being computed")).to_have_count(0, timeout=30_000)


def value_of(page: Page, functional: int = 0) -> float:
    """A functional as shown, with every digit."""
    return float(str(page.locator("#functionals .figure").nth(functional).get_attribute("data-value")))


class Gate:
    """Keeps requests of runs back until it is opened."""

    def __init__(self, page: Page, pattern: re.Pattern[str] = RUNS) -> None:
        self.held: list[Route] = []
        self._is_open = False
        page.route(pattern, self._arrived)

    def _arrived(self, route: Route) -> None:
        if self._is_open:
            route.continue_()
        else:
            self.held.append(route)

    def open(self) -> None:
        """Let requests pass, those too that are held."""
        self._is_open = True
        for route in self.held:
            with suppress(Error):  # the page has given up the request
                route.continue_()


def press(page: Page, selector: str, key: str, times: int) -> None:
    """Press a key at an element."""
    page.locator(selector).focus()
    for _ in range(times):
        page.keyboard.press(key)


def saved(page: Page, button: str, folder: Path) -> Path:
    """The file that a button saves."""
    with page.expect_download() as waiting:
        page.locator(button).click()
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path


def table_of(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file."""
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def simulate(**parameters: float) -> dh.Trajectory:
    """The run of the page, by the library."""
    return dh.simulate(em_hysteresis.system(), (0, 10), parameters=parameters, t_eval=TIMES, **TOLERANCES)


# -- from the start to the end ---------------------------------------------------------------------------


def test_a_service_from_its_start_to_its_end(context: Callable[..., BrowserContext], tmp_path: Path) -> None:
    """A process, a request, a job, the page, and a signal, after which the request that runs is finished."""
    with (
        running("service:decay", store=tmp_path, max_steps=10**12) as service,
        httpx.Client(base_url=service.url, timeout=60) as client,
        ThreadPoolExecutor(1) as threads,
    ):
        run = client.post("/v1/models/decay/simulate", json={"t_span": [0, 1]}).json()
        own = dh.simulate(decay().build(), (0, 1), **TOLERANCES)
        assert run["functionals"] == dict(own.functionals)
        content = {"kind": "ensemble", "model": "decay", "t_span": [0, 1], "parameters": {"k": [0.7, 0.8]}}
        job = client.post("/v1/jobs", json=content).json()
        with client.stream("GET", job["events"]) as events:
            assert '"status":"done"' in list(events.iter_lines())[-2]
        assert client.get(job["result"]).json()["functionals"]["end"][0] == own.functionals["end"]
        page = context().new_page()
        page.goto(f"{service.url}/#model=decay&t=0,1")
        computed(page)
        assert value_of(page) == own.functionals["end"]
        last = threads.submit(client.post, "/v1/models/decay/simulate", json=SLOW | {"max_step": 1e-6})
        while "dae_hybrid_requests_running 1.0" not in client.get("/metrics").text:
            assert not last.done()
        assert service.stop() == 0
        assert last.result().json()["t_end"] == 1.0
        assert {"running", "request"} <= {
            json.loads(line)["message"].split()[0] for line in service.text().splitlines()
        }


# -- files -----------------------------------------------------------------------------------------------


def test_every_file_is_served_with_its_type_a_tag_and_a_policy(service: LocalService) -> None:
    folder = files("dae_hybrid.service") / "page"
    assert {item.name for item in folder.iterdir()} == set(FILES)
    for name, media in FILES.items():
        url = f"{service.url}/{'' if name == 'index.html' else f'page/{name}'}"
        found = httpx.get(url)
        assert found.content == (folder / name).read_bytes()
        assert found.headers["content-type"] == media
        assert found.headers["content-security-policy"] == POLICY
        again = httpx.get(url, headers={"If-None-Match": found.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    for name in ("app.py", "..%2Fapp.py", "%2e%2e/app.py", "index.html"):
        assert httpx.get(f"{service.url}/page/{name}").status_code == 404


def test_the_page_has_no_script_or_style_outside_of_files() -> None:
    text = (files("dae_hybrid.service") / "page" / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<style|\bstyle=|\bon\w+=|javascript:", text)
    assert not re.search(r"<script[^>]*>[^<]", text)
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", text)


def test_the_page_loads_without_errors_and_from_its_server_alone(
    service: LocalService, context: Callable[..., BrowserContext]
) -> None:
    page, messages, addresses = context().new_page(), [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: addresses.append(request.url))
    page.goto(service.url)
    computed(page)
    for model in ("hybrid_ode", "chain", "impact_oscillator"):
        page.select_option("#model", model)
        expect(page.locator("#python")).to_contain_text(model)
        computed(page)
    assert messages == []
    assert all(address.startswith(service.url) for address in addresses)


# -- numbers ---------------------------------------------------------------------------------------------


def test_values_and_events_are_those_of_the_library(shown: Page, tmp_path: Path) -> None:
    page, sol = shown, simulate()
    assert value_of(page) == sol.functionals["G"]
    rows = table_of(saved(page, "#save-csv", tmp_path))
    assert [row["mode"] for row in rows] == sol.modes.tolist()
    for name in ("t", *sol.names):
        expected = sol.t if name == "t" else sol[name]
        np.testing.assert_array_equal([float(row[name]) for row in rows], expected)
    events = table_of(saved(page, "#save-events", tmp_path))
    assert [float(row["time"]) for row in events] == sol.event_table.t.tolist()
    assert [row["transition"] for row in events] == [event.transition for event in sol.events]
    assert float(events[3]["z before"]) == sol.events[3].x_minus[2]
    assert page.locator("#events tbody tr").count() == len(sol.events)


def test_bars_have_the_gradient_of_the_adjoint_method(visit: Callable[..., Page]) -> None:
    page = visit("model=impact_oscillator")
    system = impact_oscillator.system()
    bars = page.locator("#functionals table")
    for i, name in enumerate(system.functionals.names):
        found = dh.adjoint_gradient(system, impact_oscillator.t_span, name, **TOLERANCES)
        shown = bars.nth(i).locator("[data-derivative]").all()
        derivatives = [float(str(one.get_attribute("data-derivative"))) for one in shown]
        np.testing.assert_allclose(derivatives, found.gradient, rtol=1e-6)
        effects = [float(str(one.get_attribute("data-effect"))) for one in bars.nth(i).locator("[data-effect]").all()]
        expected = system.nominal * found.gradient / found.value
        np.testing.assert_allclose(effects, expected, rtol=1e-6)
        sides = [str(one.get_attribute("class")) for one in bars.nth(i).locator(".bar").all()]
        assert ["negative" in side for side in sides] == (expected < 0).tolist()
        texts = bars.nth(i).locator("[data-effect]").all_text_contents()
        assert [text[0] == "−" for text in texts] == (expected < 0).tolist()


def test_the_python_call_computes_the_same(visit: Callable[..., Page], tmp_path: Path) -> None:
    page = visit("model=em_hysteresis&p.ka=300&p.beta=0.25&t=0,8&points=101")
    rows = table_of(saved(page, "#save-csv", tmp_path))
    page.locator("#python-section summary").click()
    names: dict[str, Any] = {}
    exec(saved(page, "#save-python", tmp_path).read_text(encoding="utf-8"), names)
    assert names["sol"].functionals["G"] == value_of(page)
    np.testing.assert_array_equal([float(row["u"]) for row in rows], names["sol"]["u"])
    assert names["gradient_G"].gradient.shape == (4,)


def test_the_python_call_has_the_source_of_a_function(visit: Callable[..., Page]) -> None:
    names: dict[str, Any] = {}
    page = visit("model=chain")
    exec(page.locator("#python").text_content() or "", names)
    shown = [value_of(page, i) for i in range(3)]
    np.testing.assert_allclose(shown, names["sol"].functionals["ends"], rtol=1e-12)


def test_the_python_call_of_a_file_does_not_tell_its_folder(tmp_path: Path) -> None:
    path = em_hysteresis.model().to_file(tmp_path / "bar.toml")
    lines = named_model(str(path)).python()
    assert lines[-1] == "system = named_model('bar.toml').build()"
    assert str(tmp_path) not in "".join(lines)


def test_the_picture_is_a_png_of_all_charts(shown: Page, tmp_path: Path) -> None:
    shown.evaluate("() => { const frame = () => requestAnimationFrame(frame); frame(); }")  # encodes between frames
    content = saved(shown, "#save-png", tmp_path).read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = (int.from_bytes(content[at : at + 4]) for at in (16, 20))
    assert width > 1000
    assert height > 500


def test_entries_of_vectors_have_sliders_of_their_own(visit: Callable[..., Page]) -> None:
    page = visit("model=chain&show=x[1]")
    gate = Gate(page)
    press(page, "#slider-1", "ArrowRight", 20)
    expect(page.locator(f"#state{LINEARISED}")).to_be_visible()
    gate.open()
    computed(page)
    k = [1.0, float(page.locator("#number-1").input_value()), 0.5]
    assert k[1] > 2
    sol = dh.simulate(_chain(), (0, 1), parameters={"k": k}, t_eval=np.linspace(0, 1, 801), **TOLERANCES)
    np.testing.assert_array_equal([value_of(page, i) for i in range(3)], sol.functionals["ends"])


def _chain() -> dh.HybridSystem:
    from service import chain

    return chain().build()


# -- linearised runs -------------------------------------------------------------------------------------


def test_a_slider_shows_the_linearised_run_at_once_and_then_the_computed_one(visit: Callable[..., Page]) -> None:
    page = visit()
    before = dh.forward_sensitivity(em_hysteresis.system(), (0, 10), t_eval=TIMES, **TOLERANCES)
    gate = Gate(page)
    press(page, "#slider-1", "ArrowRight", 6)
    state = page.locator(f"#state{LINEARISED}")
    expect(state).to_contain_text("Linearised")
    expect(page.locator("#legend")).to_contain_text("linearised")
    expect(page.locator("#legend")).to_contain_text("computed, previous values")
    expect(page.locator("#functionals")).to_contain_text("linearised")
    expect(page.locator("#save-csv")).to_be_disabled()
    expect(page.locator("#keep")).to_be_disabled()
    kb = float(page.locator("#number-1").input_value())
    predicted = before.functionals["G"] + before.gradient["G"][1] * (kb - em_hysteresis.system().nominal[1])
    shown = str(page.locator("#functionals .figure").text_content()).replace("−", "-")
    assert float(shown) == pytest.approx(predicted, rel=1e-6)
    gate.open()
    computed(page)
    expect(page.locator("#legend")).not_to_contain_text("linearised")
    assert value_of(page) == simulate(kb=kb).functionals["G"]


def test_the_linearisation_is_of_first_order_through_jumps(visit: Callable[..., Page], service: LocalService) -> None:
    """Where the change of a parameter is halved, the error of the linearised curves is a quarter."""
    page, system = visit("model=impact_oscillator"), impact_oscillator.system()
    url = f"{service.url}/v1/models/impact_oscillator/forward"
    answer = httpx.post(url, json={"points": 1601}).json()
    errors = []
    for size in (2e-2, 1e-2):
        change = [size * (0.3, -0.2, 0.5, 0.4, -0.1, -0.3, 0.2)[i] * value for i, value in enumerate(system.nominal)]
        sol = dh.simulate(system, impact_oscillator.t_span, parameters=system.nominal + change, rtol=1e-10, atol=1e-12)
        ends = [0.0, *sol.event_table.t, 12.0]
        moved = page.evaluate(OWN_MODULE, ["linearise.js", "predict", [answer, change, {"name": "v", "index": None}]])
        assert moved["times"] == pytest.approx(sol.event_table.t.tolist(), abs=5 * size)
        worst = 0.0
        for piece, begin, end in zip(moved["pieces"], ends[:-1], ends[1:], strict=True):
            t, v = np.array(piece["t"]), np.array(piece["y"])
            inside = (t > begin) & (t < end)
            assert inside.sum() > 0.9 * t.size
            worst = max(worst, np.abs(sol(t[inside])["v"] - v[inside]).max())
        errors.append(worst)
    assert errors[0] < 0.1
    assert 3.3 < errors[0] / errors[1] < 4.7


def test_an_answer_that_comes_late_is_dropped(service: LocalService, context: Callable[..., BrowserContext]) -> None:
    """Even where the browser does not give up the request."""
    page = context().new_page()
    page.add_init_script("AbortController.prototype.abort = () => {}")
    page.goto(service.url)
    computed(page)
    gate = Gate(page)
    page.locator("#number-0").fill("300")
    page.wait_for_timeout(300)
    late = list(gate.held)
    assert len(late) == 2
    page.locator("#number-0").fill("350")
    page.wait_for_timeout(300)
    for route in gate.held[2:]:
        route.continue_()
    computed(page)
    for route in late:
        route.continue_()
    page.wait_for_timeout(500)
    computed(page)
    assert value_of(page) == simulate(ka=350).functionals["G"]


def test_derivatives_that_take_long_are_shown_after_the_run(visit: Callable[..., Page]) -> None:
    page = visit()
    gate = Gate(page, re.compile(r"/forward$"))
    page.locator("#number-0").fill("300")
    computed(page, derivatives=False)
    expect(page.locator("#refusal")).to_contain_text("Derivatives are being computed")
    assert value_of(page) == simulate(ka=300).functionals["G"]
    assert page.locator("#functionals .bar").count() == 0
    gate.open()
    expect(page.locator("#functionals .bar")).to_have_count(4)
    expect(page.locator("#refusal")).to_be_hidden()


def test_a_change_of_the_interval_is_not_linearised(visit: Callable[..., Page]) -> None:
    page = visit()
    gate = Gate(page)
    page.locator("#end").fill("6")
    expect(page.locator("#state[data-kind=previous]")).to_contain_text("The previous run is shown")
    page.wait_for_timeout(600)
    gate.open()
    computed(page)
    assert page.locator("#events tbody tr").count() == sum(event.time < 6 for event in simulate().events)


# -- errors ----------------------------------------------------------------------------------------------


def test_a_failed_run_is_told_in_words_and_what_is_shown_is_no_result(visit: Callable[..., Page]) -> None:
    page = visit("model=impact_oscillator")
    page.locator("#number-0").fill("0")
    problem = page.locator("#problem")
    expect(problem).to_contain_text("ConsistencyError")
    expect(problem).to_contain_text("Remedy")
    expect(problem).to_have_attribute("role", "alert")
    expect(page.locator("#state")).to_contain_text("the run failed")
    expect(page.locator("#save-csv")).to_be_disabled()
    page.locator("#parameters .reset").first.click()
    computed(page)
    expect(problem).to_be_hidden()


def test_an_error_is_shown_at_the_input_that_it_names(visit: Callable[..., Page]) -> None:
    page = visit()
    page.locator("#end").fill("-1")
    expect(page.locator("#run-error")).to_contain_text("reversed")
    expect(page.locator("#end")).to_have_attribute("aria-invalid", "true")
    page.locator("#end").fill("2")
    computed(page)
    expect(page.locator("#run-error")).to_be_hidden()
    page.locator("#points").fill("1")
    expect(page.locator("#problem")).to_contain_text("greater than or equal to 2")
    page.locator("#points").fill("11")
    computed(page)


def test_refused_derivatives_leave_the_run_and_their_reason(visit: Callable[..., Page]) -> None:
    page = visit("model=graze&t=0,2")
    expect(page.locator("#refusal")).to_contain_text("No derivatives here")
    assert page.locator("#functionals .figure").count() == 1
    assert page.locator("#functionals .bar").count() == 0
    press(page, "#slider-0", "ArrowRight", 12)
    computed(page)
    expect(page.locator("#refusal")).to_be_hidden()
    assert page.locator("#functionals .bar").count() == 1


def test_gradients_come_by_the_adjoint_method_where_sensitivities_are_too_many_numbers(
    service: LocalService, visit: Callable[..., Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    service.change(monkeypatch, max_outputs=6000)
    page = visit()
    assert page.locator("#points").input_value() == "120"  # half of what is allowed, which leaves room for events
    expect(page.locator("#refusal")).to_be_hidden()
    page.locator("#points").fill("401")
    expect(page.locator("#refusal")).to_contain_text("No linearisation here")
    shown = page.locator("#functionals [data-derivative]").all()
    found = dh.adjoint_gradient(em_hysteresis.system(), (0, 10), **TOLERANCES)
    assert [float(str(one.get_attribute("data-derivative"))) for one in shown] == found.gradient.tolist()


def test_a_server_that_does_not_answer_for_a_while_is_survived(visit: Callable[..., Page]) -> None:
    page = visit()
    page.context.set_offline(True)
    press(page, "#slider-1", "ArrowRight", 3)
    expect(page.locator("#banner")).to_contain_text("does not answer")
    expect(page.locator(f"#state{LINEARISED}")).to_contain_text("the server does not answer")
    press(page, "#slider-1", "ArrowRight", 3)
    kb = float(page.locator("#number-1").input_value())
    page.context.set_offline(False)
    computed(page)
    expect(page.locator("#banner")).to_be_hidden()
    assert value_of(page) == simulate(kb=kb).functionals["G"]


@pytest.mark.operation
def test_a_server_that_stops_and_starts_again_is_survived(context: Callable[..., BrowserContext]) -> None:
    page = context().new_page()
    with running("em_hysteresis") as first:
        page.goto(first.url)
        computed(page)
        first.stop(signal.SIGKILL)
    press(page, "#slider-1", "ArrowRight", 3)
    expect(page.locator("#banner")).to_contain_text("does not answer")
    expect(page.locator(f"#state{LINEARISED}")).to_contain_text("the server does not answer")
    press(page, "#slider-1", "ArrowRight", 3)
    kb = float(page.locator("#number-1").input_value())
    with running("em_hysteresis", port=int(first.url.rpartition(":")[2])):
        computed(page)
        expect(page.locator("#banner")).to_be_hidden()
        assert value_of(page) == simulate(kb=kb).functionals["G"]


def test_a_token_is_asked_for_and_kept_for_the_session(
    service: LocalService, context: Callable[..., BrowserContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    service.change(monkeypatch, token="sixteen or more characters")
    page = context().new_page()
    page.goto(f"{service.url}/#model=hybrid_ode")
    expect(page.locator("#token")).to_be_focused()
    page.locator("#token").fill("a wrong token of this length")
    page.keyboard.press("Enter")
    expect(page.locator("#token-text")).to_contain_text("refused")
    page.locator("#token").fill("sixteen or more characters")
    page.keyboard.press("Enter")
    computed(page)
    page.reload()
    computed(page)
    assert page.evaluate("() => Object.keys(localStorage).length + document.cookie.length") == 0


# -- two settings, and the address -----------------------------------------------------------------------


def test_two_settings_are_compared(visit: Callable[..., Page]) -> None:
    page = visit()
    page.locator("#keep").click()
    page.locator("#number-0").fill("400")
    computed(page)
    a, b = simulate().functionals["G"], simulate(ka=400).functionals["G"]
    rows = {row.locator("th").inner_text(): row.locator("td") for row in page.locator("#comparison tbody tr").all()}
    shown = [float(text.replace("−", "-")) for text in rows["G"].all_text_contents()[:3]]
    np.testing.assert_allclose(shown, [a, b, b - a], rtol=1e-3)
    assert rows["ka"].all_text_contents()[1] == "400"
    assert "kb" not in rows
    expect(page.locator("#legend")).to_contain_text("A")
    page.select_option("#layout", "beside")
    expect(page.locator("#trajectories-kept canvas")).to_have_count(3)
    page.locator("#take").click()
    computed(page)
    assert value_of(page) == a
    page.locator("#drop").click()
    expect(page.locator("#comparison-section")).to_be_hidden()


def test_the_address_gives_the_setting_to_a_colleague(visit: Callable[..., Page]) -> None:
    page = visit()
    page.locator("#number-2").fill("180.5")
    page.locator("#points").fill("51")
    page.locator("details.choice summary").click()
    page.locator("#variables input[value=v]").uncheck()
    page.select_option("#phase-y", "z")
    computed(page)
    page.locator("#copy-link").click()
    other = visit(page.url.partition("#")[2])
    assert value_of(other) == value_of(page) == simulate(alpha=180.5).functionals["G"]
    assert other.locator("#number-2").input_value() == "180.5"
    assert other.locator("#points").input_value() == "51"
    assert other.locator("#trajectories h3").all_text_contents() == ["u, displacement", "z, stress"]
    assert other.locator("#phase-y").input_value() == "z"


@pytest.mark.parametrize(
    "fragment",
    [
        "model=em_hysteresis&p.ka=abc&t=1&points=-3&show=q&phase=u",
        *(pytest.param(text, marks=pytest.mark.operation) for text in ("model=nothing", "%%%")),
    ],
)
def test_a_wrong_address_is_no_harm(visit: Callable[..., Page], fragment: str) -> None:
    page = visit(fragment)
    assert page.locator("#model").input_value() == "em_hysteresis"
    assert page.locator("#trajectories canvas").count() == 3


# -- for everyone ----------------------------------------------------------------------------------------


def test_every_control_has_a_name_and_the_order_of_tabs_is_that_of_reading(visit: Callable[..., Page]) -> None:
    page = visit()
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("input, select, button, [tabindex='0']")]
            .filter((e) => e.checkVisibility() && !(e.labels?.length || e.ariaLabel || e.textContent.trim()))
            .map((e) => e.outerHTML)"""
    )
    assert unnamed == []
    order = []
    for _ in range(9):
        page.keyboard.press("Tab")
        order.append(page.evaluate("() => document.activeElement.id || document.activeElement.className"))
    assert order[:5] == ["skip", "model", "", "reset", "number-0"]
    assert order.index("number-0") < order.index("slider-0") < order.index("number-1")
    ids = page.evaluate("() => [...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))
    described = page.evaluate(
        """() => [...document.querySelectorAll("[aria-describedby]")]
            .flatMap((e) => e.getAttribute("aria-describedby").split(" "))"""
    )
    assert set(described) <= set(ids)
    assert page.locator("#state").get_attribute("aria-live") == "polite"


def test_plots_are_read_with_the_keyboard(shown: Page) -> None:
    page, sol = shown, simulate()
    plot, readout = page.locator("#trajectories .chart").first, page.locator("#readout")
    assert "from −0.16" in str(plot.get_attribute("aria-label"))
    plot.focus()
    page.keyboard.press("n")
    page.keyboard.press("n")
    expect(readout).to_contain_text(f"event 2, t = {sol.events[1].time:.5f}")
    expect(page.locator("#events [data-event='1']")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Home")
    page.keyboard.press("PageDown")
    expect(readout).to_contain_text("t = 0.125")
    page.keyboard.press("+")
    expect(page.locator("#unzoom")).to_be_visible()
    page.keyboard.press("0")
    expect(page.locator("#unzoom")).to_be_hidden()


@pytest.mark.parametrize(
    "model",
    ["impact_oscillator", *(pytest.param(name, marks=pytest.mark.operation) for name in ("em_hysteresis", "chain"))],
)
def test_a_phone_needs_no_horizontal_scrolling(visit: Callable[..., Page], model: str) -> None:
    page = visit(f"model={model}", viewport=PHONE, has_touch=True, is_mobile=True)
    page.locator("#keep").click()
    page.locator("#number-0").fill("0.9")
    computed(page)
    page.locator("#python-section summary").click()
    for layout in ("over", "beside"):
        page.select_option("#layout", layout)
        page.wait_for_timeout(200)
        assert page.evaluate("() => [document.documentElement.scrollWidth, innerWidth]") == [360, 360]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_light_and_dark(shown: Page, scheme: Any) -> None:
    shown.emulate_media(color_scheme=scheme)
    names = ("ground", "panel", "text", "quiet", "accent", "computed", "linearised", "kept", "wrong", "wrong-ground",
             "notice-text", "notice-ground")  # fmt: skip
    found = shown.evaluate(
        """(names) => {
            const style = getComputedStyle(document.documentElement);
            return names.map((name) => style.getPropertyValue(`--${name}`).trim());
        }""",
        names,
    )
    light = {name: _luminance(colour) for name, colour in zip(names, found, strict=True)}
    assert (light["panel"] < 0.1) == (scheme == "dark")
    for text in ("text", "quiet", "accent", "computed", "linearised", "kept", "wrong"):
        for ground in ("panel", "ground"):
            assert _contrast(light[text], light[ground]) >= 4.5, (text, ground)
    assert _contrast(light["wrong"], light["wrong-ground"]) >= 4.5
    assert _contrast(light["notice-text"], light["notice-ground"]) >= 4.5


def _luminance(colour: str) -> float:
    """Relative luminance of #rrggbb (WCAG 2.2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(a: float, b: float) -> float:
    return (max(a, b) + 0.05) / (min(a, b) + 0.05)
