// The strip "Health": quiet while all is well, and red when something is refused, fails or reaches a limit.

import { $, element, field, formatBytes } from "./common.js";
import { samples } from "./console_overview.js";
import { may, status } from "./console_state.js";
import { formatCount, makeDialog, setHidden, setText, showDialog } from "./view.js";

/** How long a count stays red after it has moved, and how long it is shown at all, in ms. */
const RED = 60_000;
const SHOWN = 900_000;

/** The shares of a limit that are worth a look, and that are red. */
const HIGH = 0.75;
const FULL = 0.9;

const sum = (counts) => Object.values(counts ?? {}).reduce((all, count) => all + count, 0);

/** The restarts of all programs. The fields of a route and of what is in them may each have a count; the outer one includes the others. */
function restarts(fields) {
  if (typeof fields !== "object" || fields === null) return 0;
  if (typeof fields.restarts === "number") return fields.restarts;
  return Object.values(fields).reduce((all, one) => all + restarts(one), 0);
}

/** What is counted: its name, the count since the start, and the name of the figure in the samples that has its changes. */
const COUNTS = [
  { name: "refused", count: ({ health }) => sum(health.refused), figure: "refused" },
  { name: "wrong tokens", count: ({ health }) => health.wrong_tokens, figure: "wrong_tokens" },
  { name: "failed connections", count: ({ health }) => sum(health.failed), figure: "failed" },
  { name: "limits reached", count: ({ health }) => sum(health.limits) },
  { name: "log lines suppressed", count: ({ health }) => (health.suppressed_lines ?? 0) + (health.dropped_lines ?? 0) },
  { name: "restarts", count: ({ routes, ...fields }) => restarts(routes ?? fields) },
];

/** The counts that no sample has: the changes that this page has seen, as `[time, count]`, by name. */
const seen = new Map();
const earlier = new Map();

/**
 * The changes of a count in the last 15 minutes, as `[time, count]`.
 * @param {{name: string, figure?: string, count: (status: any) => number}} item
 */
function changes({ name, figure, count }, now) {
  if (figure) return samples.filter((sample) => sample[figure] > 0).map((sample) => [sample.time, sample[figure]]);
  const total = count(status);
  const list = (seen.get(name) ?? []).filter(([time]) => now - time < SHOWN);
  const before = earlier.get(name);
  if (before !== undefined && total > before) list.push([now, total - before]);
  earlier.set(name, total);
  seen.set(name, list);
  return list;
}

/** The processor time before, for its share. */
let cpuBefore;
let cpuShare;

/** What is used of the limits: `[name, text, share]`. A share is undefined where there is no limit. */
function usages({ health, client_count, uptime_s }) {
  if (!cpuBefore || uptime_s - cpuBefore.uptime_s > 0.9) {
    if (cpuBefore && health.cpu_s >= cpuBefore.cpu_s) cpuShare = (health.cpu_s - cpuBefore.cpu_s) / (uptime_s - cpuBefore.uptime_s);
    cpuBefore = { cpu_s: health.cpu_s, uptime_s };
  }
  const of = (used, limit, format) => (limit ? `${format(used)} of ${format(limit)}` : format(used));
  return [
    ["CPU", cpuShare === undefined ? "" : `${(cpuShare * 100).toFixed(cpuShare < 0.1 ? 1 : 0)} % of one processor`, cpuShare],
    ["memory", of(health.memory_bytes, health.memory_limit, formatBytes), health.memory_bytes / (health.memory_limit ?? Infinity)],
    ["held for clients", of(health.held_bytes, health.held_limit, formatBytes), health.held_bytes / (health.held_limit ?? Infinity)],
    [
      "descriptors",
      of(health.descriptors ?? 0, health.descriptor_limit, formatCount),
      (health.descriptors ?? 0) / (health.descriptor_limit ?? Infinity),
    ],
    ["clients", of(client_count, health.max_clients, formatCount), client_count / health.max_clients],
  ].filter(([, text]) => text);
}

const marks = new Map();

/** Shows a mark of the strip, or hides it. */
function mark(name, text, state, shown) {
  if (!marks.has(name)) {
    marks.set(name, element("li"));
    $("health-marks").append(marks.get(name));
  }
  const node = marks.get(name);
  setText(node, text);
  if (node.dataset.state !== state) node.dataset.state = state;
  setHidden(node, !shown);
}

/** Shows the health of the status. */
export function showHealth() {
  setHidden($("health"), !status.health);
  if (!status.health) return;
  const now = Date.now();
  const worries = [];
  for (const item of COUNTS) {
    const list = changes(item, now);
    const count = list.reduce((all, [, more]) => all + more, 0);
    const isRed = list.some(([time]) => now - time < RED);
    if (isRed) worries.push(item.name);
    mark(item.name, `${formatCount(count)} ${item.name} in 15 min`, isRed ? "bad" : "", count > 0);
  }
  for (const [name, text, share] of usages(status)) {
    const state = share > FULL ? "bad" : share > HIGH ? "warn" : "";
    if (state === "bad") worries.push(name);
    mark(name, `${name} ${text}`, state, true);
  }
  const strip = $("health");
  strip.dataset.state = worries.length ? "bad" : "good";
  setText($("health-now"), worries.length ? `Look at ${worries.join(", ")}` : "All is well");
  opened?.();
}

/** Updates the open dialog. */
let opened;

/** The counts with their reasons, and the limits. */
async function showDetails() {
  const content = element("div", { class: "health-details", tabindex: "0", role: "group", "aria-label": "Health" });
  const table = (title, rows) => [
    element("h2", {}, title),
    rows.length
      ? element(
          "dl",
          { class: "details" },
          rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, String(value))]),
        )
      : element("p", { class: "faint" }, "None."),
  ];
  const by = (counts) => Object.entries(counts ?? {}).sort(([, a], [, b]) => b - a);
  opened = () => {
    const { health } = status;
    const key = JSON.stringify(health);
    if (content.shownFor === key || content.contains(getSelection().anchorNode)) return;
    content.shownFor = key;
    content.replaceChildren(
      ...[
        table("Refused requests, by reason", by(health.refused)),
        table("Ends of connections, by cause", by(health.closes)),
        table("Limits that were reached", by(health.limits)),
        table("Other counts", [
          ["wrong tokens", health.wrong_tokens],
          ["log lines suppressed", health.suppressed_lines ?? 0],
          ["log lines dropped", health.dropped_lines ?? 0],
          ["restarts of programs", COUNTS.at(-1).count(status)],
        ]),
        table(
          "Limits",
          usages(status).map(([name, text]) => [name, text]),
        ),
      ].flat(),
    );
  };
  const showRefused = () => {
    dialog.close();
    const filter = field("log-filter");
    filter.value = "refused";
    filter.dispatchEvent(new Event("input"));
    $("log").scrollIntoView();
    filter.focus();
  };
  const dialog = makeDialog(
    "Health",
    element("p", { class: "faint" }, "All counts are since the start of the server. The log says more about each refused request."),
    content,
    element("div", { class: "actions" }, may("all") && element("button", { onclick: showRefused }, "Refused requests in the log"), element("button", { class: "primary", onclick: () => dialog.close() }, "Close")),
  );
  opened();
  await showDialog(dialog);
  opened = undefined;
}
$("health-details").addEventListener("click", showDetails);

/** Forgets what changes are taken from, because another server process has answered. */
export function forgetHealth() {
  seen.clear();
  earlier.clear();
  cpuBefore = undefined;
}
