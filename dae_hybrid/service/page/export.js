// What leaves the page: its address, data as CSV, a Python program, a picture.

import { columnIn, columnsOf, parametersOf } from "./model.js";
import { short } from "./format.js";
import { theme } from "./chart.js";
import { titleOf } from "./plots.js";

// -- the address: #model=ball&p.e=0.7&t=0,10&points=401&show=y,v&phase=y,v ---------------------------------------

/** The fragment of an address that gives these settings; what is as stated by the model is left out. */
export function toHash({ model, entries, settings, initial, show, phase }) {
  const query = new URLSearchParams({ model });
  entries.forEach((entry, i) => {
    if (settings.values[i] !== initial.values[i]) query.set(`p.${entry.label}`, settings.values[i]);
  });
  if (String(settings.t_span) !== String(initial.t_span)) query.set("t", settings.t_span.join(","));
  for (const name of ["points", "rtol", "atol"])
    if (settings[name] !== initial[name]) query.set(name, settings[name]);
  query.set("show", show.join(","));
  query.set("phase", phase.join(","));
  return `#${query}`;
}

/** The settings of an address; what it does not state, or states wrongly, is as in `initial`. */
export function fromHash(hash, entries, initial) {
  const query = new URLSearchParams(hash.replace(/^#/, ""));
  const number = (text, otherwise) => (text !== null && text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : otherwise);
  const span = (query.get("t") ?? "").split(",").map((text) => number(text, NaN));
  const list = (name) => (query.get(name) ?? "").split(",").filter(Boolean);
  return {
    settings: {
      values: entries.map((entry, i) => number(query.get(`p.${entry.label}`), initial.values[i])),
      t_span: span.length === 2 && span.every(Number.isFinite) ? span : [...initial.t_span],
      points: Math.max(2, Math.round(number(query.get("points"), initial.points))),
      rtol: number(query.get("rtol"), initial.rtol),
      atol: typeof initial.atol === "number" ? number(query.get("atol"), initial.atol) : initial.atol,
    },
    show: list("show"),
    phase: list("phase"),
  };
}

/** The model that an address names. */
export function modelIn(hash) {
  return new URLSearchParams(hash.replace(/^#/, "")).get("model");
}

// -- CSV ---------------------------------------------------------------------------------------------------------

/** Outputs of a run, one row per time, with every digit; a value that does not exist is an empty cell. */
export function outputsAsCsv(description, answer) {
  const columns = columnsOf(description);
  const values = columns.map((column) => columnIn(answer.values, column));
  return csv(
    ["t", "mode", ...columns.map(({ label }) => label)],
    answer.t.map((t, i) => [t, answer.modes[i], ...values.map((column) => column?.[i])]),
  );
}

/** Events of a run, one row per event. */
export function eventsAsCsv(description, answer) {
  const columns = columnsOf(description);
  const of = (values, { name, index }) => (index === null ? values[name] : values[name]?.[index]);
  return csv(
    ["time", "transition", "source", "target", ...columns.flatMap(({ label }) => [`${label} before`, `${label} after`])],
    answer.events.map((event) => [
      event.time, event.transition, event.source, event.target,
      ...columns.flatMap((column) => [of(event.before, column), of(event.after, column)]),
    ]),
  );
}

function csv(head, rows) {
  const cell = (value) => {
    const text = String(value ?? "");
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [head, ...rows].map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

// -- Python ------------------------------------------------------------------------------------------------------

/** A Python program that computes the same. */
export function pythonCall(description, entries, settings) {
  const parameters = Object.entries(parametersOf(entries, settings.values));
  const [begin, end] = settings.t_span.map(python);
  const gradients = description.functionals.map(
    ({ name }) => `gradient_${identifier(name)} = dh.adjoint_gradient(system, functional=${JSON.stringify(name)}, **run)`,
  );
  const [first, ...others] = description.python;
  return [
    "import numpy as np",
    "",
    "import dae_hybrid as dh",
    first,
    ...others,
    "run = {",
    `    "t_span": (${begin}, ${end}),`,
    '    "parameters": {',
    ...parameters.map(([name, value]) => `        ${JSON.stringify(name)}: ${python(value)},`),
    "    },",
    `    "rtol": ${python(settings.rtol)},`,
    `    "atol": ${python(settings.atol)},`,
    "}",
    `sol = dh.simulate(system, **run, t_eval=np.linspace(${begin}, ${end}, ${settings.points}))`,
    ...gradients,
    "",
  ].join("\n");
}

function python(value) {
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") return JSON.stringify(value);
  const text = String(value);
  return Number.isInteger(value) && !text.includes("e") ? `${text}.0` : text;
}

function identifier(name) {
  return name.replace(/\W/g, "_");
}

// -- the picture -------------------------------------------------------------------------------------------------

/** One PNG of all charts, with titles, lines of explanation and the legend of modes. */
export function picture({ title, lines, modes, stacks, phase, legend }) {
  const ratio = window.devicePixelRatio || 1;
  const [gap, line] = [16, 20];
  const columns = [...stacks, ...(phase ? [phase] : [])];
  const widths = columns.map(({ charts }) => Math.max(...charts.map(({ canvas }) => canvas.width / ratio)));
  const heights = columns.map(({ charts }) => charts.reduce((sum, { canvas }) => sum + canvas.height / ratio + line, line));
  const top = gap + line * (2 + lines.length + 1);
  const sheet = document.createElement("canvas");
  const width = widths.reduce((sum, own) => sum + own + gap, gap);
  const height = top + Math.max(...heights) + gap;
  sheet.width = width * ratio;
  sheet.height = height * ratio;
  const ctx = sheet.getContext("2d");
  const colours = theme();
  const write = (text, x, y, weight, colour = colours.text) => {
    ctx.font = `${weight} 13px ${colours.font}`;
    ctx.fillStyle = colour;
    ctx.fillText(text, x, y);
    return ctx.measureText(text).width;
  };
  ctx.scale(ratio, ratio);
  ctx.fillStyle = colours.ground;
  ctx.fillRect(0, 0, width, height);
  write(title, gap, gap + 13, "600");
  lines.forEach((text, i) => write(text, gap, gap + 13 + line * (i + 1), "400", colours.quiet));
  let x = gap;
  const base = gap + 13 + line * (lines.length + 1);
  for (const { text, colour, dash } of legend) {
    ctx.strokeStyle = colours[colour];
    ctx.lineWidth = 2;
    ctx.setLineDash(dash ?? []);
    ctx.beginPath();
    ctx.moveTo(x, base - 4);
    ctx.lineTo(x + 26, base - 4);
    ctx.stroke();
    ctx.setLineDash([]);
    x += 32 + write(text, x + 32, base, "400") + gap;
  }
  modes.forEach((mode, i) => {
    ctx.fillStyle = colours.modes[i % 8];
    ctx.fillRect(x, base - 10, 14, 10);
    x += 20 + write(mode, x + 20, base, "400") + gap;
  });
  let left = gap;
  columns.forEach(({ heading, charts }, k) => {
    let y = top + write(heading, left, top, "600") * 0;
    for (const { canvas, text } of charts) {
      write(text, left, y + line, "400");
      ctx.drawImage(canvas, left, y + line + 4, canvas.width / ratio, canvas.height / ratio);
      y += line + 4 + canvas.height / ratio;
    }
    left += widths[k] + gap;
  });
  return new Promise((resolve) => sheet.toBlob(resolve, "image/png"));
}

/** Parameters in one line. */
export function settingsInWords(entries, settings) {
  const values = entries.slice(0, 12).map(({ label, unit }, i) => `${label} = ${short(settings.values[i], 6)}${unit ? ` ${unit}` : ""}`);
  return `${values.join(", ")}${entries.length > 12 ? ", …" : ""}; t from ${short(settings.t_span[0])} to ${short(settings.t_span[1])}`;
}

/** The charts of a stack for `picture`. */
export function chartsOf(stack) {
  return stack.panels.map(({ column, chart }) => ({ canvas: chart.canvas, text: titleOf(column) }));
}

/** Offer a file for download. */
export function download(name, content, type) {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
