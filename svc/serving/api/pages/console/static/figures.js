// Live figures from the metrics: tiles with a short history, and a row for each recipe with recent requests.

import { ask } from "./api.js";
import { byId, el, svg } from "./dom.js";
import { between, read, summary } from "./prometheus.js";

const EVERY_MS = 2000;
const WINDOW = 5;
const KEPT = 90;

const number = (value, digits = 0) => value.toLocaleString("en", { maximumFractionDigits: digits });
const rate = (value) => number(value, value < 10 ? 1 : 0);
const percent = (part, whole) => `${number((100 * part) / whole, 1)}%`;
const readings = [];
const history = [];

/** Return a duration in seconds as a text with a unit, or a dash for null. */
export function duration(seconds) {
  if (seconds === null) return "–";
  if (seconds < 0.001) return `${number(seconds * 1e6)} µs`;
  return seconds < 1 ? `${number(seconds * 1000, seconds < 0.01 ? 2 : 0)} ms` : `${number(seconds, 2)} s`;
}

/** Read the metrics every EVERY_MS while the page is visible. */
export function startFigures() {
  byId("figures-off").hidden = true;
  byId("figures-on").hidden = false;
  const tick = async () => {
    if (!document.hidden && !byId("content").hidden) await look();
    setTimeout(tick, EVERY_MS);
  };
  tick();
}

/** Show how to enable metrics, for a server without them. */
export function showFiguresOff() {
  byId("figures-off").hidden = false;
}

async function look() {
  const answer = await ask("v1/metrics");
  if (!answer.ok) return;
  readings.push(read(answer.body, performance.now()));
  if (readings.length > WINDOW + 1) readings.shift();
  const change = between(readings[0], readings.at(-1));
  const total = summary(change.recipes.values());
  const since = summary(readings.at(-1).recipes.values());
  history.push({
    rate: change.seconds ? total.requests / change.seconds : 0,
    p50: total.p50,
    p99: total.p99,
    failed: total.requests ? (total.server + total.client) / total.requests : 0,
  });
  if (history.length > KEPT) history.shift();
  byId("tiles").replaceChildren(...tiles(total, since));
  byId("traffic").replaceChildren(...traffic(change, since.fallbacks > 0));
}

function tiles(total, since) {
  const now = history.at(-1);
  const failed = total.requests ? `${number(100 * now.failed, 1)}%` : "–";
  return [
    tile("Requests a second", rate(now.rate), `${number(since.requests)} since start`, "rate"),
    tile("Latency, median (p50)", duration(now.p50), `${duration(since.p50)} since start`, "p50"),
    tile("Latency, slowest 1% (p99)", duration(now.p99), `${duration(since.p99)} since start`, "p99"),
    tile("Requests that failed", failed, `since start ${number(since.server)} by the server, ${number(since.client)} by clients`,
      "failed", total.server ? "bad" : ""),
  ];
}

function tile(label, value, note, field, kind = "") {
  return el("div", { class: `tile ${kind}` }, el("dt", {}, label), el("dd", {},
    el("strong", {}, value), line(history.map((point) => point[field] ?? 0)), el("small", {}, note)));
}

/** Draw recent values as a line. It is hidden from screen readers, because the text beside it has the last value. */
function line(values) {
  const top = Math.max(...values, 1e-9);
  const points = (values.length > 1 ? values : [values[0], values[0]]).map((value, place, all) => {
    const x = place * (100 / (all.length - 1));
    return `${x.toFixed(2)},${(23 - 22 * (value / top)).toFixed(2)}`;
  });
  const first = points[0].split(",")[0];
  return svg("svg", { viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true", class: "line" },
    svg("polygon", { points: `${first},24 ${points.join(" ")} 100,24` }),
    svg("polyline", { points: points.join(" "), "vector-effect": "non-scaling-stroke" }));
}

/** Return a table with a row for each recipe with requests, and a column of fallbacks if `withFallbacks` is true. */
function traffic(change, withFallbacks) {
  const all = [...change.recipes].sort(([one], [other]) => one.localeCompare(other));
  const busy = all.map(([name, counts]) => [name, summary([counts])]).filter(([, own]) => own.requests);
  if (!busy.length) return [el("p", { class: "muted" }, "No recommendation was asked for in the last ten seconds.")];
  const head = ["Recipe", "Requests/s", "p50", "p99", "Failed", ...(withFallbacks ? ["Fallback"] : [])];
  const rows = busy.map(([name, own]) => el("tr", {}, el("th", { scope: "row" }, name), [
    rate(own.requests / change.seconds),
    duration(own.p50),
    duration(own.p99),
    percent(own.server + own.client, own.requests),
    ...(withFallbacks ? [percent(own.fallbacks, own.requests)] : []),
  ].map((text) => el("td", {}, text))));
  return [el("table", {}, el("caption", { class: "unseen" }, "The last ten seconds, by recipe"),
    el("thead", {}, el("tr", {}, head.map((text) => el("th", { scope: "col" }, text)))), el("tbody", {}, rows))];
}
