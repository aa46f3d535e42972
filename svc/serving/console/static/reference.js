// The API reference, made from the server's own OpenAPI document.

import { byId, copyButton, el } from "./dom.js";

const METHODS = ["get", "post"];
const GROUPS = [
  ["Recommendations", (path) => path.includes(":")],
  ["Recipes and their items", (path) => path.startsWith("/v1/recipes")],
  ["Health and metrics", () => true],
];
const BOUNDS = [
  ["minimum", "at least"], ["maximum", "at most"], ["minLength", "characters: at least"], ["maxLength", "characters: at most"],
  ["minItems", "elements: at least"], ["maxItems", "elements: at most"],
  ["minProperties", "keys: at least"], ["maxProperties", "keys: at most"], ["pattern", "matches"],
];
const SCHEMA = "#/components/schemas/";
const anchor = (text) => text.replaceAll(/[^A-Za-z0-9]+/g, "-");
const nameOf = (reference) => reference.slice(SCHEMA.length);

async function start() {
  const place = byId("operations");
  const answer = await fetch("openapi.json").catch(() => null);
  if (!answer?.ok) {
    place.replaceChildren(el("p", { class: "failure", role: "alert" }, "The document cannot be read: the server does not answer."));
    return;
  }
  const whole = await answer.json();
  const operations = Object.entries(whole.paths).flatMap(([path, item]) => METHODS.filter((method) => item[method])
    .map((method) => ({ path, method, parameters: [...(item.parameters ?? []), ...(item[method].parameters ?? [])], ...item[method] })));
  const grouped = Map.groupBy(operations, ({ path }) => GROUPS.find(([, fits]) => fits(path))[0]);
  const groups = GROUPS.map(([title]) => [title, grouped.get(title) ?? []]);
  place.replaceChildren(introduction(whole), ...groups.map(([title, own]) => el("section", {}, el("h2", {}, title), own.map(operation))),
    el("section", {}, el("h2", {}, "Schemas"), Object.entries(whole.components.schemas).map(schema)));
  place.removeAttribute("aria-busy");
  byId("contents").replaceChildren(...contents(groups, Object.keys(whole.components.schemas)));
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

function introduction(whole) {
  const scheme = Object.values(whole.components.securitySchemes ?? {})[0];
  return el("section", {}, el("p", {}, `Version ${whole.info.version}. `, marked(whole.info.description)),
    el("p", {}, scheme ? ["Operations marked “needs a key” ask for it in the header ", el("code", {}, scheme.name), "."]
      : "This server has no keys: it asks for none."));
}

function contents(groups, schemas) {
  const list = (links) => el("ul", {}, links.map(([id, text]) => el("li", {}, el("a", { href: `#${id}` }, text))));
  return [
    ...groups.map(([title, own]) => el("details", { open: !matchMedia("(max-width: 1000px)").matches }, el("summary", {}, title),
      list(own.map((one) => [one.operationId, one.path.replace("/v1/", "").replace("recipes/{name}", "{name}")])))),
    el("details", {}, el("summary", {}, "Schemas"), list(schemas.map((name) => [anchor(name), name]))),
  ];
}

function operation(one) {
  const body = one.requestBody?.content["application/json"];
  return el("article", { class: "card operation", id: one.operationId, "aria-labelledby": `${one.operationId}-title` },
    el("h3", { id: `${one.operationId}-title` }, el("span", { class: `method ${one.method}` }, one.method.toUpperCase()),
      " ", el("code", {}, one.path)),
    el("p", {}, marked(one.summary), " ", el("span", { class: "state" }, one.security ? "needs a key" : "public")),
    el("h4", {}, "Parameters"), parameters(one.parameters),
    body ? [el("h4", {}, "Body: ", type(body.schema)),
      Object.values(body.examples ?? {}).map((example) => shown(curl(one, example.value)))] : shown(curl(one)),
    el("h4", {}, "Answers"), el("dl", { class: "answers" }, Object.entries(one.responses).map(response)));
}

function parameters(list) {
  return table(["Name", "In", "Type", "Meaning"], list.map((one) => [el("code", {}, one.name), one.in + (one.required ? ", required" : ""),
    type(one.schema), [marked(one.description), limits(one.schema)]]));
}

function response([status, { description, content }]) {
  const answered = Object.entries(content ?? {});
  const kind = status < 300 ? "ok" : status < 500 ? "warn" : "bad";
  const examples = answered.flatMap(([, { examples: own }]) => Object.entries(own ?? {}));
  return el("div", {}, el("dt", {}, el("span", { class: `state ${kind}` }, status)), el("dd", {}, marked(description), " ",
    answered.map(([mime, { schema: own }]) => (mime === "application/json" ? type(own) : mime)),
    examples.length > 0 && el("ul", { class: "examples" }, examples.map(([code, { value }]) =>
      el("li", {}, el("code", {}, code), ` ${value.detail}`)))));
}

function schema([name, own]) {
  const required = new Set(own.required ?? []);
  const rows = Object.entries(own.properties ?? {}).map(([field, { description, ...value }]) => [el("code", {}, field),
    [type(value), required.has(field) ? ", required" : ""], [description && marked(description), limits(value)]]);
  return el("article", { class: "card operation", id: anchor(name), "aria-labelledby": `${anchor(name)}-title` },
    el("h3", { id: `${anchor(name)}-title` }, name), own.description && el("p", {}, marked(own.description)),
    rows.length > 0 && table(["Field", "Type", "Meaning"], rows),
    own.additionalProperties === true && el("p", { class: "muted" }, "Further fields may be there."));
}

function table(head, rows) {
  return el("div", { class: "traffic", tabindex: "0", role: "group", "aria-label": head.join(", ") },
    el("table", {}, el("thead", {}, el("tr", {}, head.map((text) => el("th", { scope: "col" }, text)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell) => el("td", {}, cell)))))));
}

