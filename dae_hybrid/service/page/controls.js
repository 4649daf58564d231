// Sliders and number inputs of the parameters.

import { element, short } from "./format.js";
import { STEPS, positionOf, valueAt } from "./model.js";

const MANY = 6; // entries of a vector that are shown without unfolding

export class Controls {
  /** `onChange(index, value)` is called while a slider moves and when a number is entered. */
  constructor(host, entries, onChange) {
    this.entries = entries;
    this.onChange = onChange;
    this.ranges = entries.map((entry) => ({ ...entry.range }));
    this.rows = entries.map((entry, index) => this.#row(entry, index));
    host.replaceChildren(...[...grouped(entries)].map(([name, indices]) => this.#group(name, indices)));
  }

  #group(name, indices) {
    const { index, unit, description } = this.entries[indices[0]];
    if (index === null) return this.rows[indices[0]].box;
    const rows = indices.map((i) => this.rows[i].box);
    const legend = element("legend", {}, unit ? `${name} [${unit}]` : name);
    const shown = rows.slice(0, MANY);
    const folded = rows.slice(MANY);
    return element(
      "fieldset",
      { class: "vector" },
      legend,
      description ? element("p", { class: "hint" }, description) : null,
      ...shown,
      folded.length ? element("details", {}, element("summary", {}, `${folded.length} further entries`), ...folded) : null,
    );
  }

  #row(entry, index) {
    const unit = entry.unit && entry.index === null ? ` [${entry.unit}]` : "";
    const ids = { number: `number-${index}`, slider: `slider-${index}`, hint: `hint-${index}`, error: `error-${index}` };
    const described = `${entry.index === null && entry.description ? `${ids.hint} ` : ""}${ids.error}`;
    const number = element("input", {
      id: ids.number,
      type: "number",
      step: "any",
      inputmode: "decimal",
      "aria-describedby": described,
      oninput: () => this.#typed(index),
      onblur: () => this.#show(index),
    });
    const slider = element("input", {
      id: ids.slider,
      type: "range",
      min: 0,
      max: STEPS,
      step: 1,
      "aria-label": `${entry.label}${unit}, slider`,
      "aria-describedby": described,
      oninput: () => this.#slid(index),
    });
    const reset = element(
      "button",
      {
        type: "button",
        class: "reset",
        title: `nominal value, ${short(entry.value, 8)}`,
        "aria-label": `${entry.label}: nominal value`,
        onclick: () => this.#changed(index, entry.value),
      },
      "↺",
    );
    const low = element("span");
    const high = element("span");
    const error = element("p", { class: "wrong", id: ids.error, hidden: true });
    const box = element(
      "div",
      { class: "parameter" },
      element("label", { for: ids.number }, entry.label, element("span", { class: "unit" }, unit)),
      number,
      reset,
      slider,
      element("p", { class: "ends", "aria-hidden": "true" }, low, high),
      entry.index === null && entry.description
        ? element("p", { class: "hint", id: ids.hint }, entry.description)
        : null,
      error,
    );
    return { box, number, slider, reset, low, high, error };
  }

  /** Show values; an input that has the focus keeps its text. */
  set(values) {
    this.values = [...values];
    this.entries.forEach((_, index) => this.#show(index));
  }

  /** Messages by index of an entry; others are cleared. */
  setErrors(messages) {
    this.rows.forEach(({ number, slider, error }, index) => {
      const message = messages.get(index);
      for (const input of [number, slider]) {
        if (message) input.setAttribute("aria-invalid", "true");
        else input.removeAttribute("aria-invalid");
      }
      error.hidden = !message;
      error.textContent = message ?? "";
    });
  }

  #show(index) {
    const row = this.rows[index];
    const value = this.values[index];
    const range = this.ranges[index];
    if (value < range.low || value > range.high) {
      range.low = Math.min(range.low, value);
      range.high = Math.max(range.high, value);
      range.log &&= range.low > 0;
    }
    if (document.activeElement !== row.number || Number(row.number.value) !== value) row.number.value = value;
    const position = positionOf(value, range);
    if (Number(row.slider.value) !== position) row.slider.value = position;
    row.slider.setAttribute("aria-valuetext", `${short(value, 4)} ${this.entries[index].unit ?? ""}`.trim());
    row.low.textContent = short(range.low, 4);
    row.high.textContent = short(range.high, 4) + (range.log ? " (log)" : "");
    row.reset.disabled = value === this.entries[index].value;
  }

  #slid(index) {
    this.#changed(index, valueAt(Number(this.rows[index].slider.value), this.ranges[index]));
  }

  #typed(index) {
    const { value, valueAsNumber } = this.rows[index].number;
    if (value.trim() !== "" && Number.isFinite(valueAsNumber)) this.#changed(index, valueAsNumber);
  }

  #changed(index, value) {
    this.values[index] = value;
    this.#show(index);
    this.onChange(index, value);
  }
}

function grouped(entries) {
  const groups = new Map();
  entries.forEach((entry, index) => groups.set(entry.name, [...(groups.get(entry.name) ?? []), index]));
  return groups;
}
