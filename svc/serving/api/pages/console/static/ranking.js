// An answer as a list, or the error as a text.

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

/** Advice by error code: the side, the advice if the model has features of that side, and the advice if it has none. */
const INSTEAD = {
  UNKNOWN_USER: ["user", " Describe a new user instead.", " The button beside the field gives one that it saw."],
  UNKNOWN_SEED_ITEMS: ["item", " Describe a new item instead.", " Search for one by its title."],
};

/** Return the heading of an answer. `names` maps the ids of the items chosen in the form to their titles. */
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

/** Show a part of a user's history: the latest items, oldest first, if the model knows the order of histories. */
export function historyOf({ history, n_history: whole, oldest_first: ordered }, open) {
  const rest = whole - history.length;
  const items = history.map((item) => el("li", {}, named(item).text, " ", el("code", {}, item.item_id)));
  return el("details", { class: "history", open },
    el("summary", {}, `Chosen before: ${whole}${ordered ? ", from the oldest to the newest" : ""}`),
    ordered && rest > 0 && el("p", { class: "muted" }, `${rest} older, then`),
    el(ordered ? "ol" : "ul", ordered ? { start: String(rest + 1) } : {}, items),
    !ordered && rest > 0 && el("p", { class: "muted" }, `and ${rest} more`));
}

/** Show the JSON of the answer, with a button to copy it. */
export function rawJson(body) {
  const pre = el("pre", { tabindex: "0", role: "region", "aria-label": "JSON of the answer" }, JSON.stringify(body, null, 2));
  return el("details", { class: "raw" }, el("summary", {}, "JSON"), el("div", { class: "copied" }, pre, copyButton(pre, "the JSON")));
}

/** Return the field with the title of an item: one of TITLES, else the first text field, or null if there is none. */
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

/** Say what answered: the number of `what`, the recipe, the duration, the model, the request, and the arm of an experiment. */
function answeredBy({ recipe, model_version: version, request_id: request, experiment }, ms, count, what) {
  return el("p", { class: "muted" }, `${count} ${count === 1 ? what : `${what}s`} of ${recipe} in ${ms.toFixed(0)} ms by model `,
    el("code", { title: version }, version.slice(7, 19)), ", request ", el("code", {}, request),
    experiment && [", arm ", el("strong", {}, experiment.arm), ` of the experiment ${experiment.name}`]);
}

/** Return the title of an item, or its id without a title, and a note with its id and other metadata. */
export function named(item) {
  const title = titleField(item);
  const rest = Object.keys(item).filter((field) => ![title, "item_id", "score"].includes(field));
  return { text: title && item[title] !== null ? shownValue(item[title]) : item.item_id,
    note: [item.item_id, ...rest.map((field) => shownValue(item[field]))].join(" · ") };
}

/**
 * Show the items of an answer, best first, with notes on them.
 * `before` are the items of the same request without diversity, to show beside them, or null.
 */
export function ranking(body, ms, asked = {}, before = null, labels = []) {
  const { items, ignored_features: ignored, ignored_items: unknown, profile, fallback } = body;
  const short = items.length < asked.limit;
  const strangers = items.filter((item) => item.score === 0).length;
  return [
    answeredBy(body, ms, items.length, "item"),
    ignored && el("p", { class: "note" }, `Not used, because training knows no such column or value: ${ignored.join(", ")}`),
    unknown && el("p", { class: "note" }, `Not used, because the model does not know or may not show them: ${unknown.join(", ")}`),
    fallback && el("p", { class: "note" }, "Nothing is known of this user: these are the most chosen items."),
    profile && !fallback && el("p", { class: "note" }, `The ranking goes by: ${profile}`),
    short && el("p", { class: "note" }, asked.filter ? "The page is short because no more items satisfy the filter."
      : "The page is short because no more items may be shown: the recipe's own filter, its list of available items, or the size "
        + "of the catalogue."),
    strangers > 0 && el("p", { class: "note" }, `${strangers} of ${items.length} items ${strangers === 1 ? "has" : "have"} score 0: `
      + `nothing that the model learned links them to this ${asked.seed_items ? "request" : "user"}.`),
    alike(items, asked) && el("p", { class: "note" }, `Each ${alike(items, asked).join(", ")}`),
    before ? sideBySide(before, items, asked, labels) : list(items, asked, labels),
  ].filter(Boolean);
}

