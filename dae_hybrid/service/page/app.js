// The page: its state, and what changes it.

import { Service, ServiceError } from "./api.js";
import { Controls } from "./controls.js";
import * as exported from "./export.js";
import { counted, element, short } from "./format.js";
import * as forms from "./forms.js";
import { Linearised } from "./linearise.js";
import { columnsOf, entriesOf, nominal, requestOf, sameSettings } from "./model.js";
import { Phase, Trajectories, layersOf, valueOf } from "./plots.js";
import { Runner, persistent } from "./runner.js";
import * as tables from "./tables.js";

const $ = (id) => document.getElementById(id);
const PHONE = window.matchMedia("(max-width: 700px)");
const SHOWN = PHONE.matches ? 1 : 3; // charts of a model at first
const HEIGHT = PHONE.matches ? 150 : 165;

/** The state: `run` is the last computed run with its settings; `kept` is the one called A. */
const state = { run: null, kept: null, busy: false, offline: null, error: null, layout: "over", zoom: null, chosen: null, cursor: null };

const service = new Service(forms.askToken);
const runner = new Runner(service, {
  started: () => change({ busy: true }),
  done: finished,
  failed: (error) => change({ busy: false, offline: null, error }),
  waiting: (error, seconds) => waiting(error, seconds, () => runner.now()),
});
const plots = {
  current: new Trajectories($("trajectories"), HEIGHT, { cursor: moveCursor, zoom: (zoom) => change({ zoom }), step, zoomBy }),
  kept: new Trajectories($("trajectories-kept"), HEIGHT, { cursor: moveCursor, zoom: (zoom) => change({ zoom }), step, zoomBy }),
  phase: new Phase($("phase"), 320),
  phaseKept: new Phase($("phase-kept"), 320),
};
let controls = null;

// -- the state -------------------------------------------------------------------------------------------------

let drawing = 0;

/** Change the state, and draw it with the next frame. */
function change(changes) {
  Object.assign(state, changes);
  drawing ||= requestAnimationFrame(() => {
    drawing = 0;
    if (state.description) draw();
  });
}

/** Whether the last computed run belongs to the current settings. */
function isCurrent() {
  return state.run !== null && sameSettings(state.run.settings, state.settings);
}

/** The linearisation of the last run at the current parameters, if there is one. */
function linearisation() {
  const { run, settings } = state;
  if (!run || !run.answer.sensitivities || isCurrent()) return null;
  if (!sameSettings({ ...run.settings, values: settings.values }, settings)) return null;
  const now = new Map(state.entries.map(({ label }, i) => [label, settings.values[i]]));
  return new Linearised(run.answer, run.answer.wrt.map((label) => now.get(label) - run.byLabel.get(label)));
}

/** New settings: the address follows, a run is requested. */
function settle(settings, pause) {
  change({ settings, error: null });
  writeHash();
  const { description, entries } = state;
  const functionals = description.functionals.map(({ name }) => name);
  const path = `v1/models/${encodeURIComponent(description.name)}`;
  const call = { path, body: requestOf(entries, settings), functionals, settings };
  runner.request(call, pause);
}

function finished({ answer, refusal, isPending }, { settings }) {
  const byLabel = new Map(state.entries.map(({ label }, i) => [label, settings.values[i]]));
  const chosen = state.chosen !== null && state.chosen < answer.events.length ? state.chosen : null;
  change({ run: { answer, refusal, isPending, settings, byLabel }, busy: false, offline: null, error: null, chosen });
}

function waiting(error, seconds, again) {
  const text = `${error.message} Next attempt in ${Math.ceil(seconds)} s; sliders show the linearisation meanwhile.`;
  $("again").onclick = again;
  $("banner-text").textContent = text;
  $("banner").hidden = false;
  change({ busy: false, offline: text });
}

let writing = 0;

/** Write the settings into the address, but not with every step of a slider: browsers limit that. */
function writeHash(pause = 300) {
  const write = () => {
    const { description, entries, settings, initial, show, phase } = state;
    history.replaceState(null, "", exported.toHash({ model: description.name, entries, settings, initial, show, phase }));
  };
  clearTimeout(writing);
  if (pause > 0) writing = setTimeout(write, pause);
  else write();
}

// -- drawing ---------------------------------------------------------------------------------------------------

