// Calls of the API, all of them to the server that this page came from.

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
 * GET, or POST with a body: `{ok, status, body, ms}`. `body` is the JSON, or the text of anything else.
 * A server that does not answer gives status 0 and a body in the form of every error.
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

/** The path of a recipe, or of something below it. */
export const recipePath = (name, rest = "") => `v1/recipes/${encodeURIComponent(name)}${rest}`;
