// The section "Log": shows the newest lines of the server's log, filtered by level and words. Warnings and errors are kept apart, so
// that a flood of other lines does not push them out.

import { $, element, field, storage } from "./common.js";
import { matches, showSection } from "./console_page.js";
import { ask, handle } from "./console_requests.js";
import { may, status } from "./console_state.js";
import { clock, formatCount, Lines, plain, plural, setHidden, setText } from "./view.js";

const LEVELS = ["error", "warn", "info", "debug", "trace"];

/** The most lines and characters of each kind that the page keeps. */
const MOST = { severe: { lines: 500, size: 256 << 10 }, other: { lines: 2000, size: 1 << 20 } };

const isSevere = ({ level }) => LEVELS.indexOf(level) <= 1;

/** The lines by kind, in their order. Each has a number, which is higher in later lines. */
const kept = { severe: [], other: [] };
const sizes = { severe: 0, other: 0 };
const log = { next: undefined, number: 0, box: new Lines($("log-lines")), isPaused: false, held: 0 };

/** Adds a line, and forgets the oldest ones. */
function keep(line) {
  const kind = isSevere(line) ? "severe" : "other";
  line.number = ++log.number;
  kept[kind].push(line);
  sizes[kind] += line.message.length;
  while (kept[kind].length > MOST[kind].lines || sizes[kind] > MOST[kind].size) sizes[kind] -= kept[kind].shift().message.length;
}

/** All lines that are kept, in their order. */
const all = () => [...kept.severe, ...kept.other].sort((a, b) => a.number - b.number);

const isShown = ({ level, target, message }) =>
  LEVELS.indexOf(level) <= LEVELS.indexOf(field("log-level").value) && matches($("log-filter"), level, target, message);

function logLine({ time, level, target, message }) {
  const when = new Date(time);
  const exact = `${clock(when)}.${String(when.getMilliseconds()).padStart(3, "0")}`;
  return element(
    "p",
    { title: target },
    element("span", { class: "time", title: time }, exact),
    " ",
    element("span", { class: `level ${level}` }, level),
    " ",
    target && !/^outrigger\b/.test(target) ? [element("span", { class: "target" }, `${plain(target)}:`), " "] : [],
    plain(message),
  );
}

function showState() {
  setText($("log-pause"), log.isPaused ? (log.held ? `Follow (${formatCount(log.held)} new)` : "Follow") : "Pause");
  const none = kept.severe.length + kept.other.length ? "No line matches the level and the filter." : "No lines yet.";
  setText($("log-none"), none);
  setHidden($("log-none"), log.box.box.childElementCount > 0);
}

/** A line of the page itself. */
const ownLine = (level, message) => ({ time: new Date().toISOString(), level, target: "console", message });

function add(lines) {
  lines.forEach(keep);
  if (log.isPaused) log.held += lines.length;
  else log.box.append(lines.filter(isShown).map(logLine));
  showState();
  showSection("log", true);
}

/** Reads the log from its beginning after a restart of the server, and says so in a line. */
export function showRestart(pid) {
  log.next = undefined;
  if (may("all")) add([ownLine("info", `the server was restarted: process ${pid}`)]);
}

/** Asks for the lines after those that are known and shows them. */
export async function readLog() {
  if (!status || !may("all")) return;
  try {
    const after = log.next;
    const answer = await ask(after === undefined ? "/.outrigger/log" : `/.outrigger/log?after=${after}`);
    if (after !== log.next) return;
    // Another server process has answered, and its numbers are lower.
    if (after !== undefined && answer.next < after) {
      log.next = undefined;
      return;
    }
    log.next = answer.next;
    const missed = answer.dropped ? [ownLine("warn", `${plural(answer.dropped, "line")} dropped`)] : [];
    add([...missed, ...answer.lines]);
  } catch (error) {
    await handle(error);
  }
}

/** The lines that the filter lets through, without those that have come since the pause. */
function shownLines() {
  const lines = all();
  return lines.slice(0, log.isPaused && log.held ? -log.held : undefined).filter(isShown);
}

function filterLog() {
  log.box.replace(shownLines().slice(-1000).map(logLine));
  showState();
}
$("log-level").addEventListener("change", filterLog);
$("log-filter").addEventListener("input", filterLog);
$("log-pause").addEventListener("click", () => {
  log.isPaused = !log.isPaused;
  log.held = 0;
  $("log-pause").setAttribute("aria-pressed", String(log.isPaused));
  if (log.isPaused) showState();
  else filterLog();
});
$("log-download").addEventListener("click", () => {
  const text = shownLines().map(({ time, level, target, message }) => `${time} ${level.toUpperCase().padEnd(5)} ${target} ${message}\n`);
  const link = element("a", {
    href: URL.createObjectURL(new Blob(text, { type: "text/plain" })),
    download: `outrigger-${new Date().toISOString().slice(0, 19).replaceAll(":", "")}.log`,
  });
  link.click();
  URL.revokeObjectURL(link.href);
});

const remembered = storage.getItem("outrigger.console.level");
if (remembered && LEVELS.includes(remembered)) field("log-level").value = remembered;
$("log-level").addEventListener("change", () => storage.setItem("outrigger.console.level", field("log-level").value));
