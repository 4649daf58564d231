// One chart: axes, cursor and zoom by uPlot; bands, curves and marks drawn into its canvas.

/* global uPlot */

import { short } from "./format.js";

const AXIS = 58; // width of the vertical axis: charts that stand below each other are aligned

/** Colours and fonts from the style sheet. */
export function theme() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    text: of("text"),
    quiet: of("quiet"),
    grid: of("grid"),
    ground: of("panel"),
    computed: of("computed"),
    linearised: of("linearised"),
    kept: of("kept"),
    modes: Array.from({ length: 8 }, (_, i) => of(`mode-${i}`)),
    bandShare: Number(of("band-share")),
    font: getComputedStyle(document.body).fontFamily,
  };
}

export class Chart {
  /**
   * @param {HTMLElement} host
   * @param {{height: number, xLabel?: string, yLabel?: string, onCursor?: Function, onZoom?: Function, both?: boolean}} options
   */
  constructor(host, options) {
    this.host = host;
    this.options = options;
    this.content = { bands: [], curves: [], marks: [], points: [] };
    this.#make();
    this.observer = new ResizeObserver(() => this.#fit());
    this.observer.observe(host);
  }

  #make() {
    const { height, xLabel, yLabel, both } = this.options;
    const colours = (this.colours = theme());
    const axis = (label, more) => ({
      stroke: colours.quiet,
      font: `12px ${colours.font}`,
      labelFont: `12px ${colours.font}`,
      label,
      labelSize: label ? 18 : 0,
      labelGap: 0,
      grid: { stroke: colours.grid, width: 1 },
      ticks: { stroke: colours.grid, width: 1, size: 4 },
      values: (_, splits) => splits.map((value) => short(value, 6)),
      ...more,
    });
    this.plot = new uPlot(
      {
        width: Math.max(120, this.host.clientWidth),
        height,
        legend: { show: false },
        padding: [8, 10, 0, 0],
        scales: { x: { time: false, auto: false, min: 0, max: 1 }, y: { auto: false, min: 0, max: 1 } },
        axes: [axis(xLabel, { size: 26, space: 60 }), axis(yLabel, { size: AXIS, space: 32 })],
        series: [{}, { show: false }],
        cursor: {
          y: Boolean(both),
          points: { show: false },
          drag: { x: true, y: Boolean(both), setScale: false, uni: 12, dist: 6 },
          bind: { dblclick: () => () => this.options.onZoom?.(null) },
        },
        hooks: {
          drawClear: [() => this.#drawBands()],
          draw: [() => this.#drawContent()],
          setCursor: [(plot) => this.#cursorMoved(plot)],
          setSelect: [(plot) => this.#selected(plot)],
        },
      },
      [[0, 1], [null, null]],
      this.host,
    );
  }

  /** Show content within ranges: bands [{from, to, mode}], curves [{pieces, style}], marks [{t, style}]. */
  show(content, x, y) {
    this.content = content;
    this.plot.batch(() => {
      this.plot.setScale("x", { min: x[0], max: x[1] });
      this.plot.setScale("y", { min: y[0], max: y[1] });
    });
    this.plot.redraw();
  }

  /** Place the cursor at a time, or hide it. */
  point(time) {
    this.silent = true;
    this.plot.setCursor({ left: time === null ? -10 : this.plot.valToPos(time, "x"), top: -10 });
    this.silent = false;
  }

  /** Read the colours again. */
  restyle() {
    this.plot.destroy();
    this.#make();
  }

  remove() {
    this.observer.disconnect();
    this.plot.destroy();
  }

  get canvas() {
    return this.plot.ctx.canvas;
  }

  #fit() {
    const width = Math.max(120, this.host.clientWidth);
    if (width !== this.plot.width) this.plot.setSize({ width, height: this.options.height });
  }

  #cursorMoved(plot) {
    if (this.silent || !this.options.onCursor) return;
    const { left, top } = plot.cursor;
    const inside = left !== undefined && left >= 0;
    this.options.onCursor(inside ? { x: plot.posToVal(left, "x"), y: plot.posToVal(top, "y") } : null);
  }

  #selected(plot) {
    const { left, top, width, height } = plot.select;
    if (width < 6 && height < 6) return;
    const range = (from, size, scale) => [plot.posToVal(from, scale), plot.posToVal(from + size, scale)].sort((a, b) => a - b);
    this.options.onZoom?.({ x: range(left, width, "x"), y: range(top, height, "y") });
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  }

  #clipped(draw) {
    const { ctx, bbox } = this.plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    draw(ctx, bbox, window.devicePixelRatio || 1);
    ctx.restore();
  }

