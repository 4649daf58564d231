// Trajectories, one chart per variable, and the phase plot.

import { Chart } from "./chart.js";
import { element, short } from "./format.js";
import { curveOf, piecesOf } from "./linearise.js";

const LINES = {
  computed: { colour: "computed", width: 2 },
  previous: { colour: "computed", width: 2, faint: true },
  linearised: { colour: "linearised", width: 2, dash: [7, 4] },
  overlaid: { colour: "kept", width: 1.75, dash: [2, 3] },
  kept: { colour: "kept", width: 2 },
};
const MARKS = {
  linearised: { colour: "linearised", hollow: true },
  previous: { colour: "computed", faint: true },
  computed: { colour: "text" },
  kept: { colour: "text" },
};
const STRAY = 0.75; // a linearisation widens the range of the vertical axis at most by this share on each side

/**
 * What is drawn: `base`, a computed run, in the role "computed", "previous" (of other settings) or "kept";
 * `linear`, a linearisation; `other`, a run to compare with; the names of all `modes`; the `zoom`; the `chosen` event.
 */

/** The curves of a column: [{role, pieces: [{mode, t, y}]}]. */
export function layersOf(view, column) {
  const layers = [];
  if (view.other) layers.push({ role: "overlaid", pieces: curveOf(view.other, column) });
  if (view.base) layers.push({ role: view.role, pieces: curveOf(view.base, column) });
  if (view.linear) layers.push({ role: "linearised", pieces: view.linear.curve(column) });
  return layers;
}

/** The value of a curve at a time, NaN outside of its pieces. */
export function valueOf(pieces, time) {
  for (let k = pieces.length - 1; k >= 0; k -= 1) {
    const { t, y } = pieces[k];
    if (!t.length || time < t[0] || time > t[t.length - 1]) continue;
    let i = 1;
    while (i < t.length - 1 && t[i] < time) i += 1;
    if (t.length === 1 || t[i] === t[i - 1]) return y[0];
    return y[i - 1] + ((y[i] - y[i - 1]) * (time - t[i - 1])) / (t[i] - t[i - 1]);
  }
  return NaN;
}

function extent(layers, of) {
  const range = (chosen) => {
    let [low, high] = [Infinity, -Infinity];
    for (const { pieces } of chosen)
      for (const piece of pieces)
        for (const value of of(piece)) {
          if (value < low) low = value;
          if (value > high) high = value;
        }
    return [low, high];
  };
  let [low, high] = range(layers.filter(({ role }) => role !== "linearised"));
  const stray = STRAY * (high - low || Math.abs(high) || 1);
  const [first, last] = range(layers.filter(({ role }) => role === "linearised"));
  low = Math.min(low, Math.max(first, low - stray));
  high = Math.max(high, Math.min(last, high + stray));
  if (!(low <= high)) return [-1, 1];
  const room = 0.06 * (high - low) || 0.1 * Math.abs(high) || 1;
  return [low - room, high + room];
}

/** Spans of modes: of the linearisation if there is one. */
function bandsOf({ base, linear, modes }) {
  if (!base) return [];
  const moved = (event, time) => (linear && event !== null && event >= 0 ? linear.times[event] : time);
  return piecesOf(base).map(({ from, to, mode, enters, leaves }) => ({
    from: moved(enters, from),
    to: moved(leaves, to),
    mode: modes.indexOf(mode),
  }));
}

function marksOf({ base, role, linear, chosen }) {
  const marks = (base?.events ?? []).map(({ time }, i) => ({ t: time, style: MARKS[role], chosen: i === chosen }));
  return linear ? [...marks, ...linear.times.map((t) => ({ t, style: MARKS.linearised }))] : marks;
}

export class Trajectories {
  /** `listener` has cursor(time), zoom(range or null) and step(direction, event). */
  constructor(host, height, listener) {
    this.host = host;
    this.height = height;
    this.listener = listener;
    this.panels = [];
  }

