// The curl command for a request of the page. It names the variable that holds the key, never the key.

import { url } from "./api.js";

export function curlLine(path, body, needsKey) {
  const parts = [`curl -sS ${quoted(url(path))}`];
  if (needsKey) parts.push('-H "X-API-Key: $SVC_CLIENT_KEY"');
  if (body !== undefined) parts.push("-H 'Content-Type: application/json'", `-d ${quoted(JSON.stringify(body))}`);
  return parts.join(" \\\n  ");
}

/** Return the text as one word for a POSIX shell, quoted if necessary. */
export function quoted(text) {
  return /^[A-Za-z0-9_\-.:/@%+=,]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
