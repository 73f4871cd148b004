// The section "Overview": shows what the server is doing, and charts of its traffic and its latency. The server keeps the figures of the
// last 15 minutes, so they are there after a reload, and a page that could not ask for a while gets what it has missed.

import { Chart } from "./chart.js";
import { $, element, formatBytes } from "./common.js";
import { forgetRates } from "./console_clients.js";
import { showSection } from "./console_page.js";
import { forgetUsage } from "./console_processes.js";
import { forgetPrograms } from "./console_programs.js";
import { agentRoutes, may, of, processes, services, status } from "./console_state.js";
import { formatCount, formatRate, formatTime, setHidden, setText } from "./view.js";

const KEPT = 900_000;

const traffic = ["in", "out"];
const quantiles = ["p50", "p99"];
const estimated = "Estimated from the buckets of a histogram.";

/** The charts, each with the names of its figures. */
const charts = [
  { fields: ["messages_in", "messages_out"], title: "Messages per second", names: traffic, format: formatRate, least: 4 },
  { fields: ["bytes_in", "bytes_out"], title: "Bytes per second", names: traffic, format: formatBytes, least: 400 },
  {
    fields: ["turn_p50_s", "turn_p99_s"],
    title: "Latency of the event loop",
    about: "over 10 s",
    help: `The time that one turn of the event loop takes. ${estimated}`,
    names: quantiles,
    format: formatTime,
    least: 0.0004,
  },
  {
    fields: ["answer_p50_s", "answer_p99_s"],
    title: "Agents' answer times",
    about: "over 1 min",
    help: `The time that agents take to answer requests. ${estimated}`,
    names: quantiles,
    format: formatTime,
    least: 0.004,
  },
].map((options) => {
  const chart = new Chart($("charts"), options);
  if (options.help) chart.figure.title = options.help;
  return { chart, fields: options.fields };
});

/** The samples of the last 15 minutes: `{time, length}` in ms, and the figures by their names. */
export const samples = [];
/** The number of the last sample. */
let last = 0;
/** The time of this machine at which the server began, in ms. */
let began;

/** The part of the question for the status that asks for the samples since the last answer. */
export const historyQuery = () => `history=${last}`;

/** Takes the samples of a status. */
export function addSamples({ history, uptime_s }) {
  if (!history) return;
  const now = Date.now() - uptime_s * 1000;
  // The answers take differently long. Without this, all samples would move.
  if (began === undefined || Math.abs(began - now) > 1500) {
    for (const sample of samples) sample.time += now - (began ?? now);
    began = now;
  }
  last = history.next;
  for (const values of history.samples) {
    const sample = Object.fromEntries(history.fields.map((name, index) => [name, values[index]]));
    samples.push({ ...sample, time: began + sample.end_s * 1000, length: sample.length_s * 1000 });
  }
  while (samples.length && samples[0].time < Date.now() - KEPT - 10_000) samples.shift();
  if (history.samples.length) drawCharts();
}

function drawCharts() {
  for (const { chart, fields } of charts)
    chart.set(samples.map((sample) => ({ time: sample.time, length: sample.length, values: fields.map((name) => sample[name] ?? null) })));
  setHidden(charts[3].chart.figure, !of("agent").length);
}

/** Draws the charts again, after the page was hidden. */
export function redrawCharts() {
  for (const { chart } of charts) chart.draw();
}

/** Forgets what differences are taken from, because answers are missing. */
export function breakRates() {
  forgetRates();
  forgetUsage();
  forgetPrograms();
}

/** Forgets the samples, because another server process has answered. They stay in the charts, and a gap follows. */
export function forgetSamples() {
  last = 0;
  began = undefined;
  breakRates();
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