/** What a schema says about the type of a value; references lead to their schema. */
function type(own) {
  if (own.$ref) return el("a", { href: `#${anchor(nameOf(own.$ref))}` }, nameOf(own.$ref));
  if (own.const !== undefined) return el("code", {}, own.const);
  if (own.enum) return own.enum.map((value, place) => [place ? " or " : "", el("code", {}, value)]);
  const kinds = own.anyOf ?? own.oneOf;
  if (kinds) return kinds.map((kind, place) => [place ? " or " : "", type(kind)]);
  if (Array.isArray(own.type)) return own.type.join(" or ");
  if (own.type === "array") return ["list of ", own.items ? type(own.items) : "anything"];
  if (own.type === "object" && typeof own.additionalProperties === "object") return ["map to ", type(own.additionalProperties)];
  return own.type ?? own.description ?? "anything";
}

/** Bounds and default of a value, of its list elements and of its alternatives. */
function limits(own) {
  const found = [];
  const collect = (part, prefix) => {
    for (const [key, words] of BOUNDS) if (part[key] !== undefined) found.push(`${prefix}${words} ${part[key]}`);
    for (const kind of part.anyOf ?? part.oneOf ?? []) collect(kind, prefix);
    if (part.items) collect(part.items, "each: ");
  };
  collect(own, "");
  if (own.default !== undefined && own.default !== null) found.push(`default ${JSON.stringify(own.default)}`);
  return found.length > 0 && el("span", { class: "muted" }, ` ${[...new Set(found)].join("; ")}`);
}

function curl(one, body) {
  const address = new URL(one.path.replace("{name}", "movies").slice(1), new URL("../", document.baseURI)).href;
  const key = one.security ? ' \\\n  -H "X-API-Key: $SVC_CLIENT_KEY"' : "";
  const sent = body ? ` \\\n  -H 'Content-Type: application/json' -d '${JSON.stringify(body)}'` : "";
  return `curl -sS ${address}${key}${sent}`;
}

function shown(text) {
  const pre = el("pre", { tabindex: "0", role: "group", "aria-label": "Command" }, text);
  return el("div", { class: "copied" }, pre, copyButton(pre, "the command"));
}

/** Text in which backticks mark code. */
function marked(text) {
  return text.split("`").map((part, place) => (place % 2 ? el("code", {}, part) : part));
}

start();