  #drawBands() {
    this.#clipped((ctx, bbox, ratio) => {
      for (const { from, to, mode } of this.content.bands) {
        const left = this.plot.valToPos(from, "x", true);
        const right = this.plot.valToPos(to, "x", true);
        ctx.fillStyle = this.colours.modes[mode % 8];
        ctx.globalAlpha = this.colours.bandShare;
        ctx.fillRect(left, bbox.top, right - left, bbox.height);
        ctx.globalAlpha = 1;
        ctx.fillRect(left, bbox.top + bbox.height - 4 * ratio, right - left, 4 * ratio);
      }
    });
  }

  #drawContent() {
    this.#clipped((ctx, bbox, ratio) => {
      for (const mark of this.content.marks) this.#drawMark(ctx, bbox, ratio, mark);
      for (const curve of this.content.curves) this.#drawCurve(ctx, ratio, curve);
      for (const point of this.content.points) this.#drawPoint(ctx, ratio, point);
    });
  }

  #drawCurve(ctx, ratio, { pieces, style, byMode }) {
    ctx.lineJoin = "round";
    ctx.globalAlpha = style.faint ? 0.45 : 1;
    ctx.setLineDash((style.dash ?? []).map((length) => length * ratio));
    for (const { x, y, mode } of pieces) {
      for (const outline of byMode ? [true, false] : [false]) {
        ctx.lineWidth = (style.width + (outline ? 1.5 : 0)) * ratio;
        ctx.strokeStyle = outline ? this.colours.text : byMode ? this.colours.modes[mode % 8] : this.colours[style.colour];
        ctx.beginPath();
        let down = false;
        for (let i = 0; i < x.length; i += 1) {
          const finite = Number.isFinite(x[i]) && Number.isFinite(y[i]);
          if (finite) {
            const at = [this.plot.valToPos(x[i], "x", true), this.plot.valToPos(y[i], "y", true)];
            if (down) ctx.lineTo(...at);
            else ctx.moveTo(...at);
          }
          down = finite;
        }
        ctx.stroke();
      }
    }
    ctx.setLineDash([]);
    ctx.globalAlpha = 1;
  }

  #drawMark(ctx, bbox, ratio, { t, style, chosen }) {
    const x = this.plot.valToPos(t, "x", true);
    ctx.strokeStyle = ctx.fillStyle = this.colours[style.colour];
    ctx.globalAlpha = style.faint ? 0.45 : 1;
    ctx.lineWidth = (chosen ? 2.5 : 1) * ratio;
    ctx.setLineDash((chosen ? [] : [2, 3]).map((length) => length * ratio));
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.setLineDash([]);
    const size = (chosen ? 6 : 4) * ratio;
    ctx.beginPath();
    ctx.moveTo(x - size, bbox.top);
    ctx.lineTo(x + size, bbox.top);
    ctx.lineTo(x, bbox.top + 1.5 * size);
    ctx.closePath();
    if (style.hollow) ctx.stroke();
    else ctx.fill();
    ctx.globalAlpha = 1;
  }

  #drawPoint(ctx, ratio, { x, y, filled, style, chosen }) {
    if (!Number.isFinite(x) || !Number.isFinite(y)) return;
    ctx.beginPath();
    ctx.arc(this.plot.valToPos(x, "x", true), this.plot.valToPos(y, "y", true), (chosen ? 6 : 3.5) * ratio, 0, 2 * Math.PI);
    ctx.globalAlpha = style.faint ? 0.45 : 1;
    ctx.lineWidth = 1.5 * ratio;
    ctx.strokeStyle = this.colours[style.colour];
    ctx.fillStyle = filled ? this.colours[style.colour] : this.colours.ground;
    ctx.fill();
    ctx.stroke();
    ctx.globalAlpha = 1;
  }
}
