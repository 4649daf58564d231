// What the page derives from the description of a model: entries of parameters, ranges of sliders, columns to draw.

const FACTOR = 4; // a slider without bounds reaches from a quarter of the nominal value to four times it
const WIDE = 8; // a positive range is logarithmic from this ratio on
export const STEPS = 400; // positions of a slider
const MOST_POINTS = 801;
const LEAST_POINTS = 51;

/** One entry per number: {label, name, index, value, unit, description, range}. */
export function entriesOf(description) {
  return description.parameters.flatMap((parameter) => {
    const values = Array.isArray(parameter.value) ? parameter.value : [parameter.value];
    return values.map((value, index) => ({
      label: Array.isArray(parameter.value) ? `${parameter.name}[${index}]` : parameter.name,
      name: parameter.name,
      index: Array.isArray(parameter.value) ? index : null,
      value,
      unit: parameter.unit,
      description: parameter.description,
      range: rangeOf(value, boundsOf(parameter.bounds, index)),
    }));
  });
}

function boundsOf(bounds, index) {
  const at = (bound) => (Array.isArray(bound) ? (bound[index] ?? null) : (bound ?? null));
  return bounds ? [at(bounds[0]), at(bounds[1])] : [null, null];
}

/** The range of a slider: {low, high, log}. */
export function rangeOf(value, [lower, upper] = [null, null]) {
  let low = value === 0 ? -1 : Math.min(value / FACTOR, value * FACTOR);
  let high = value === 0 ? 1 : Math.max(value / FACTOR, value * FACTOR);
  low = lower ?? (upper === null ? low : Math.min(low, upper - Math.abs(upper || 1)));
  high = upper ?? Math.max(high, low + Math.abs(low || 1));
  return { low, high, log: low > 0 && high / low >= WIDE };
}

/** Position of a value on a slider, 0 to STEPS. */
export function positionOf(value, { low, high, log }) {
  const share = log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  return Number.isFinite(share) ? Math.round(STEPS * Math.min(1, Math.max(0, share))) : 0;
}

/** Value at a position of a slider, in four digits. */
export function valueAt(position, { low, high, log }) {
  if (position <= 0) return low;
  if (position >= STEPS) return high;
  const share = position / STEPS;
  const value = log ? low * (high / low) ** share : low + share * (high - low);
  const digits = Math.max(4, Math.ceil(Math.log10(Math.abs(value) / (high - low) || 1)) + 3);
  return Number(value.toPrecision(Math.min(17, digits)));
}

/** One column per number of a variable: {label, name, index, unit, description, kind}. */
export function columnsOf(description) {
  return description.variables.flatMap((variable) =>
    Array.from({ length: variable.size }, (_, index) => ({
      ...variable,
      label: variable.size === 1 ? variable.name : `${variable.name}[${index}]`,
      index: variable.size === 1 ? null : index,
    })),
  );
}

/** The column of a table of values by name. */
export function columnIn(values, { name, index }) {
  const found = values[name];
  if (!found) return null;
  return index === null ? found : found.map((row) => (row === null ? null : row[index]));
}

/** Parameters by name, as a request has them, from values by entry. */
export function parametersOf(entries, values) {
  const found = {};
  entries.forEach((entry, i) => {
    if (entry.index === null) found[entry.name] = values[i];
    else (found[entry.name] ??= [])[entry.index] = values[i];
  });
  return found;
}

/** The settings of a new page. */
export function nominal(description, entries) {
  const span = description.t_span ?? [0, 1];
  return {
    values: entries.map((entry) => entry.value),
    t_span: [...span],
    points: pointsOf(description, entries),
    rtol: description.rtol,
    atol: description.atol,
  };
}

/** Output times with which a run with sensitivities takes half of what the service allows; events need the rest. */
function pointsOf(description, entries) {
  const width = columnsOf(description).length * (1 + entries.length);
  return Math.max(LEAST_POINTS, Math.min(MOST_POINTS, Math.floor(description.limits.max_outputs / 2 / width)));
}

/** The body of a request. */
export function requestOf(entries, settings) {
  const { t_span, points, rtol, atol } = settings;
  return { parameters: parametersOf(entries, settings.values), t_span, points, rtol, atol };
}

export function sameSettings(a, b) {
  return JSON.stringify(a) === JSON.stringify(b);
}
