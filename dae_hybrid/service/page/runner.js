// Runs of the current settings: the newest request wins, a stopped server is asked again.

import { ServiceError, Unavailable } from "./api.js";

const PAUSE = 150; // ms without a change before a run is requested
const FIRST_RETRY = 1; // s, doubled after every failure
const LAST_RETRY = 8;
const SOON = 250; // ms; derivatives that take longer are shown after the run

export class Runner {
  /**
   * @param {import("./api.js").Service} service
   * @param {{started: Function, done: Function, failed: Function, waiting: Function}} listener
   *   started(); done({answer, refusal, isPending}, call), once more when pending derivatives are there;
   *   failed(error, call); waiting(error, seconds) before another attempt
   */
  constructor(service, listener) {
    this.service = service;
    this.listener = listener;
    this.number = 0;
    this.failures = 0;
    this.call = null;
  }

  /** Request a run soon; it replaces the one that is on its way. */
  request(call, pause = PAUSE) {
    this.call = call;
    this.number += 1;
    this.controller?.abort();
    if (this.failures > 0 && pause > 0) return; // the next attempt takes the new call
    this.#later(pause);
  }

  /** Forget the call. */
  cancel() {
    this.number += 1;
    this.controller?.abort();
    clearTimeout(this.timer);
    this.failures = 0;
    this.call = null;
  }

  /** Ask at once, without waiting for the next attempt. */
  now() {
    if (this.call) this.#later(0);
  }

  #later(milliseconds) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#run(), milliseconds);
  }

  async #run() {
    const { call, number } = this;
    this.controller?.abort();
    this.controller = new AbortController();
    this.listener.started();
    try {
      const partial = (found) => number === this.number && this.listener.done(found, call);
      const found = await this.#answer(call, this.controller.signal, partial);
      if (number !== this.number) return;
      this.failures = 0;
      this.listener.done(found, call);
    } catch (error) {
      if (number !== this.number && !(error instanceof Unavailable)) return;
      if (error instanceof Unavailable) this.#retry(error);
      else if (error instanceof ServiceError) {
        this.failures = 0;
        this.listener.failed(error, call);
      } else if (error.name !== "AbortError") throw error;
    }
  }

  /** A simulation, and the sensitivities of the same run; a reason in their place where there are none. */
  async #answer({ path, body, functionals }, signal, partial) {
    const simulation = this.service.post(`${path}/simulate`, body, signal);
    const forward = this.service.post(`${path}/forward`, body, signal).then(
      (derivatives) => ({ derivatives, refusal: null }),
      async (error) => {
        if (!(error instanceof ServiceError)) throw error;
        return { derivatives: null, refusal: error.problem, gradients: await this.#gradients(path, body, functionals, signal) };
      },
    );
    forward.catch(() => {}); // if the simulation fails, this fails for the same reason
    const answer = await simulation;
    const soon = await Promise.race([forward, new Promise((resolve) => setTimeout(resolve, SOON))]);
    if (!soon) partial({ answer, refusal: null, isPending: true });
    const { derivatives, refusal, gradients } = await forward;
    const found = withDerivatives(answer, derivatives, refusal);
    return { ...found, answer: { ...found.answer, ...gradients }, isPending: false };
  }

  /** Gradients by adjoint analysis, where sensitivities are refused, for example as too many numbers; null without. */
  async #gradients(path, { points: _, ...body }, functionals, signal) {
    try {
      const found = await Promise.all(
        functionals.map((functional) => this.service.post(`${path}/gradient`, { ...body, functional }, signal)),
      );
      const gradients = Object.fromEntries(found.map(({ functional, gradient }) => [functional, gradient]));
      return found.length ? { wrt: found[0].wrt, gradients } : null;
    } catch (error) {
      if (!(error instanceof ServiceError)) throw error;
      return null;
    }
  }

  #retry(error) {
    if (!this.call) return;
    const seconds = error.after ?? Math.min(LAST_RETRY, FIRST_RETRY * 2 ** this.failures);
    this.failures += 1;
    this.listener.waiting(error, seconds);
    this.#later(1000 * seconds);
  }
}

/** Repeat a request until the server answers. */
export async function persistent(ask, waiting) {
  for (let failures = 0; ; failures += 1) {
    try {
      return await ask();
    } catch (error) {
      if (!(error instanceof Unavailable)) throw error;
      const seconds = error.after ?? Math.min(LAST_RETRY, FIRST_RETRY * 2 ** failures);
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, 1000 * seconds);
        waiting(error, seconds, () => {
          clearTimeout(timer);
          resolve();
        });
      });
    }
  }
}

/** A run with the derivatives from another computation of it, if both have the same events and outputs. */
function withDerivatives(answer, derivatives, refusal) {
  if (!derivatives) return { answer, refusal };
  const path = (of) => [of.t.length, ...of.events.map(({ transition }) => transition)].join();
  if (path(answer) !== path(derivatives)) {
    const detail = "The run with sensitivities takes other events: its tolerances do not determine them.";
    return { answer, refusal: { detail, remedy: "Lower the tolerances." } };
  }
  const { wrt, gradients, sensitivities, event_time_sensitivity } = derivatives;
  const { warnings, diagnostics } = derivatives; // those of the run and of the derivatives
  return { answer: { ...answer, wrt, gradients, sensitivities, event_time_sensitivity, warnings, diagnostics }, refusal: null };
}