function draw() {
  const { run, kept, description, entries, settings, layout } = state;
  const found = linearisation();
  const linear = found?.ordered ? found : null;
  const isFresh = isCurrent();
  $("banner").hidden = state.offline === null;
  setText("state", describeState(isFresh, linear, found !== null && linear === null));
  $("state").dataset.kind = isFresh ? "computed" : linear ? "linearised" : "previous";
  $("main").dataset.fresh = isFresh;
  forms.showProblem(state.error, entries, controls);
  drawPlots(isFresh, linear);
  $("keep").disabled = !isFresh || run.isPending;
  $("unzoom").hidden = state.zoom === null;
  $("compare").hidden = kept === null;
  for (const id of ["save-csv", "save-events"]) $(id).disabled = !isFresh;
  setText("python", exported.pythonCall(description, entries, settings));
  $("comparison-section").hidden = kept === null;
  if (!run) return;
  $("functionals").replaceChildren(...tables.functionals(description, run, linear));
  const stale = !isFresh && !linear;
  for (const id of ["functionals", "events"]) $(id).classList.toggle("previous", stale);
  drawEvents(run, linear);
  drawNotes(run, isFresh);
  if (kept) {
    const answer = isFresh || linear ? run.answer : null;
    $("comparison").replaceChildren(tables.comparison(description, entries, kept, { settings, answer, linear }));
  }
  drawReadout();
  $("main").dataset.layout = layout;
}

