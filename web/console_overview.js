// The section "Overview": shows the server's figures, and charts of its traffic and its latency.

import { Chart, Latency } from "./chart.js";
import { element, formatBytes } from "./common.js";
import { forgetRates } from "./console_clients.js";
import { $, showSection } from "./console_page.js";
import { forgetUsage } from "./console_processes.js";
import { agentRoutes, may, of, processes, services, status } from "./console_state.js";
import { formatCount, formatRate, formatTime, setHidden, setText } from "./view.js";

const traffic = ["in", "out"];
const quantiles = ["p50", "p99"];
const charts = {
  messages: new Chart($("charts"), { title: "Messages per second", names: traffic, format: formatRate, least: 4 }),
  bytes: new Chart($("charts"), { title: "Bytes per second", names: traffic, format: formatBytes, least: 400 }),
  turns: new Chart($("charts"), {
    title: "Latency of the event loop",
    about: "over 10 s",
    names: quantiles,
    format: formatTime,
    least: 0.0004,
  }),
  answers: new Chart($("charts"), {
    title: "Agents' answer times",
    about: "over 1 min",
    names: quantiles,
    format: formatTime,
    least: 0.004,
  }),
};
const latency = { turns: new Latency(10), answers: new Latency(60) };
const estimated = "Estimated from the buckets of a histogram.";
charts.turns.figure.title = `The time that one turn of the event loop takes. ${estimated}`;
charts.answers.figure.title = `The time that agents take to answer requests. ${estimated}`;

/** The status before, for differences. */
let earlier;

/** The seconds from the status before to this one, or 0 without one before. */
export const secondsUntil = ({ uptime_s }) => (earlier ? uptime_s - earlier.uptime_s : 0);

export function drawCharts() {
  const time = Date.now();
  const { totals } = status;
  const passed = secondsUntil(status);
  const rate = (name) =>
    passed > 0 && totals && earlier.totals ? Math.max(0, totals[name] - earlier.totals[name]) / passed : null;
  if (totals && passed > 0) {
    charts.messages.add(time, [rate("messages_in"), rate("messages_out")]);
    charts.bytes.add(time, [rate("bytes_in"), rate("bytes_out")]);
  }
  charts.turns.add(time, latency.turns.add(time, status.turns));
  setHidden(charts.answers.figure, !status.agent?.answers);
  charts.answers.add(time, latency.answers.add(time, status.agent?.answers));
  earlier = status;
}

/** Draws the charts again, after the page was hidden. */
export function redrawCharts() {
  for (const chart of Object.values(charts)) chart.draw();
}

/** Leaves a gap in the charts and forgets what differences are taken from. */
export function breakCharts() {
  if (!earlier) return;
  earlier = undefined;
  for (const one of Object.values(latency)) one.reset();
  for (const chart of Object.values(charts)) chart.add(Date.now(), [null, null]);
  forgetRates();
  forgetUsage();
}

export function showFigures() {
  showSection("overview", true);
  const running = [...processes.values()].filter(({ state }) => state === "running").length;
  const all = services.length === 0 || may("all");
  const figures = [["clients", formatCount(status.client_count), status.detached ? `${formatCount(status.detached)} cut` : ""]];
  if (all && of("processes").length) figures.push(["processes running", formatCount(running)]);
  if (of("agent").length)
    figures.push(
      ["agent sessions", formatCount(agentRoutes().reduce((sum, { fields }) => sum + (fields.sessions ?? 0), 0))],
      ["waiting requests", formatCount(status.agent?.waiting ?? 0)],
    );
  if (status.totals)
    figures.push(
      ["messages so far", formatCount(status.totals.messages_in + status.totals.messages_out)],
      ["traffic so far", formatBytes(status.totals.bytes_in + status.totals.bytes_out)],
    );
  const list = $("figures");
  if (list.childElementCount !== figures.length)
    list.replaceChildren(
      ...figures.map(() => element("div", {}, element("dt"), element("dd", {}, element("span"), " ", element("small")))),
    );
  figures.forEach(([name, value, small = ""], index) => {
    const [dt, dd] = list.children[index].children;
    setText(dt, name);
    setText(dd.firstElementChild, value);
    setText(dd.lastElementChild, small);
  });
}