  /** Show these columns, one chart each. */
  choose(columns) {
    for (const { chart } of this.panels) chart.remove();
    this.host.replaceChildren();
    this.panels = columns.map((column, i) => {
      const heading = element("h3", {}, titleOf(column));
      const box = element("div", { class: "chart", tabindex: 0, role: "img", onkeydown: (event) => this.#key(event) });
      this.host.append(element("div", { class: "panel" }, heading, box));
      const chart = new Chart(box, {
        height: this.height,
        xLabel: i === columns.length - 1 ? "t" : undefined,
        onCursor: (at) => this.listener.cursor(at && at.x),
        onZoom: (range) => this.listener.zoom(range && range.x),
      });
      return { column, box, chart };
    });
  }

  show(view, ranges = null) {
    const x = view.zoom ?? view.span;
    const bands = bandsOf(view);
    const marks = marksOf(view);
    for (const { column, chart, box } of this.panels) {
      const layers = layersOf(view, column);
      const curves = layers.map(({ role, pieces }) => ({
        style: LINES[role],
        pieces: pieces.map(({ t, y, mode }) => ({ x: t, y, mode })),
      }));
      chart.show({ bands, curves, marks, points: [] }, x, ranges?.get(column.label) ?? this.range(view, column));
      box.setAttribute("aria-label", spoken(column, layers, view));
    }
  }

  /** The vertical range of a column. */
  range(view, column) {
    return extent(layersOf(view, column), ({ y }) => y);
  }

  /** Show the cursor at a time in every chart. */
  point(time) {
    for (const { chart } of this.panels) chart.point(time);
  }

  restyle() {
    for (const { chart } of this.panels) chart.restyle();
  }

  #key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
    const events = { n: 1, p: -1 };
    const zooms = { "+": 0.5, "-": 2, 0: 0 };
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key in steps) this.listener.step(steps[event.key], false);
    else if (event.key in events) this.listener.step(events[event.key], true);
    else if (event.key in zooms) this.listener.zoomBy(zooms[event.key]);
    else return;
    event.preventDefault();
  }
}

export function titleOf({ label, unit, description }) {
  return `${label}${unit ? ` [${unit}]` : ""}${description ? `, ${description}` : ""}`;
}

function spoken(column, layers, view) {
  const parts = layers.map(({ role, pieces }) => {
    const all = pieces.flatMap(({ y }) => y.filter((value) => !Number.isNaN(value)));
    if (!all.length) return `${role}: no values`;
    const low = all.reduce((a, b) => Math.min(a, b));
    const high = all.reduce((a, b) => Math.max(a, b));
    return `${role === "overlaid" ? "setting A" : role}: from ${short(low, 4)} to ${short(high, 4)}`;
  });
  const count = view.base?.events.length ?? 0;
  const keys = "Arrow keys move the cursor, N and P go to the next and previous event, plus, minus and 0 zoom.";
  return `${titleOf(column)} over time; ${parts.join("; ")}; events: ${count}. ${keys}`;
}

export class Phase {
  constructor(host, height) {
    this.host = host;
    this.height = height;
    this.zoom = null;
  }

  /** Choose the columns of the axes. */
  choose(x, y) {
    this.chart?.remove();
    this.host.replaceChildren();
    this.columns = [x, y];
    this.zoom = null;
    this.host.setAttribute("aria-label", `Phase plot: ${y.label} over ${x.label}, coloured by mode`);
    this.chart = new Chart(this.host, {
      height: this.height,
      xLabel: x.unit ? `${x.label} [${x.unit}]` : x.label,
      yLabel: y.unit ? `${y.label} [${y.unit}]` : y.label,
      both: true,
      onZoom: (range) => {
        this.zoom = range;
        this.show(...this.views);
      },
    });
  }

  /** Show a view, with room for `beside`, the one that stands next to it. */
  show(view, beside = null) {
    this.views = [view, beside];
    const layers = this.#layers(view);
    const all = beside ? [...layers, ...this.#layers(beside)] : layers;
    const curves = layers.map(({ role, pieces }) => ({
      style: LINES[role],
      byMode: role === "computed" || role === "kept",
      pieces,
    }));
    const ends = layers.filter(({ role }) => role === view.role).flatMap(({ pieces }) => this.#ends(pieces, view));
    this.chart.show(
      { bands: [], marks: [], curves, points: ends },
      this.zoom?.x ?? extent(all, (piece) => piece.x),
      this.zoom?.y ?? extent(all, (piece) => piece.y),
    );
  }

  #layers(view) {
    const [x, y] = this.columns.map((column) => layersOf(view, column));
    return x.map(({ role, pieces }, i) => ({
      role,
      pieces: pieces.map((of, k) => ({
        x: of.y,
        y: y[i].pieces[k].y,
        mode: view.modes.indexOf(of.mode),
        piece: of.piece,
      })),
    }));
  }

  /** Both sides of the events: hollow before, filled after. */
  #ends(pieces, view) {
    const style = MARKS[view.role];
    return pieces.flatMap(({ x, y, piece: { enters, leaves } }) => {
      const last = x.length - 1;
      const before = { x: x[last], y: y[last], filled: false, style, chosen: view.chosen === leaves };
      const after = { x: x[0], y: y[0], filled: true, style, chosen: view.chosen === enters };
      return [...(enters >= 0 ? [after] : []), ...(leaves !== null ? [before] : [])];
    });
  }

  restyle() {
    this.chart?.restyle();
  }
}
