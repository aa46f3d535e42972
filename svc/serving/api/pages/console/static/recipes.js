// The list of recipes, each with its model, score, age, errors and versions.

import { ask, recipePath } from "./api.js";
import { byId, el, say } from "./dom.js";

const EVERY_MS = 5000;
const AT_ONCE = 6;
const MISSING = "artifact not found";
const URGENCY = ["bad", "warn", "ok"];
const UNITS = [["year", 31557600], ["month", 2629800], ["week", 604800], ["day", 86400], ["hour", 3600], ["minute", 60]];
const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
const descriptions = new Map();
const shown = new Map();
/** Times at which lists of new items were read, by recipe. They are kept apart, so that age alone changes no row. */
const listsRead = new Map();

/**
 * Show the recipes, and load them again every EVERY_MS while the page is visible.
 * `changed(recipes)` is called after a change, and `tried(name)` after a click on the button "Try".
 */
export function startRecipes(changed, tried) {
  let last = "";
  const tick = async () => {
    if (!byId("content").hidden && (!document.hidden || !last)) {
      const recipes = await load();
      const now = JSON.stringify(recipes);
      if (recipes && now !== last) {
        last = now;
        show(recipes, tried);
        changed(recipes);
      }
      showAges();
    }
    setTimeout(tick, EVERY_MS);
  };
  tick();
}

/** Tell whether a row is an arm of an experiment, which has health but answers no request of its own. */
export const isArm = ({ name }) => name.includes("@");

/** Return the description of a recipe's current model, or null without a model. */
export const described = (name) => descriptions.get(name) ?? null;

async function load() {
  const [list, details] = await Promise.all([ask("v1/recipes"), ask("v1/health/details")]);
  if (!list.ok || !details.body.recipes) {
    health("bad", list.status ? "not readable" : "no answer");
    return null;
  }
  const summaries = new Map(list.body.recipes.map((recipe) => [recipe.name, recipe]));
  await describe(list.body.recipes.filter((recipe) => descriptions.get(recipe.name)?.model_version !== recipe.model_version));
  const recipes = Object.entries(details.body.recipes).map(([name, health_]) => ({ name, ...withoutAges(name, health_), ...summaries.get(name) }));
  recipes.sort((one, other) => URGENCY.indexOf(state(one).kind) - URGENCY.indexOf(state(other).kind) || one.name.localeCompare(other.name));
  const loaded = recipes.filter((recipe) => recipe.loaded).length;
  const of = recipes.filter((recipe) => !recipe.skipped).length;
  health(details.body.status === "ok" ? "ok" : "bad", `${details.body.status}, ${loaded} of ${of} loaded`);
  return recipes;
}

/** Return the health of a recipe without ages. An age alone must not replace a row, which may have the focus. */
function withoutAges(name, about) {
  const { availability, new_items: listed, age_seconds, ...steady } = about;
  if (typeof listed?.age_seconds === "number") listsRead.set(name, new Date(Date.now() - 1000 * listed.age_seconds).toISOString());
  else listsRead.delete(name);
  return listed ? { ...steady, new_items: { n_new: listed.n_new, read: listsRead.has(name) } } : steady;
}

function health(kind, text) {
  const place = byId("health");
  if (place.textContent !== text) place.textContent = text;
  place.className = `state ${kind}`;
}

