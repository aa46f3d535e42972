// An answer as a list for people, or why there is none.

import { copyButton, el } from "./dom.js";

const TITLES = ["title", "name", "label", "headline"];
const WHY = {
  UNKNOWN_USER: "Training never saw this user. Ids are compared letter by letter.",
  UNKNOWN_SEED_ITEMS: "Training never saw any of these items.",
  NO_CANDIDATES: "Everything that could be recommended is seen, a seed or excluded.",
  FEATURES_NOT_SUPPORTED: "This model was trained without features of that side: its recipe needs them under `features`.",
  FEATURE_VALUE_UNUSABLE: "A feature has a value that the model cannot use.",
  FEATURE_VECTOR_UNUSABLE: "A vector does not have the numbers that the model was trained with.",
  USERS_NOT_SERVED: "The recipe does not let users be named, or its model ranks all of them alike.",
  VALIDATION_ERROR: "The request is not complete or not in the right form.",
  RECIPE_UNAVAILABLE: "There is no model of this recipe now; the list of recipes says why.",
  RECIPE_NOT_FOUND: "The recipe is gone since this page read the list.",
  INVALID_API_KEY: "The key is not one that this server knows.",
  MISSING_API_KEY: "This server asks for a key.",
  INTERNAL_ERROR: "The server's log has the reason under the request id.",
};

/** What the form offers instead, where the model has features of that side. */
const INSTEAD = {
  UNKNOWN_USER: ["user", " Describe a new user instead.", " The button beside the field gives one that it saw."],
  UNKNOWN_SEED_ITEMS: ["item", " Describe a new item instead.", " Search for one by its title."],
};

/** For whom an answer is. `names` are the titles of the items that were chosen in the form. */
export function heading(body, recipe, names) {
  const titles = (ids) => ids.map((id) => names.get(id) ?? id).join(", ");
  if (body.user_id !== undefined) return `For user ${body.user_id}, by ${recipe}`;
  if (body.order) return `Users for ${titles([body.item_id])}, by ${recipe}`;
  if (body.history) return `For somebody who chose ${titles(body.history)}, by ${recipe}`;
  if (body.seed_items) return `Like ${titles(body.seed_items)}, by ${recipe}`;
  if (!body.user_features && !body.item_features) return `For somebody unknown, by ${recipe}`;
  return `For a new ${body.user_features ? "user" : "item"} with ${said(body.user_features ?? body.item_features)}, by ${recipe}`;
}

const said = (features) => Object.entries(features).map(([name, value]) => `${name} ${shownValue(value)}`).join(", ") || "no features";

/** What a user chose before, as far as it is told: the latest items from the oldest to the newest where the model knows an order. */
export function historyOf({ history, n_history: whole, oldest_first: ordered }, open) {
  const rest = whole - history.length;
  const items = history.map((item) => el("li", {}, named(item).text, " ", el("code", {}, item.item_id)));
  return el("details", { class: "history", open },
    el("summary", {}, `Chosen before: ${whole}${ordered ? ", from the oldest to the newest" : ""}`),
    ordered && rest > 0 && el("p", { class: "muted" }, `${rest} older, then`),
    el(ordered ? "ol" : "ul", ordered ? { start: String(rest + 1) } : {}, items),
    !ordered && rest > 0 && el("p", { class: "muted" }, `and ${rest} more`));
}

/** The answer as the API gave it. */
export function rawJson(body) {
  const pre = el("pre", { tabindex: "0", role: "region", "aria-label": "JSON of the answer" }, JSON.stringify(body, null, 2));
  return el("details", { class: "raw" }, el("summary", {}, "JSON"), el("div", { class: "copied" }, pre, copyButton(pre, "the JSON")));
}

/** The field of an item that names it for people; null when the recipe has no metadata. */
export function titleField(item) {
  const fields = Object.keys(item).filter((field) => field !== "item_id" && field !== "score");
  return TITLES.find((title) => fields.includes(title))
    ?? fields.find((field) => typeof item[field] === "string") ?? null;
}

