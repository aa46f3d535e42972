// A request as code in several languages. The code names the variable that holds the key, and never shows the key.

import { quoted } from "./curl.js";

const KEY = "x-api-key";
const OWN = new Set([KEY, "authorization", "accept"]);

/** Return the parts of a request of Swagger UI as plain values, without the key. */
function plain(request) {
  const headers = Object.entries(request.get("headers")?.toJS?.() ?? {});
  const sent = headers.filter(([name]) => !OWN.has(name.toLowerCase()));
  const needsKey = headers.some(([name]) => name.toLowerCase() === KEY || name.toLowerCase() === "authorization");
  const body = request.get("body");
  return { url: request.get("url"), method: request.get("method"), headers: sent, needsKey,
    body: body === undefined || body === "" ? null : typeof body === "string" ? body : JSON.stringify(body) };
}

function curl(request) {
  const { url, method, headers, needsKey, body } = plain(request);
  const parts = [`curl -sS ${quoted(url)}`, ...(body === null && method !== "GET" ? [`-X ${method}`] : []),
    ...(needsKey ? ['-H "X-API-Key: $SVC_CLIENT_KEY"'] : []), ...headers.map(([name, value]) => `-H ${quoted(`${name}: ${value}`)}`),
    ...(body === null ? [] : [`-d ${quoted(body)}`])];
  return parts.join(" \\\n  ");
}

function python(request) {
  const { url, method, headers, needsKey, body } = plain(request);
  const entries = [...(needsKey ? ['    "X-API-Key": os.environ["SVC_CLIENT_KEY"],'] : []),
    ...headers.map(([name, value]) => `    ${JSON.stringify(name)}: ${JSON.stringify(value)},`)];
  return [
    ...(needsKey ? ["import os", ""] : []), "import httpx", "", `answer = httpx.${method.toLowerCase()}(`, `    ${JSON.stringify(url)},`,
    ...(entries.length ? ["    headers={", ...entries.map((line) => `    ${line}`), "    },"] : []),
    ...(body === null ? [] : [`    content=${JSON.stringify(body)},`]), ")", "answer.raise_for_status()", "print(answer.json())",
  ].join("\n");
}

function javascript(request) {
  const { url, method, headers, needsKey, body } = plain(request);
  const entries = [...(needsKey ? ['    "X-API-Key": process.env.SVC_CLIENT_KEY,'] : []),
    ...headers.map(([name, value]) => `    ${JSON.stringify(name)}: ${JSON.stringify(value)},`)];
  return [
    `const answer = await fetch(${JSON.stringify(url)}, {`, `  method: ${JSON.stringify(method)},`,
    ...(entries.length ? ["  headers: {", ...entries, "  },"] : []), ...(body === null ? [] : [`  body: ${JSON.stringify(body)},`]), "});",
    "if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);", "console.log(await answer.json());",
  ].join("\n");
}

export const SNIPPETS = {
  curl_bash: { title: "curl", make: curl },
  python: { title: "Python", make: python },
  javascript: { title: "JavaScript", make: javascript },
};