function setText(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

function describeState(isFresh, linear, isFar) {
  const { run, busy, offline, error } = state;
  const going = error ? "the run failed" : offline ? "the server does not answer" : busy ? "computing …" : "waiting …";
  if (isFresh) return `Computed: to t = ${short(run.answer.t_end)}, ${counted(run.answer.events.length, "event")}`;
  if (linear) return `Linearised from the last computed run; ${going}`;
  if (isFar) return `Too far for a linearisation (events would change their order): the previous run is shown; ${going}`;
  return run ? `The previous run is shown; ${going}` : going[0].toUpperCase() + going.slice(1);
}

function drawPlots(isFresh, linear) {
  const { run, kept, description, settings, zoom, chosen, layout } = state;
  const isBeside = kept !== null && layout === "beside";
  const span = isFresh || !run ? settings.t_span : run.answer.t_span;
  const shared = { modes: description.modes, zoom, span };
  const view = {
    ...shared, base: run?.answer ?? null, role: isFresh ? "computed" : "previous", linear, chosen,
    other: kept && !isBeside ? kept.answer : null,
  };
  const keptView = { ...shared, span: kept?.answer.t_span ?? span, base: kept?.answer ?? null, role: "kept", linear: null, other: null, chosen: null };
  for (const id of ["stack-kept", "phase-stack-kept", "stack-title"]) $(id).hidden = !isBeside;
  const ranges = new Map();
  if (isBeside)
    for (const { column } of plots.current.panels) {
      const [a, b] = [plots.current.range(view, column), plots.kept.range(keptView, column)];
      ranges.set(column.label, [Math.min(a[0], b[0]), Math.max(a[1], b[1])]);
    }
  plots.current.show(view, ranges);
  if (isBeside) plots.kept.show(keptView, ranges);
  if (plots.phase.columns) {
    plots.phase.show(view, isBeside ? keptView : null);
    if (isBeside) plots.phaseKept.show(keptView, view);
  }
  $("legend").replaceChildren(...legend(view).map(({ text, colour, dash }) =>
    element("li", {}, element("span", { class: `line ${colour}${dash ? " dashed" : ""}` }), text)),
    ...description.modes.map((mode, i) => element("li", {}, element("span", { class: `swatch mode-${i % 8}` }), mode)));
}

/** Lines of the legend for a view. */
function legend({ base, role, linear, other }) {
  return [
    base && role === "computed" ? { text: "computed", colour: "computed" } : null,
    base && role === "previous" ? { text: "computed, previous values", colour: "previous" } : null,
    linear ? { text: "linearised", colour: "linearised", dash: [7, 4] } : null,
    other ? { text: "A", colour: "kept", dash: [2, 3] } : null,
  ].filter(Boolean);
}

function drawEvents(run, linear) {
  const focused = document.activeElement?.dataset?.event;
  const columns = plots.current.panels.map(({ column }) => column);
  $("events").replaceChildren(...tables.events(run.answer, columns, linear, state.chosen, chooseEvent));
  if (focused !== undefined) $("events").querySelector(`[data-event="${focused}"]`)?.focus();
}

function drawNotes(run, isFresh) {
  $("refusal").hidden = run.refusal === null && !run.isPending;
  if (run.isPending) setText("refusal", "Derivatives are being computed.");
  else if (run.refusal) $("refusal").textContent = `${run.answer.gradients ? "No linearisation here." : "No derivatives here."} ${run.refusal.detail} ${run.refusal.remedy ?? ""}`;
  const notes = [...(run.answer.warnings ?? []), ...(run.answer.diagnostics ?? [])];
  $("notes").hidden = notes.length === 0 || !isFresh;
  $("notes").replaceChildren(...[...new Set(notes)].map((note) => element("li", {}, note)));
}

// -- the cursor ------------------------------------------------------------------------------------------------

function moveCursor(time) {
  state.cursor = time;
  for (const stack of [plots.current, plots.kept]) stack.point(time);
  if (state.run) drawReadout();
}

function drawReadout() {
  const { run, cursor } = state;
  if (cursor === null) return setText("readout", "Hover, or focus a plot and use the arrow keys, to read values; drag to zoom.");
  const { answer } = run;
  const linear = linearisation();
  const values = plots.current.panels.slice(0, 6).map(({ column }) => {
    const now = valueOf(layersOf({ base: answer, role: "computed" }, column)[0].pieces, cursor);
    const moved = linear?.ordered ? `, linearised ${short(valueOf(linear.curve(column), cursor), 4)}` : "";
    return `${column.label} = ${short(now, 5)}${moved}`;
  });
  const at = answer.t.findLastIndex((t) => t <= cursor);
  const mode = answer.modes[Math.max(0, at)] ?? "–";
  const event = state.chosen !== null && answer.events[state.chosen]?.time === cursor ? `event ${state.chosen + 1}, ` : "";
  const previous = isCurrent() ? "" : "previous run: ";
  return setText("readout", `${previous}${event}t = ${short(cursor, 6)}, ${mode}: ${values.join("; ")}`);
}

/** Move the cursor by outputs, or to an event. */
function step(count, toEvent) {
  if (!state.run) return;
  const { answer } = state.run;
  if (toEvent) {
    const next = state.chosen === null ? (count > 0 ? 0 : answer.events.length - 1) : state.chosen + count;
    if (next >= 0 && next < answer.events.length) chooseEvent(next);
    return;
  }
  const at = state.cursor === null ? 0 : answer.t.findLastIndex((t) => t <= state.cursor);
  moveCursor(answer.t[Math.min(answer.t.length - 1, Math.max(0, at + count))]);
}

function chooseEvent(index) {
  change({ chosen: index });
  moveCursor(state.run.answer.events[index].time);
}

/** Zoom about the cursor by a factor; 0 shows everything. */
function zoomBy(factor) {
  const [a, b] = state.zoom ?? state.settings.t_span;
  const centre = state.cursor ?? (a + b) / 2;
  change({ zoom: factor === 0 ? null : [centre + factor * (a - centre), centre + factor * (b - centre)] });
}

// -- a model ---------------------------------------------------------------------------------------------------

async function open(name) {
  runner.cancel();
  clearTimeout(writing);
  const description = await persistent(() => service.get(`v1/models/${encodeURIComponent(name)}`), waiting);
  const entries = entriesOf(description);
  const columns = columnsOf(description);
  const initial = nominal(description, entries);
  const isOwn = exported.modelIn(location.hash) === name;
  const found = exported.fromHash(isOwn ? location.hash : "", entries, initial);
  const known = new Map(columns.map((column) => [column.label, column]));
  const show = found.show.filter((label) => known.has(label));
  const main = columns.filter(({ kind }) => kind === "differential" || kind === "algebraic");
  const phase = found.phase.length === 2 && found.phase.every((label) => known.has(label))
    ? found.phase : columns.slice(0, 2).map(({ label }) => label);
  Object.assign(state, {
    description, entries, initial, columns, known, phase, run: null, kept: null, zoom: null, chosen: null, cursor: null, offline: null,
    show: show.length ? show : main.slice(0, SHOWN).map(({ label }) => label),
  });
  $("model").value = name;
  $("title").textContent = description.title === name ? "" : description.title;
  setText("run-title", description.t_span ? "Run" : "Run (the model states no interval)");
  document.title = `${name} – dae_hybrid`;
  controls = new Controls($("parameters"), entries, (index, value) =>
    settle({ ...state.settings, values: state.settings.values.with(index, value) }));
  $("main").hidden = false;
  for (const id of ["functionals", "events", "comparison", "readout"]) $(id).replaceChildren();
  chooseVariables();
  choosePhase();
  controls.set(found.settings.values);
  forms.showRunInputs(found.settings);
  settle(found.settings, 0);
}

function chooseVariables() {
  const box = ({ label }) => element("label", {}, element("input", {
    type: "checkbox", value: label, checked: state.show.includes(label), onchange: (event) => {
      const chosen = [...$("variables").querySelectorAll("input:checked")].map(({ value }) => value);
      if (!chosen.length) event.target.checked = true;
      state.show = chosen.length ? chosen : [label];
      rebuild();
      writeHash();
    } }), label);
  $("variables").replaceChildren(...state.columns.map(box));
  rebuild();
}

function rebuild() {
  const columns = state.show.map((label) => state.known.get(label));
  setText("chosen-variables", state.show.join(", "));
  plots.current.choose(columns);
  plots.kept.choose(columns);
  change({});
}

function choosePhase() {
  const single = state.columns.length < 2;
  document.querySelector(".phase-row").hidden = $("phase").hidden = single;
  for (const plot of [plots.phase, plots.phaseKept]) if (!single) plot.choose(...state.phase.map((label) => state.known.get(label)));
    else plot.columns = null;
  ["phase-x", "phase-y"].forEach((id, i) => {
    $(id).replaceChildren(...state.columns.map(({ label }) => element("option", { value: label, selected: label === state.phase[i] }, label)));
  });
}

function apply(settings) {
  controls.set(settings.values);
  forms.showRunInputs(settings);
  settle(structuredClone(settings), 0);
}

// -- actions ---------------------------------------------------------------------------------------------------

function savePicture() {
  const { description, entries, settings, kept, layout, run } = state;
  const isBeside = kept !== null && layout === "beside";
  const linear = linearisation();
  const role = isCurrent() ? "computed" : "previous";
  const lines = [exported.settingsInWords(entries, settings), ...(kept ? [`A: ${exported.settingsInWords(entries, kept.settings)}`] : [])];
  const stacks = [
    ...(isBeside ? [{ heading: "A", charts: exported.chartsOf(plots.kept) }] : []),
    { heading: isBeside ? "current" : "", charts: exported.chartsOf(plots.current) },
  ];
  const phase = plots.phase.columns && { heading: "", charts: [{ canvas: plots.phase.chart.canvas, text: "phase plot" }] };
  const lineKinds = legend({ base: run?.answer, role, linear: linear?.ordered ? linear : null, other: kept && !isBeside });
  exported.picture({ title: `${description.name}: ${description.title}`, lines, modes: description.modes, stacks, phase, legend: lineKinds })
    .then((blob) => exported.download(`${description.name}.png`, blob));
}

function listen() {
  const on = (id, type, action) => $(id).addEventListener(type, action);
  on("model", "change", () => begin(() => open($("model").value)));
  on("reset", "click", () => apply(state.initial));
  for (const id of forms.RUN_INPUTS)
    on(id, "input", () => {
      const given = forms.readRunInputs(state.settings);
      if (given) settle(given, 400);
    });
  on("unzoom", "click", () => change({ zoom: null }));
  on("keep", "click", () => change({ kept: state.run }));
  on("drop", "click", () => change({ kept: null }));
  on("take", "click", () => apply(state.kept.settings));
  on("layout", "change", () => change({ layout: $("layout").value }));
  for (const id of ["phase-x", "phase-y"])
    on(id, "change", () => {
      state.phase = [$("phase-x").value, $("phase-y").value];
      choosePhase();
      writeHash();
      change({});
    });
  const name = () => state.description.name;
  on("save-csv", "click", () => exported.download(`${name()}.csv`, exported.outputsAsCsv(state.description, state.run.answer), "text/csv"));
  on("save-events", "click", () => exported.download(`${name()}_events.csv`, exported.eventsAsCsv(state.description, state.run.answer), "text/csv"));
  on("save-png", "click", savePicture);
  on("copy-link", "click", () => {
    writeHash(0);
    forms.copy($("copy-link"), location.href);
  });
  on("copy-python", "click", () => forms.copy($("copy-python"), $("python").textContent));
  on("save-python", "click", () => exported.download(`${name()}.py`, $("python").textContent, "text/x-python"));
  window.addEventListener("hashchange", () => begin(() => open(exported.modelIn(location.hash) ?? name())));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const plot of Object.values(plots)) plot.restyle();
    change({});
  });
}

/** Carry out what needs the server; an error that no run causes is shown in the banner. */
async function begin(action) {
  try {
    await action();
  } catch (error) {
    if (!(error instanceof ServiceError)) throw error;
    waiting(error, 0, () => begin(action));
    $("banner-text").textContent = `${error.message} ${error.problem.remedy ?? ""}`;
  }
}

async function start() {
  const { models } = await persistent(() => service.get("v1/models"), waiting);
  $("banner").hidden = true;
  $("model").replaceChildren(...models.map(({ name }) => element("option", { value: name }, name)));
  const wanted = exported.modelIn(location.hash);
  await open(models.some(({ name }) => name === wanted) ? wanted : models[0].name);
}

listen();
begin(start);
