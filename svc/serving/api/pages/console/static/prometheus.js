// Rates and percentiles from two readings of /v1/metrics.

const LINE = /^(svc_v1_requests_total|svc_v1_request_latency_seconds_bucket|svc_v1_fallbacks_total)\{(.*)\} (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/**
 * Return the counts in the text of /v1/metrics that was read at the time `at`, in milliseconds.
 * Each recipe has its requests by status, its latency buckets as [upper bound in seconds, count], and its fallbacks.
 * Fallbacks of batches are left out, because they count elements, and a batch has many.
 */
export function read(text, at) {
  const recipes = new Map();
  for (const line of text.split("\n")) {
    const match = LINE.exec(line);
    if (!match) continue;
    const labels = Object.fromEntries([...match[2].matchAll(LABEL)].map((found) => [found[1], found[2]]));
    const counts = recipes.get(labels.recipe) ?? { statuses: new Map(), buckets: [], fallbacks: 0 };
    recipes.set(labels.recipe, counts);
    if (match[1] === "svc_v1_fallbacks_total") counts.fallbacks += labels.verb === "recommend" ? Number(match[3]) : 0;
    else if (labels.le === undefined) counts.statuses.set(labels.status, Number(match[3]));
    else counts.buckets.push([labels.le === "+Inf" ? Infinity : Number(labels.le), Number(match[3])]);
  }
  return { at, recipes };
}

/** Return the increase of the counts between two readings. A lower count means that the server has restarted from 0. */
export function between(before, after) {
  const recipes = new Map();
  for (const [name, now] of after.recipes) {
    const then = before.recipes.get(name);
    const grown = (new_, old = 0) => (new_ >= old ? new_ - old : new_);
    const statuses = new Map([...now.statuses].map(([status, n]) => [status, grown(n, then?.statuses.get(status))]));
    const buckets = now.buckets.map(([le, n], place) => [le, grown(n, then?.buckets[place]?.[1])]);
    recipes.set(name, { statuses, buckets, fallbacks: grown(now.fallbacks, then?.fallbacks) });
  }
  return { seconds: (after.at - before.at) / 1000, recipes };
}

/** Values of the label `status` for failures by the server. All others but `ok` are failures by clients. */
const SERVER_FAILURES = new Set(["error", "overloaded", "unavailable"]);

/**
 * Return the sums of the counts of several recipes: requests, failures by the server and by clients, fallbacks, and the
 * latency percentiles p50 and p99 in seconds.
 */
export function summary(counts) {
  const found = { requests: 0, server: 0, client: 0, fallbacks: 0 };
  const buckets = new Map();
  for (const { statuses, buckets: own, fallbacks } of counts) {
    found.fallbacks += fallbacks;
    for (const [status, n] of statuses) {
      found.requests += n;
      if (SERVER_FAILURES.has(status)) found.server += n;
      else if (status !== "ok") found.client += n;
    }
    for (const [le, n] of own) buckets.set(le, (buckets.get(le) ?? 0) + n);
  }
  const rising = [...buckets].sort((a, b) => a[0] - b[0]);
  return { ...found, p50: quantile(rising, 0.5), p99: quantile(rising, 0.99) };
}

/**
 * Return the quantile `q` of a cumulative histogram, interpolated within a bucket, or null without observations.
 * In the last bucket, which has no upper bound, it is the lower bound.
 */
export function quantile(buckets, q) {
  const total = buckets.at(-1)?.[1] ?? 0;
  if (!total) return null;
  const place = buckets.findIndex(([, count]) => count >= q * total);
  const [high, count] = buckets[place];
  const [low, below] = place ? buckets[place - 1] : [0, 0];
  if (high === Infinity) return low;
  return low + ((high - low) * (q * total - below)) / (count - below);
}
