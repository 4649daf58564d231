// Inputs of the run, messages of the service about them, the token, the clipboard.

import { element, short } from "./format.js";

const $ = (id) => document.getElementById(id);
export const RUN_INPUTS = ["begin", "end", "points", "rtol", "atol"];
const INPUTS_OF = { t_span: ["begin", "end"], points: ["points"], rtol: ["rtol"], atol: ["atol"] };

export function showRunInputs({ t_span, points, rtol, atol }) {
  const values = [t_span[0], t_span[1], points, rtol, typeof atol === "number" ? atol : ""];
  RUN_INPUTS.forEach((id, i) => ($(id).value = values[i]));
  $("atol").disabled = typeof atol !== "number"; // by variable, as the model file states
}

/** The settings with what is entered; null while an input is empty. */
export function readRunInputs(settings) {
  const [begin, end, points, rtol, atol] = RUN_INPUTS.map((id) => $(id).valueAsNumber);
  if (RUN_INPUTS.some((id) => !$(id).disabled && Number.isNaN($(id).valueAsNumber))) return null;
  return { ...settings, t_span: [begin, end], points: Math.round(points), rtol, atol: $("atol").disabled ? settings.atol : atol };
}

/** Show problem details in words, and at the inputs that they name; null clears them. */
export function showProblem(error, entries, controls) {
  const panel = $("problem");
  panel.hidden = error === null;
  const messages = new Map();
  const others = [];
  for (const { path, message } of error?.problem.errors ?? []) {
    const [root, name, index] = path.slice(1).split("/").map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"));
    const at = entries.findIndex((entry) => entry.name === name && (entry.index ?? 0) === Number(index ?? 0));
    if (root === "parameters" && at >= 0) messages.set(at, message);
    else others.push({ root, message });
  }
  controls.setErrors(messages);
  showRunErrors(others);
  if (!error || panel.shown === error) return;
  panel.shown = error;
  const { detail, title, kind, mode, transition, time, variables, remedy, errors, request_id } = error.problem;
  const facts = [
    ["Error", kind === "RequestError" ? null : kind],
    ["Mode", mode],
    ["Transition", transition],
    ["Time", time === null || time === undefined ? null : `t = ${short(time, 7)}`],
    ["Variables", variables?.length ? variables.join(", ") : null],
    ...(errors ?? []).filter(({ message }) => message !== detail).map(({ path, message }) => [path.slice(1) || "Body", message]),
    ["Remedy", remedy],
    ["Request", error.status >= 500 ? request_id : null],
  ].filter(([, text]) => text);
  const heading = kind === "RequestError" ? "The settings are not valid" : "The run failed";
  panel.replaceChildren(
    element("h2", {}, error.status === 422 ? heading : (title ?? "Error")),
    element("p", {}, detail ?? error.message),
    element("dl", {}, ...facts.flatMap(([term, text]) => [element("dt", {}, term), element("dd", {}, text)])),
  );
}

function showRunErrors(errors) {
  const wrong = new Set(errors.flatMap(({ root }) => INPUTS_OF[root] ?? []));
  for (const id of RUN_INPUTS) {
    if (wrong.has(id)) $(id).setAttribute("aria-invalid", "true");
    else $(id).removeAttribute("aria-invalid");
  }
  $("run-error").hidden = wrong.size === 0;
  $("run-error").textContent = wrong.size ? errors.map(({ message }) => message).join(" ") : "";
}

/** Ask for the token of the service; null if none is given. */
export function askToken(wasRefused) {
  const dialog = $("token-dialog");
  $("token-text").textContent = wasRefused
    ? "The token was refused."
    : "The service wants a token. It is kept until this tab is closed.";
  $("token").value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    const end = (token) => {
      dialog.close();
      resolve(token);
    };
    $("token-form").onsubmit = (event) => {
      event.preventDefault();
      end($("token").value.trim());
    };
    $("token-cancel").onclick = dialog.oncancel = () => end(null);
  });
}

/** Copy a text; the button says whether it worked. */
export async function copy(button, text) {
  const label = (button.label ??= button.textContent);
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed: copy by hand";
  }
  setTimeout(() => (button.textContent = label), 2000);
}
