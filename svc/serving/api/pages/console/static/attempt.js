// The form to try out a recipe, with the answer and the same request as a curl command.

import { ask, recipePath } from "./api.js";
import { curlLine } from "./curl.js";
import { byId, copyButton, el, say } from "./dom.js";
import { featureForm } from "./features.js";
import { narrowing } from "./narrow.js";
import { picker } from "./picker.js";
import { failure, heading, historyOf, listOfUsers, named, pageOf, ranking, rawJson } from "./ranking.js";
import { described, isArm } from "./recipes.js";

const MODES = { user: "A user", items: "Some items", new_user: "A new user", new_item: "A new item", users: "Users for an item", page: "A page" };
const ORDERS = { score: "who will take it", lift: "to whom it says most", balanced: "half of each" };
const form = byId("attempt");
const select = byId("recipe");
const now = { mode: "user", fields: null, narrow: null, shape: "", touched: false, opened: false };
const NARROW = matchMedia("(max-width: 1000px)");
let needsKey = false;
let running = null;

/** Add the listeners of the form. `keys` is true if clients need a key, which the curl command then names. */
export function startAttempt(keys) {
  needsKey = keys;
  byId("curl-copy").replaceChildren(copyButton(byId("curl"), "the command"));
  select.addEventListener("change", rebuild);
  form.addEventListener("input", changed);
  for (const kind of ["input", "change", "click"]) form.addEventListener(kind, () => (now.touched = true), { capture: true });
  form.addEventListener("change", (event) => {
    if (event.target.type === "range" && form.checkValidity()) run();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const problem = problemOf();
    byId("attempt-problem").textContent = problem ?? "";
    if (!problem) run();
  });
}

/** List the recipes that have a model, and keep the chosen recipe if it is still among them. */
export function offer(recipes) {
  const before = select.value;
  const loaded = recipes.filter((recipe) => recipe.loaded && !isArm(recipe));
  select.replaceChildren(...loaded.map((recipe) => el("option", { value: recipe.name }, recipe.name)));
  if (loaded.some((recipe) => recipe.name === before)) select.value = before;
  byId("attempt-none").hidden = loaded.length > 0;
  form.hidden = !loaded.length;
  if (!loaded.length) return;
  rebuild();
  if (!now.opened && !now.touched) now.fields.random?.();
  now.opened = true;
}

/** Return the message about the first invalid field, which gets the focus, or null if the form can be sent. */
function problemOf() {
  if (now.fields.missing?.()) return now.fields.missing();
  const wrong = [...form.elements].find((field) => field.willValidate && !field.validity.valid);
  if (!wrong) return null;
  wrong.focus();
  const label = wrong.labels?.[0]?.textContent ?? wrong.getAttribute("aria-label") ?? wrong.name;
  return wrong.min !== "" ? `${label}: give a number from ${wrong.min} to ${wrong.max}.` : `${label}: this is no number.`;
}

export function tryRecipe(name) {
  select.value = name;
  rebuild();
  byId("try").scrollIntoView();
  form.querySelector("[name=mode]:checked").focus({ preventScroll: true });
}

/** Make the form for the chosen recipe, unless the shown form fits it. */
function rebuild() {
  const columns = described(select.value)?.feature_columns ?? { user: [], item: [] };
  const filters = described(select.value)?.filter_fields ?? [];
  const ranksUsers = described(select.value)?.supported_verbs.includes("recommend-users") ?? false;
  const shape = JSON.stringify([select.value, columns, filters, ranksUsers]);
  if (shape === now.shape) return;
  now.shape = shape;
  const modes = Object.keys(MODES).filter((mode) => (mode !== "new_user" || columns.user.length) && (mode !== "new_item" || columns.item.length) && (mode !== "users" || ranksUsers));
  now.narrow = narrowing(filters, () => changed());
  byId("narrow").replaceChildren(now.narrow.node);
  if (!modes.includes(now.mode)) now.mode = "user";
  byId("modes").replaceChildren(...modes.map((mode) => el("label", { class: "mode" },
    el("input", { type: "radio", name: "mode", value: mode, checked: mode === now.mode, onchange: () => chooseMode(mode, columns) }),
    el("span", {}, MODES[mode]))));
  chooseMode(now.mode, columns);
}

