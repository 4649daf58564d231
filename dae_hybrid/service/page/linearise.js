// Smooth pieces of a run, and their first-order change with the parameters.
//
// Between two events a run x(t, p) is smooth, and the events at its ends move by dt_i/dp Dp. Points of a piece move
// with its ends: a point at t goes to t + d(t), d linear between the ends, and has there, to first order,
// x + (dx/dp) Dp + x' d. So a jump stays a jump, where x + (dx/dp) Dp at fixed times would have spikes.

import { columnIn } from "./model.js";

const CLOSE = 1e-6; // of the run: points closer than that give no slope

/** The pieces between events: {from, to, first, last, mode, enters, leaves}; enters and leaves are indices of events. */
export function piecesOf(answer) {
  const { t, events, modes } = answer;
  const found = [];
  let first = 0;
  for (let k = 0; k <= events.length; k += 1) {
    const from = k === 0 ? (t[0] ?? answer.t_span[0]) : events[k - 1].time;
    const to = k < events.length ? events[k].time : answer.t_end;
    let last = first;
    while (last < t.length && (k === events.length ? t[last] <= to : t[last] < to)) last += 1;
    const mode = k < events.length ? events[k].source : (modes[first] ?? events[k - 1]?.target ?? null);
    if (to > from) found.push({ from, to, first, last, mode, enters: k - 1, leaves: k < events.length ? k : null });
    first = last;
  }
  return found;
}

/** The points of a column in every piece, with both sides of events: [{mode, t, y, row}]; row is -1 at an event. */
export function curveOf(answer, column) {
  const y = columnIn(answer.values, column) ?? [];
  return piecesOf(answer).map((piece) => {
    const rows = Array.from({ length: piece.last - piece.first }, (_, i) => piece.first + i);
    const points = rows.map((row) => ({ row, t: answer.t[row], y: number(y[row]) }));
    const after = piece.enters >= 0 ? side(answer.events[piece.enters].after, column) : NaN;
    if (piece.enters >= 0 && !(points[0]?.t <= piece.from))
      points.unshift({ row: -1, t: piece.from, y: after });
    if (piece.leaves !== null) points.push({ row: -1, t: piece.to, y: side(answer.events[piece.leaves].before, column) });
    return {
      mode: piece.mode,
      piece,
      t: points.map((point) => point.t),
      y: points.map((point) => point.y),
      row: points.map((point) => point.row),
    };
  });
}

function number(value) {
  return value === null || value === undefined ? NaN : value;
}

function side(values, { name, index }) {
  const found = values?.[name];
  return number(index === null || !Array.isArray(found) ? found : found[index]);
}

/** First-order prediction of a run with changed parameters, from its forward sensitivities. */
export class Linearised {
  /** `change` has one entry per label of `answer.wrt`. */
  constructor(answer, change) {
    this.answer = answer;
    this.change = change;
    this.times = answer.events.map((event, i) => event.time + dot(answer.event_time_sensitivity[i], change));
    const moved = [answer.t_span[0], ...this.times, answer.ended_by_event ? Infinity : answer.t_end];
    /** Whether the events keep their order; otherwise the change is too large for a linearisation. */
    this.ordered = moved.every((time, i) => i === 0 || time >= moved[i - 1]);
  }

  /** A curve as `curveOf` gives it, moved. */
  curve(column) {
    const { answer, change } = this;
    const sensitivity = answer.sensitivities[column.name] ?? [];
    const of = (row) => {
      const found = sensitivity[row];
      return found ? dot(column.index === null ? found : found[column.index], change) : NaN;
    };
    const close = CLOSE * (answer.t_end - answer.t_span[0]);
    return curveOf(answer, column).map(({ mode, piece, t, y, row }) => {
      const first = this.#shift(piece.enters);
      const last = piece.leaves === null ? 0 : this.#shift(piece.leaves);
      const slope = slopes(t, y, close);
      if (piece.enters >= 0) slope[0] = side(answer.events[piece.enters].rates_after, column) || 0;
      if (piece.leaves !== null) slope[t.length - 1] = side(answer.events[piece.leaves].rates_before, column) || 0;
      const direct = extrapolated(t, row.map((at) => (at < 0 ? NaN : of(at))), close);
      const shift = t.map((time) => first + ((last - first) * (time - piece.from)) / (piece.to - piece.from));
      return {
        mode,
        t: t.map((time, i) => time + shift[i]),
        y: y.map((value, i) => value + direct[i] + (shift[i] === 0 ? 0 : slope[i] * shift[i])),
      };
    });
  }

  #shift(event) {
    return event < 0 ? 0 : this.times[event] - this.answer.events[event].time;
  }

  /** A functional: a number, or a list. */
  functional(name) {
    const value = this.answer.functionals[name];
    const gradient = this.answer.gradients[name];
    return Array.isArray(value)
      ? value.map((entry, i) => entry + dot(gradient[i], this.change))
      : value + dot(gradient, this.change);
  }
}

function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < b.length; i += 1) if (b[i] !== 0) sum += number(a?.[i]) * b[i];
  return sum;
}

/** Derivatives at the points, from parabolas through neighbours. */
function slopes(t, y, close) {
  const far = t.map((time, i) => i).filter((i, place, all) => place === 0 || t[i] - t[all[place - 1]] > close);
  const at = new Array(t.length).fill(NaN);
  if (far.length < 2) return at.fill(0);
  far.forEach((i, place) => {
    const centre = Math.min(Math.max(place, 1), far.length - 2);
    if (far.length === 2) {
      at[i] = (y[far[1]] - y[far[0]]) / (t[far[1]] - t[far[0]]);
      return;
    }
    const [a, b, c] = [far[centre - 1], far[centre], far[centre + 1]];
    const left = (y[b] - y[a]) / (t[b] - t[a]);
    const right = (y[c] - y[b]) / (t[c] - t[b]);
    at[i] = left + ((right - left) * (2 * t[i] - t[a] - t[b])) / (t[c] - t[a]);
  });
  for (let i = 1; i < t.length; i += 1) if (Number.isNaN(at[i]) && !far.includes(i)) at[i] = at[i - 1];
  return at;
}

/** Fill missing values at both ends of a piece along the line through the two next ones. */
function extrapolated(t, values, close) {
  const found = [...values];
  const known = found.map((_, i) => i).filter((i) => !Number.isNaN(found[i]));
  if (!known.length) return found;
  const along = (i, near, next) => {
    if (next === undefined || Math.abs(t[next] - t[near]) <= close) return values[near];
    return values[near] + ((values[next] - values[near]) * (t[i] - t[near])) / (t[next] - t[near]);
  };
  for (let i = 0; i < known[0]; i += 1) found[i] = along(i, known[0], known[1]);
  const ends = known.slice(-2).reverse();
  for (let i = ends[0] + 1; i < found.length; i += 1) found[i] = along(i, ends[0], ends[1]);
  return found;
}

/** Times of the events and pieces of a column after a change of the parameters. */
export function predict(answer, change, column) {
  const moved = new Linearised(answer, change);
  return { times: moved.times, pieces: moved.curve(column) };
}
