// Functionals with their gradients, events, and the comparison of two settings, as tables.

import { columnsOf } from "./model.js";
import { counted, element, short, signed, table } from "./format.js";

const MANY_EVENTS = 200;

/** Values of a functional as a list of {label, value}. */
export function valuesOf({ name }, value) {
  if (!Array.isArray(value)) return [{ label: name, value, index: null }];
  return value.map((entry, index) => ({ label: `${name}[${index}]`, value: entry, index }));
}

/** Relative effects p dG/dp / G of one value: [{label, derivative, effect}]; effect is null where G or p is 0. */
export function effectsOf(answer, values, functional, index) {
  const gradient = index === null ? answer.gradients[functional] : answer.gradients[functional][index];
  const value = index === null ? answer.functionals[functional] : answer.functionals[functional][index];
  return answer.wrt.map((label, i) => {
    const effect = (values.get(label) * gradient[i]) / value;
    return { label, derivative: gradient[i], effect: Number.isFinite(effect) && values.get(label) !== 0 ? effect : null };
  });
}

/** Tables of all functionals. `run` is the last computed one, {answer, refusal, byLabel}; `linear` replaces its values. */
export function functionals(description, run, linear) {
  if (!description.functionals.length) return [element("p", { class: "hint" }, "The model states no functional.")];
  return description.functionals.flatMap((functional) => {
    const predicted = linear ? valuesOf(functional, linear.functional(functional.name)) : null;
    return valuesOf(functional, run.answer.functionals[functional.name]).map(({ label, value, index }, i) => {
      const shown = predicted
        ? [element("strong", {}, label), " ≈ ", element("span", { class: "figure" }, short(predicted[i].value, 7)), element("em", { class: "tag linearised" }, "linearised")]
        : [element("strong", {}, label), " = ", element("span", { class: "figure", "data-value": value }, short(value, 7))];
      if (!run.answer.gradients) return element("p", { class: "value" }, ...shown);
      return bars(shown, effectsOf(run.answer, run.byLabel, functional.name, index), linear !== null);
    });
  });
}

function bars(caption, effects, isPrevious) {
  const largest = effects.reduce((most, { effect }) => Math.max(most, Math.abs(effect ?? 0)), 0);
  const rows = effects.map(({ label, derivative, effect }) => {
    const bar = element("span", { class: effect < 0 ? "bar negative" : "bar positive" });
    bar.style.setProperty("--share", `${largest > 0 ? (50 * Math.abs(effect ?? 0)) / largest : 0}%`);
    return [
      label,
      element("span", { class: "track", "aria-hidden": "true" }, bar),
      element("span", { "data-effect": effect }, effect === null ? "–" : percent(effect)),
      element("span", { "data-derivative": derivative }, signed(derivative, 3)),
    ];
  });
  const found = table(
    isPrevious ? [...caption, element("small", {}, "derivatives: of the previous values")] : caption,
    ["parameter", "", element("abbr", { title: "change of the functional in percent when the parameter grows by 1 %: p dG/dp / G" }, "per +1 %"), "derivative"],
    rows,
  );
  found.className = isPrevious ? "bars previous" : "bars";
  return found;
}

function percent(effect) {
  return `${signed(effect, Math.abs(effect) < 1e-4 ? 2 : 3)} %`;
}

/** Events as a table; a row is chosen by its button. */
export function events(answer, columns, linear, chosen, onChoose) {
  const count = answer.events.length;
  if (count === 0) return [element("p", { class: "hint" }, "The run has no events.")];
  const areNamed = answer.events.some(({ transition, source, target }) => transition !== `${source}->${target}`);
  const shown = answer.events.slice(0, MANY_EVENTS);
  const rows = shown.map((event, i) => [
    element("button", { type: "button", "aria-pressed": String(i === chosen), "data-event": i, onclick: () => onChoose(i) }, String(i + 1)),
    linear ? element("em", { class: "linearised" }, `≈ ${short(linear.times[i], 7)}`) : short(event.time, 10),
    ...(areNamed ? [event.transition] : []),
    event.target === event.source ? event.source : `${event.source} → ${event.target ?? "end"}`,
    ...columns.map((column) => change(event, column)),
  ]);
  const caption = linear ? `${counted(count, "event")}, times linearised` : counted(count, "event");
  const found = table(caption, ["event", "time", ...(areNamed ? ["transition"] : []), "modes", ...columns.map(({ label }) => label)], rows);
  return count > MANY_EVENTS
    ? [found, element("p", { class: "hint" }, `The first ${MANY_EVENTS} events are shown; the CSV file of events has all.`)]
    : [found];
}

function change(event, { name, index }) {
  const of = (values) => (index === null ? values[name] : values[name]?.[index]);
  const [before, after] = [of(event.before), of(event.after)];
  return before === after ? short(before, 5) : `${short(before, 5)} → ${short(after, 5)}`;
}

/** Differences between a kept run A and the current values, computed or linearised. */
export function comparison(description, entries, kept, current) {
  const rows = [];
  const row = (label, a, b, approximate, head = null) => {
    const difference = a === null || b === null || a === undefined || b === undefined ? null : b - a;
    const relative = difference === null || a === 0 ? null : (100 * difference) / Math.abs(a);
    const sign = approximate ? "≈ " : "";
    rows.push([
      head ?? label,
      short(a, 7),
      sign + short(b, 7),
      difference === null ? "–" : sign + signed(difference, 4),
      relative === null ? "–" : `${sign}${signed(relative, 3)} %`,
    ]);
  };
  entries.forEach((entry, i) => {
    const [a, b] = [kept.settings.values[i], current.settings.values[i]];
    if (a !== b) row(entry.label, a, b, false);
  });
  ["begin", "end"].forEach((word, i) => {
    const [a, b] = [kept.settings.t_span[i], current.settings.t_span[i]];
    if (a !== b) row(`${word} of the run`, a, b, false);
  });
  const { linear, answer } = current;
  for (const functional of description.functionals) {
    const now = linear ? linear.functional(functional.name) : answer?.functionals[functional.name];
    const others = valuesOf(functional, now);
    valuesOf(functional, kept.answer.functionals[functional.name]).forEach(({ label, value }, i) =>
      row(label, value, now === undefined ? null : others[i].value, linear !== null),
    );
  }
  const times = linear ? linear.times : (answer?.events.map(({ time }) => time) ?? []);
  row("number of events", kept.answer.events.length, answer ? times.length : null, false);
  const shared = Math.min(times.length, kept.answer.events.length, MANY_EVENTS);
  for (let i = 0; i < shared; i += 1) {
    const { time, transition } = kept.answer.events[i];
    const same = linear !== null || answer.events[i].transition === transition;
    if (same) row(`time of event ${i + 1}`, time, times[i], linear !== null);
  }
  for (const { name, size, label, index } of columnsOf(description)) {
    if (size > 3) continue;
    const at = (values) => (index === null ? values?.[name] : values?.[name]?.[index]);
    if (!linear) row(`${label} at the end`, at(kept.answer.final.values), at(answer?.final.values), false);
  }
  return table("Setting A and the current one", ["", "A", "current", "difference", "relative"], rows);
}
