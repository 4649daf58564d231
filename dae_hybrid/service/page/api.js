// Requests to the service. Errors are of two kinds: the service refuses (ServiceError), or it cannot be asked now (Unavailable).

const TOKEN = "dae-hybrid-token";

/** The service answered with problem details (RFC 9457). */
export class ServiceError extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `The service answered with status ${status}.`);
    this.status = status;
    this.problem = problem;
  }
}

/** No answer, or one that says "later"; `after` is the number of seconds to wait, if it is stated. */
export class Unavailable extends Error {
  constructor(message, after = null) {
    super(message);
    this.after = after;
  }
}

const BETWEEN = [502, 504]; // a proxy answers for a service that has stopped

export class Service {
  /** `askToken(refused)` returns a promise of a token, or of null if the user gives none. */
  constructor(askToken) {
    this.askToken = askToken;
    this.asking = null;
  }

  get(path, signal) {
    return this.#request(path, { signal });
  }

  post(path, body, signal) {
    const headers = { "Content-Type": "application/json" };
    return this.#request(path, { method: "POST", body: JSON.stringify(body), headers, signal });
  }

  async #request(path, options) {
    for (;;) {
      const token = sessionStorage.getItem(TOKEN);
      const headers = { Accept: "application/json", ...options.headers };
      if (token) headers.Authorization = `Bearer ${token}`;
      const response = await this.#answered(fetch(path, { ...options, headers, cache: "no-store" }));
      if (response.status !== 401) return this.#content(response);
      const given = await this.#token(token !== null);
      if (given === null) return this.#content(response);
    }
  }

  async #answered(promise) {
    try {
      return await promise;
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Unavailable("The server does not answer.");
    }
  }

  async #content(response) {
    if (BETWEEN.includes(response.status)) throw new Unavailable("The server behind the proxy does not answer.");
    const text = await this.#answered(response.text());
    if (response.ok) return JSON.parse(text);
    let problem;
    try {
      problem = JSON.parse(text);
    } catch {
      problem = { title: response.statusText || `Status ${response.status}` };
    }
    if (response.status === 503) {
      const after = Number(response.headers.get("Retry-After"));
      throw new Unavailable(problem.detail || "The server is busy.", after > 0 ? after : null);
    }
    throw new ServiceError(response.status, problem);
  }

  /** Requests that are refused together ask once. */
  async #token(refused) {
    this.asking ??= this.askToken(refused).finally(() => (this.asking = null));
    const given = await this.asking;
    if (given !== null) sessionStorage.setItem(TOKEN, given);
    return given;
  }
}
