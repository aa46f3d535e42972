// Calls of the API of the server that this page came from.

const BASE = new URL("./", document.baseURI);
const STORED = "svc.key";

/** The client key, kept by the browser for this tab only. */
export const key = {
  get: () => sessionStorage.getItem(STORED),
  set: (value) => sessionStorage.setItem(STORED, value),
  forget: () => sessionStorage.removeItem(STORED),
};

export const url = (path) => new URL(path, BASE).href;

/**
 * Send a request with the stored key, GET or with a body POST, and return `{ok, status, body, ms}`.
 * `body` is parsed JSON, or text if the answer is not JSON. `ms` is the duration in milliseconds.
 * If the server does not answer, status is 0 and the body has the form of an error. Status 401 also sends the event
 * `svc:refused`. Throws an AbortError if `signal` is aborted.
 */
export async function ask(path, { body, signal } = {}) {
  const headers = {};
  if (key.get()) headers["X-API-Key"] = key.get();
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const started = performance.now();
  try {
    const answer = await fetch(url(path), {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
    });
    const isJson = (answer.headers.get("content-type") ?? "").startsWith("application/json");
    const content = isJson ? await answer.json() : await answer.text();
    const ms = performance.now() - started;
    if (answer.status === 401) dispatchEvent(new CustomEvent("svc:refused", { detail: content }));
    return { ok: answer.ok, status: answer.status, body: content, ms };
  } catch (error) {
    if (error.name === "AbortError") throw error;
    const detail = "The server does not answer. Is it still running?";
    return { ok: false, status: 0, body: { code: "NO_ANSWER", detail }, ms: performance.now() - started };
  }
}

/** Return the path of a recipe, followed by `rest`. */
export const recipePath = (name, rest = "") => `v1/recipes/${encodeURIComponent(name)}${rest}`;