/** Load the descriptions of recipes, AT_ONCE at a time. */
async function describe(recipes) {
  const waiting = [...recipes];
  const worker = async () => {
    for (let next = waiting.pop(); next; next = waiting.pop()) {
      const answer = next.loaded ? await ask(recipePath(next.name)) : { ok: false };
      if (answer.ok) descriptions.set(next.name, answer.body);
      else descriptions.delete(next.name);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
}

/** Replace the rows that changed. Other rows stay, because they may have the focus. */
function show(recipes, tried) {
  const list = byId("recipes");
  for (const name of [...shown.keys()].filter((known) => !recipes.some((recipe) => recipe.name === known))) shown.delete(name);
  const rows = recipes.map((recipe) => {
    const text = JSON.stringify([recipe, described(recipe.name)]);
    if (shown.get(recipe.name)?.text !== text) shown.set(recipe.name, { text, node: row(recipe, tried) });
    return shown.get(recipe.name).node;
  });
  if (!rows.length) rows.push(el("li", { class: "muted" }, "There is no recipe in the folder that the server reads."));
  if (rows.length !== list.children.length || rows.some((node, place) => node !== list.children[place])) list.replaceChildren(...rows);
  const wrong = recipes.filter((recipe) => state(recipe).kind === "bad").map((recipe) => recipe.name);
  say(byId("recipes-said"), wrong.length ? `Trouble with ${wrong.join(", ")}` : "All recipes are well");
}

function state(recipe) {
  if (recipe.skipped) return { kind: "warn", text: "file skipped" };
  if (!recipe.loaded) return { kind: "bad", text: "no model" };
  return recipe.last_load_error ? { kind: "bad", text: "earlier model" } : { kind: "ok", text: "serving" };
}

function reason(recipe, error) {
  if (recipe.skipped || error.includes(`${recipe.name}.yaml`)) return "The file cannot be used: ";
  if (error.startsWith(MISSING)) return recipe.loaded ? "The model is served from memory: " : "There is no model yet: ";
  return recipe.loaded ? "The new artifact does not load: " : "The artifact does not load: ";
}

function row(recipe, tried) {
  const { kind, text } = state(recipe);
  const about = described(recipe.name);
  const error = recipe.error ?? recipe.last_load_error;
  return el("li", { class: "recipe" },
    el("div", { class: "who" }, el("h3", {}, recipe.name), el("span", { class: `state ${kind}` }, text)),
    about && el("dl", { class: "facts" }, facts(about, recipe).map(([label, value, more]) =>
      el("div", { class: more ?? null }, el("dt", {}, label), el("dd", {}, value)))),
    recipe.loaded && !isArm(recipe) && el("button", { type: "button", class: "quiet try", onclick: () => tried(recipe.name) },
      "Try", el("span", { class: "unseen" }, ` ${recipe.name}`)),
    !recipe.skipped && !isArm(recipe) && versions(recipe.name),
    error && el("p", { class: "fault" }, el("strong", {}, reason(recipe, error)), error,
      error.startsWith(MISSING) && el("span", {}, "\nTrain it: ", el("code", {}, `svc train FOLDER/${recipe.name}.yaml`))));
}

/** Show the versions of a recipe, which are loaded when the user opens them. */
function versions(name) {
  const place = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Versions of ${name}` }, el("p", { class: "muted" }, "Loading"));
  const open = async (event) => {
    if (!event.target.open) return;
    const answer = await ask(recipePath(name, "/versions"));
    place.replaceChildren(answer.ok ? listOfVersions(answer.body) : el("p", { class: "error" }, answer.body.detail ?? ""));
    showAges();
  };
  return el("details", { class: "versions", ontoggle: open }, el("summary", {}, "Versions", el("span", { class: "unseen" }, ` of ${name}`)), place);
}

function listOfVersions({ recipe, versioning, versions: found }) {
  if (versioning !== "append_sha") return el("p", { class: "hint" }, `The recipe keeps one file: output.versioning is ${versioning}.`);
  if (!found.length) return el("p", { class: "hint" }, "There is no version yet.");
  const cell = (value) => el("td", {}, value ?? "–");
  const refits = found.some((one) => one.reused_from);
  const rows = found.map((one) => el("tr", { "aria-current": one.live ? "true" : null },
    el("th", { scope: "row" }, el("code", {}, one.sha8)),
    cell(one.trained_at && el("time", { datetime: one.trained_at, title: one.trained_at }, "")),
    cell(one.best_class?.replace(/Recommender$/, "")), cell(one.best_score?.toFixed(5)),
    cell(one.rank_ms && Number(one.rank_ms.toPrecision(3))), cell(one.decision),
    cell([one.live && "live", one.held && "held"].filter(Boolean).join(", ")),
    refits && cell(one.reused_from && el("code", { title: `searched ${one.reused_from.searched_at}` }, one.reused_from.sha8))));
  const labels = ["Version", "Trained", "Algorithm", "Score", "Rank ms", "Decision", "State", refits && "Refit of"];
  const head = labels.filter(Boolean).map((label) => el("th", { scope: "col" }, label));
  return el("div", {}, el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)),
    el("p", { class: "hint" }, "Make another one live: ", el("code", {}, `svc promote FOLDER/${recipe}.yaml VERSION`)));
}

const readWhen = (name) => ["read ", el("time", { "data-list": name, datetime: listsRead.get(name) }, "")];

function facts(about, { name, new_items: listed }) {
  const stats = about.data_stats ?? {};
  const count = (value) => value?.toLocaleString("en") ?? "–";
  return [
    ["Algorithm", (about.best_class ?? "–").replace(/Recommender$/, "")],
    ...(about.parts ?? []).map((part) => [
      `Answers ${part.answers}`,
      `${part.class.replace(/Recommender$/, "")}, ${(part.bytes / 1e6).toFixed(1)} MB`,
    ]),
    [`Score, ${about.metric}@${about.cutoff}`, about.best_score?.toFixed(4) ?? "–"],
    ["Trained", about.trained_at ? el("time", { datetime: about.trained_at, title: about.trained_at }, "") : "–"],
    ["Users × items", `${count(stats.n_users)} × ${count(stats.n_items)}`],
    ...(listed ? [["New items", [count(listed.n_new), ", the list was ", listed.read ? readWhen(name) : "never read"]]] : []),
    ["Model", el("code", { title: about.model_version }, about.model_version.slice(7, 19)), "version"],
  ];
}

/** Update the shown ages of models, versions and lists of new items. */
function showAges() {
  for (const time of document.querySelectorAll("time[datetime]")) {
    const read = listsRead.get(time.dataset.list);
    if (read) time.dateTime = read;
    const seconds = (Date.parse(time.dateTime) - Date.now()) / 1000;
    const [unit, size] = UNITS.find(([, long]) => Math.abs(seconds) >= long) ?? ["minute", 60];
    const text = Number.isNaN(seconds) ? time.dateTime : relative.format(Math.round(seconds / size), unit);
    if (time.textContent !== text) time.textContent = text;
  }
}