export function shownValue(value) {
  if (value === null || value === undefined) return "–";
  if (Array.isArray(value)) return value.map(shownValue).join(", ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

const OWN = ["item_id", "score", "because", "in_spite_of", "rest", "reason"];
const shownScore = (score) => (Math.abs(score) < 10 ? score.toFixed(4) : score.toLocaleString("en", { maximumSignificantDigits: 6 }));

/** The name of an item for people, and the rest of its metadata as one text. */
export function named(item) {
  const title = titleField(item);
  const rest = Object.keys(item).filter((field) => ![title, "item_id", "score"].includes(field));
  return { text: title && item[title] !== null ? shownValue(item[title]) : item.item_id,
    note: [item.item_id, ...rest.map((field) => shownValue(item[field]))].join(" · ") };
}

/** The items of an answer, best first; beside them those of the answer `before` diversity, if there are any. */
export function ranking(body, ms, asked = {}, before = null, labels = []) {
  const { items, ignored_features: ignored, ignored_items: unknown, profile, fallback } = body;
  const short = items.length < asked.limit;
  const strangers = items.filter((item) => item.score === 0).length;
  return [
    el("p", { class: "muted" }, `${items.length} ${items.length === 1 ? "item" : "items"} of ${body.recipe} in ${ms.toFixed(0)} ms by model `,
      el("code", { title: body.model_version }, body.model_version.slice(7, 19)), ", request ", el("code", {}, body.request_id)),
    ignored && el("p", { class: "note" }, `Not used, because training knows no such column or value: ${ignored.join(", ")}`),
    unknown && el("p", { class: "note" }, `Not used, because the model does not know or may not show them: ${unknown.join(", ")}`),
    fallback && el("p", { class: "note" }, "Nothing is known of this user: these are the most chosen items."),
    profile && !fallback && el("p", { class: "note" }, `The ranking goes by: ${profile}`),
    short && el("p", { class: "note" }, asked.filter ? "The page is short because no more items satisfy the filter."
      : "The page is short because no more items may be shown: the recipe's own filter, its list of available items, or the size "
        + "of the catalogue."),
    strangers > 0 && el("p", { class: "note" }, `${strangers} of ${items.length} items ${strangers === 1 ? "has" : "have"} score 0: `
      + `nothing that the model learned links them to this ${asked.seed_items ? "request" : "user"}.`),
    alike(items, asked) && el("p", { class: "note" }, `Each ${alike(items, asked)}`),
    before ? sideBySide(before, items, asked, labels) : list(items, asked, labels),
  ].filter(Boolean);
}

/** The users of an item, best first. */
export function listOfUsers({ users, recipe, model_version: version, request_id: request }, ms) {
  return [
    el("p", { class: "muted" }, `${users.length} ${users.length === 1 ? "user" : "users"} of ${recipe} in ${ms.toFixed(0)} ms by model `,
      el("code", { title: version }, version.slice(7, 19)), ", request ", el("code", {}, request)),
    el("ol", { class: "ranking" }, users.map(({ user_id: user, score }) => {
      const id = el("code", {}, user);
      return el("li", {}, el("div", { class: "entry" }, el("div", { class: "said" }, el("strong", {}, id), " ", copyButton(id, `the id ${user}`)),
        el("div", { class: "score" }, el("span", { class: "unseen" }, "Score "), shownScore(score))));
    })),
  ];
}

/** The page before and after diversity; what only one of them has is marked. */
function sideBySide(before, after, asked, labels) {
  const page = (title, own, other) => el("section", {}, el("h4", {}, title),
    list(own, asked, labels, new Set(other.map((item) => item.item_id))));
  return el("div", { class: "pages" }, page("Without diversity", before, after), page(`With diversity ${asked.diversity}`, after, before));
}

/** Items as a list; those that are not among `others`, where these are given, are marked. */
function list(items, asked, labels, others = null) {
  const scores = items.map((item) => item.score ?? 0);
  const [highest, lowest] = [Math.max(...scores), Math.min(...scores, 0)];
  return el("ol", { class: "ranking" }, items.map((item) => {
    const said = alike(items, asked) ? null : because(item, asked);
    const node = entry(item, ((item.score ?? 0) - lowest) / (highest - lowest || 1), said, labels);
    if (others && !others.has(item.item_id)) node.querySelector(".said").append(el("p", { class: "hint only" }, "only on this page"));
    return node;
  }));
}

/** The reason that all of several items have alike, which is said once; null where they differ. */
function alike(items, asked) {
  const said = new Set(items.map((item) => because(item, asked)));
  return items.length > 1 && said.size === 1 ? [...said][0] : null;
}

/** The values of a field of labels, each by itself; of another one the whole. */
function labelled(field, value, labels) {
  const of = labels.find((one) => one.name === field && one.kind !== "numerical");
  if (!of || value === null || value === undefined) return shownValue(value);
  const each = Array.isArray(value) ? value : of.kind === "multi_label" ? String(value).split("|") : [value];
  return el("ul", { class: "labels" }, each.map((one) => el("li", {}, shownValue(one))));
}

function entry(item, share, said, labels) {
  const title = titleField(item);
  const rest = Object.keys(item).filter((field) => ![title, ...OWN].includes(field));
  const bar = el("span", { class: "bar", "aria-hidden": "true" });
  const id = el("code", {}, item.item_id);
  bar.style.setProperty("--share", String(Math.max(0, Math.min(1, share))));
  return el("li", {}, el("div", { class: "entry" },
    el("div", { class: "said" },
      el("strong", {}, title && item[title] !== null ? shownValue(item[title]) : item.item_id),
      el("dl", { class: "rest" }, el("div", {}, el("dt", {}, "id"), el("dd", {}, id, " ", copyButton(id, `the id ${item.item_id}`))),
        rest.map((field) => el("div", {}, el("dt", {}, field), el("dd", {}, labelled(field, item[field], labels))))),
      item.reason && el("p", { class: "hint" }, item.reason.join(", ")),
      said && el("p", { class: "hint" }, said)),
    item.score === undefined ? null : el("div", { class: "score" }, el("span", { class: "unseen" }, "Score "), shownScore(item.score), bar)));
}

/** The reasons of an item: what somebody chose, or is like, and what is known of them, with shares of the score. */
function because({ because: reasons = [], in_spite_of: against = [] }, asked) {
  if (!reasons.length) return null;
  if (reasons.some((one) => one.reason)) return "because many chose it";
  const share = (one) => one.share > 0 ? ` (${Math.round(100 * one.share)} %)` : "";
  const named = (one) => {
    if (one.feature) return `${one.feature}${share(one)}`;
    const title = titleField(one);
    return `${title && one[title] !== null ? shownValue(one[title]) : one.item_id}${share(one)}`;
  };
  const chosen = reasons.filter((one) => !one.feature).map(named);
  const known = reasons.filter((one) => one.feature).map(named);
  const verb = asked.user_id !== undefined || asked.history ? "because you chose" : "because of";
  return [chosen.length && `${verb} ${chosen.join(", ")}`, known.length && `because of ${known.join(", ")}`,
    against.length && `in spite of ${against.map(named).join(", ")}`].filter(Boolean).join("; ");
}

/** Why there is no answer: what the server says, and what it means. */
export function failure({ status, body }, columns) {
  const errors = body.errors ?? [];
  const [side, described, otherwise] = INSTEAD[body.code] ?? [];
  const advice = side ? (columns?.[side]?.length ? described : otherwise) : "";
  return el("div", { class: "failure", role: "alert" },
    el("p", {}, el("strong", {}, body.code ?? `HTTP ${status}`), " ", body.detail ?? ""),
    WHY[body.code] && el("p", {}, WHY[body.code] + advice),
    errors.length > 1 && el("ul", {}, errors.map((one) => el("li", {}, `${one.loc.slice(1).join(".")}: ${one.msg}`))),
    body.request_id && el("p", { class: "muted" }, "Request ", el("code", {}, body.request_id)));
}
