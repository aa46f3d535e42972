// An answer as a list for people, or why there is none.

import { el } from "./dom.js";

const TITLES = ["title", "name", "label", "headline"];
const WHY = {
  UNKNOWN_USER: "Training never saw this user. Ids are compared letter by letter; describe a new user instead.",
  UNKNOWN_SEED_ITEMS: "Training never saw any of these items. Describe a new item instead.",
  NO_CANDIDATES: "Everything that could be recommended is seen, a seed or excluded.",
  FEATURES_NOT_SUPPORTED: "This model was trained without features of that side: its recipe needs them under `features`.",
  FEATURE_VALUE_UNUSABLE: "A feature has a value that the model cannot use.",
  VALIDATION_ERROR: "The request is not complete or not in the right form.",
  RECIPE_UNAVAILABLE: "There is no model of this recipe now; the list of recipes says why.",
  RECIPE_NOT_FOUND: "The recipe is gone since this page read the list.",
  INVALID_API_KEY: "The key is not one that this server knows.",
  MISSING_API_KEY: "This server asks for a key.",
  INTERNAL_ERROR: "The server's log has the reason under the request id.",
};

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

const shownScore = (score) => (Math.abs(score) < 10 ? score.toFixed(4) : score.toLocaleString("en", { maximumSignificantDigits: 6 }));

/** The name of an item for people, and the rest of its metadata as one text. */
export function named(item) {
  const title = titleField(item);
  const rest = Object.keys(item).filter((field) => ![title, "item_id", "score"].includes(field));
  return { text: title && item[title] !== null ? shownValue(item[title]) : item.item_id,
    note: [item.item_id, ...rest.map((field) => shownValue(item[field]))].join(" · ") };
}

/** The items of an answer, best first. */
export function ranking(body, ms) {
  const { items, ignored_features: ignored } = body;
  const highest = Math.max(...items.map((item) => item.score));
  const lowest = Math.min(...items.map((item) => item.score), 0);
  return [
    el("p", { class: "muted" }, `${items.length} ${items.length === 1 ? "item" : "items"} of ${body.recipe} in ${ms.toFixed(0)} ms by model `,
      el("code", { title: body.model_version }, body.model_version.slice(7, 19)), ", request ", el("code", {}, body.request_id)),
    ignored && el("p", { class: "note" }, `Not used, because no column has this name: ${ignored.join(", ")}`),
    el("ol", { class: "ranking" }, items.map((item) => entry(item, (item.score - lowest) / (highest - lowest || 1)))),
  ].filter(Boolean);
}

function entry(item, share) {
  const title = titleField(item);
  const rest = Object.keys(item).filter((field) => ![title, "item_id", "score"].includes(field));
  const bar = el("span", { class: "bar", "aria-hidden": "true" });
  bar.style.setProperty("--share", String(Math.max(0, Math.min(1, share))));
  return el("li", {}, el("div", { class: "entry" },
    el("div", { class: "said" },
      el("strong", {}, title && item[title] !== null ? shownValue(item[title]) : item.item_id),
      el("dl", { class: "rest" }, el("div", {}, el("dt", {}, "id"), el("dd", {}, el("code", {}, item.item_id))),
        rest.map((field) => el("div", {}, el("dt", {}, field), el("dd", {}, shownValue(item[field])))))),
    el("div", { class: "score" }, el("span", { class: "unseen" }, "Score "), shownScore(item.score), bar)));
}

/** Why there is no answer: what the server says, and what it means. */
export function failure({ status, body }) {
  const errors = body.errors ?? [];
  return el("div", { class: "failure", role: "alert" },
    el("p", {}, el("strong", {}, body.code ?? `HTTP ${status}`), " ", body.detail ?? ""),
    WHY[body.code] && el("p", {}, WHY[body.code]),
    errors.length > 1 && el("ul", {}, errors.map((one) => el("li", {}, `${one.loc.slice(1).join(".")}: ${one.msg}`))),
    body.request_id && el("p", { class: "muted" }, "Request ", el("code", {}, body.request_id)));
}