function chooseMode(mode, columns) {
  now.mode = mode;
  now.fields = { user: userFields, page: pageFields, items: itemFields, new_user: () => describedFields("user_features", columns.user),
    new_item: () => describedFields("item_features", columns.item), users: usersFields }[mode]();
  byId("narrow").hidden = mode === "users";
  byId("fields").replaceChildren(now.fields.node);
  changed();
}

/** Cancel the running request, remove the answer, which belongs to the earlier input, and show the new curl command. */
function changed() {
  running?.abort();
  byId("attempt-problem").textContent = "";
  byId("answer-title").textContent = "Answer";
  byId("answer").removeAttribute("aria-busy");
  byId("answer").replaceChildren(el("p", { class: "muted" }, "What the model recommends appears here."));
  showCurl();
}

function userFields() {
  const id = el("input", { id: "user-id", type: "text", maxlength: "256", autocomplete: "off", spellcheck: "false" });
  const seen = el("input", { type: "checkbox" });
  const always = described(select.value)?.fallback === "popular";
  const popular = el("input", { type: "checkbox", checked: always });
  const history = picker({ label: "Items chosen just now", hint: "A history, oldest first: with a user id it stands behind the known one. Move an item by dragging it or with the arrow keys.",
    search: findItems, changed, own: "use as an id", ordered: true });
  const dislikes = picker({ label: "Items rejected just now", hint: "They never come back, and items like them fall.",
    search: findItems, changed, own: "use as an id" });
  const problem = el("p", { class: "error", role: "alert" });
  const choose = async (opening) => {
    const answer = await ask(recipePath(select.value, "/somebody"));
    // An id put into the field that somebody is about to type in would join what is typed.
    if (opening && (now.touched || document.activeElement === id)) return;
    problem.textContent = answer.ok || opening ? "" : answer.body.detail ?? "";
    if (!answer.ok) return;
    id.value = answer.body.user_id;
    changed();
    run(opening);
  };
  const node = el("div", {}, el("div", { class: "field" }, el("label", { for: "user-id" }, "User id"),
    el("div", { class: "beside" }, id, el("button", { type: "button", class: "quiet", onclick: () => choose(false) }, "Random user"))), problem,
  el("label", { class: "box plain" }, seen, el("span", {}, "Include items the user already has")), history.node, dislikes.node,
  el("label", { class: "box plain" }, popular, el("span", {}, `Popular items for somebody unknown${always ? " (as the recipe does)" : ""}`)));
  const missing = () => (id.value || history.values().length || popular.checked ? null
    : "For whom? Give a user id, choose items, or press Random user.");
  return { node, verb: "recommend", names: history.names, missing, random: () => choose(true), body: () => {
    const chosen = history.values();
    const rejected = dislikes.values();
    const fallback = popular.checked === always ? null : popular.checked ? "popular" : "none";
    return { ...(id.value && { user_id: id.value }), ...(chosen.length && { history: chosen }), ...(rejected.length && { dislikes: rejected }),
      ...(fallback && { fallback }), ...(seen.checked && { include_seen: true }) };
  } };
}

/** Return the fields for a page of rows: for the user, related to the latest item, of favoured labels, and popular. */
function pageFields() {
  const user = userFields();
  const label = (described(select.value)?.filter_fields ?? []).find((field) => field.kind !== "numerical");
  const rows = ({ filter: _, ...arranged }) => {
    const limit = Math.min(100, Number(byId("limit").value));
    return [{ id: "For you", recommend: { limit, ...arranged } }, { id: "Because of", related: { to: "latest", limit } },
      ...(label ? [{ id: label.name, label: { field: label.name, rows: 2, limit } }] : []), { id: "Most chosen", popular: { limit } }];
  };
  return { ...user, verb: "page", rows };
}