/** Show a page as a shop would: a shelf for each row. `names` maps ids of items to titles. */
export function pageOf(body, ms, names) {
  const { rows, profile } = body;
  const titles = new Map([...names, ...rows.flatMap((row) => row.items.map((item) => [item.item_id, named(item).text]))]);
  return [
    answeredBy(body, ms, rows.length, "row"),
    el("p", { class: "note" }, profile === "none" ? "Nothing is known of this user." : `The page goes by: ${profile}`),
    ...rows.map((row) => el("section", { class: "shelf" },
      el("h4", {}, [row.id, row.seed_item && (titles.get(row.seed_item) ?? row.seed_item), row.label].filter(Boolean).join(" · ")),
      row.items.length ? el("ol", { tabindex: "0", "aria-label": row.id }, row.items.map((item) => el("li", {}, el("strong", {}, named(item).text),
        el("span", { class: "muted" }, item.item_id)))) : el("p", { class: "muted" }, row.why))),
  ];
}

/** Show the users ranked for an item, best first. */
export function listOfUsers(body, ms) {
  return [
    answeredBy(body, ms, body.users.length, "user"),
    el("ol", { class: "ranking" }, body.users.map(({ user_id: user, score }) => {
      const id = el("code", {}, user);
      return el("li", {}, el("div", { class: "entry" }, el("div", {}, el("strong", {}, id), " ", copyButton(id, `the id ${user}`)),
        el("div", { class: "score" }, el("span", { class: "unseen" }, "Score "), shownScore(score))));
    })),
  ];
}

/** Show the items without and with diversity. Items of only one of the lists are marked. */
function sideBySide(before, after, asked, labels) {
  const page = (title, own, other) => el("section", {}, el("h4", {}, title),
    list(own, asked, labels, new Set(other.map((item) => item.item_id))));
  return el("div", { class: "pages" }, page("Without diversity", before, after), page(`With diversity ${asked.diversity}`, after, before));
}

/** Show items as a list. Marks the items whose ids are not in the set `others`, unless it is null. */
function list(items, asked, labels, others = null) {
  const scores = items.map((item) => item.score ?? 0);
  const [highest, lowest] = [Math.max(...scores), Math.min(...scores, 0)];
  return el("ol", { class: "ranking" }, items.map((item) => {
    const said = alike(items, asked) ? [] : because(item, asked);
    const node = entry(item, ((item.score ?? 0) - lowest) / (highest - lowest || 1), said, labels);
    if (others && !others.has(item.item_id)) node.querySelector(".said").append(el("p", { class: "hint only" }, "only on this page"));
    return node;
  }));
}

/** Return the reason that several items share, which is then shown once, or null if reasons differ. */
function alike(items, asked) {
  const [said, ...others] = items.map((item) => because(item, asked));
  return others.length && said.length && others.every((one) => String(one) === String(said)) ? said : null;
}

/** Show the value of a field: each label by itself in a field of labels, else the value as a text. */
function labelled(field, value, labels) {
  const of = labels.find((one) => one.name === field);
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
      item.reason && el("p", { class: "hint" }, placed(item.reason)),
      said.length > 1 ? el("details", { class: "hint" }, el("summary", {}, said[0]), el("p", {}, said.slice(1).join(", ")))
        : said.length > 0 && el("p", { class: "hint" }, said[0])),
    item.score === undefined ? null : el("div", { class: "score" }, el("span", { class: "unseen" }, "Score "), shownScore(item.score), bar)));
}

/** Say by which rules an item stands in its place. Its share places a new item, unless it is pinned. */
const placed = (rules) => rules.map((rule) => (rule === "new" && !rules.includes("pinned") ? "new, placed by its share" : rule)).join(", ");

/** Return the reasons for an item as texts, the strongest first, with their shares of the score. */
function because({ because: reasons = [], in_spite_of: against = [] }, asked) {
  if (reasons.some((one) => one.reason)) return ["because many chose it"];
  const said = (verb, all) => all.map((one, place) => (place ? "" : `${verb} `) + (one.feature ?? named(one).text)
    + (one.share > 0 ? ` (${Math.round(100 * one.share)} %)` : ""));
  const verb = asked.user_id !== undefined || asked.history ? "because you chose" : "because of";
  return reasons.length ? [...said(verb, reasons.filter((one) => !one.feature)), ...said("because of", reasons.filter((one) => one.feature)),
    ...said("in spite of", against)] : [];
}

/** Show an error with an explanation and the request id. `columns` are the model's feature columns. */
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