async function findItems(text, signal) {
  const answer = await ask(recipePath(select.value, `/items?q=${encodeURIComponent(text)}`), { signal });
  if (!answer.ok) return { options: [], more: false };
  return { options: answer.body.items.map((item) => ({ value: item.item_id, ...named(item) })), more: answer.body.more };
}

function itemFields() {
  const { node, values, names } = picker({ label: "Items to start from", hint: "Type a part of a title, of other metadata or an id.",
    search: findItems, changed, own: "use as an id" });
  const missing = () => (values().length ? null : "Like what? Choose at least one item.");
  return { node, verb: "recommend-related", names, missing, body: () => ({ seed_items: values() }) };
}

/** Return the fields for ranking users of the training data for one item. */
function usersFields() {
  const { node: item, values, names } = picker({ label: "The item", hint: "Its users are ranked; those who have it are left out.",
    search: findItems, changed, own: "use as an id" });
  const order = el("select", { id: "order" }, Object.entries(ORDERS).map(([value, text]) => el("option", { value }, text)));
  const node = el("div", {}, item, el("div", { class: "field" }, el("label", { for: "order" }, "Order by"), order));
  const missing = () => (values().length === 1 ? null : "For what? Choose one item.");
  return { node, verb: "recommend-users", names, missing, body: () => ({ item_id: values()[0], order: order.value }) };
}

function describedFields(field, columns) {
  const { node, values } = featureForm(columns, () => changed());
  return { node, verb: field === "user_features" ? "recommend" : "recommend-related", body: () => ({ [field]: values() }) };
}

function request() {
  const path = recipePath(select.value, `:${now.fields.verb}`);
  if (now.fields.rows) {
    const narrowed = now.narrow.values();
    return { path, body: { ...now.fields.body(), ...(narrowed.filter && { filter: narrowed.filter }), rows: now.fields.rows(narrowed) } };
  }
  return { path, body: { ...now.fields.body(), limit: Number(byId("limit").value), ...(now.mode !== "users" && now.narrow.values()) } };
}

function showCurl() {
  if (!now.fields) return;
  const { path, body } = request();
  byId("curl").textContent = curlLine(path, body, needsKey);
}

/** Send the request and show the answer, on a narrow page at the top of the screen unless the page has just opened. */
async function run(opening = false) {
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  const { path, body } = request();
  const recipe = select.value;
  const answer = byId("answer");
  answer.setAttribute("aria-busy", "true");
  try {
    const [result, somebody, before] = await Promise.all([ask(path, { body, signal }),
      body.user_id === undefined ? null : ask(recipePath(recipe, `/somebody?user_id=${encodeURIComponent(body.user_id)}`), { signal }),
      body.diversity === undefined ? null : ask(path, { body: { ...body, diversity: 0 }, signal })]);
    byId("answer-title").textContent = heading(body, recipe, now.fields.names?.() ?? new Map());
    const { filter_fields: filters = [], feature_columns: columns } = described(recipe) ?? {};
    const labels = [...filters.filter((field) => field.kind !== "numerical"), ...(columns?.item ?? []).filter((column) => column.kind === "multi_label")];
    const { users, rows, items } = result.body;
    const same = before?.ok && before.body.model_version === result.body.model_version;
    answer.replaceChildren(...(!result.ok ? [failure(result, columns)] : users ? listOfUsers(result.body, result.ms)
      : rows ? pageOf(result.body, result.ms, now.fields.names())
        : ranking(result.body, result.ms, body, same ? before.body.items : null, labels)),
    ...(result.ok && somebody?.ok ? [historyOf(somebody.body, !NARROW.matches)] : []), rawJson(result.body));
    if (result.ok) say(byId("answer-said"), users ? `${users.length} users ranked` : rows ? `a page of ${rows.length} rows` : `${items.length} items recommended`);
    answer.removeAttribute("aria-busy");
    if (NARROW.matches && !opening) byId("answer-title").scrollIntoView();
  } catch (error) {
    if (error.name !== "AbortError") throw error;
  }
}
