// The section "Log": shows the newest lines of the server's log, filtered by level and words.

import { element, storage } from "./common.js";
import { $, matches, showSection } from "./console_page.js";
import { ask, handle } from "./console_requests.js";
import { may, status } from "./console_state.js";
import { clock, formatCount, Lines, MOST_LINES, plain, plural, setText } from "./view.js";

const LEVELS = ["error", "warn", "info", "debug", "trace"];
const log = { lines: [], next: undefined, box: new Lines($("log-lines")), paused: false, held: 0 };

const isShown = ({ level, target, message }) =>
  LEVELS.indexOf(level) <= LEVELS.indexOf($("log-level").value) && matches($("log-filter"), level, target, message);

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

function showLog(answer) {
  if (answer.dropped)
    log.lines.push({
      time: new Date().toISOString(),
      level: "warn",
      target: "console",
      message: `${plural(answer.dropped, "line")} dropped`,
    });
  log.next = answer.next;
  const fresh = answer.dropped ? [log.lines.at(-1), ...answer.lines] : answer.lines;
  log.lines.push(...answer.lines);
  if (log.lines.length > MOST_LINES) log.lines.splice(0, log.lines.length - MOST_LINES);
  if (log.paused) log.held += fresh.length;
  else log.box.append(fresh.filter(isShown).map(logLine));
  setText($("log-pause"), log.paused ? (log.held ? `Follow (${formatCount(log.held)} new)` : "Follow") : "Pause");
  showSection("log", true);
}

/** Reads the log from its beginning after a restart of the server, and says so in a line. */
export function showRestart(pid) {
  log.next = undefined;
  if (may("all"))
    showLog({
      lines: [
        {
          time: new Date().toISOString(),
          level: "info",
          target: "console",
          message: `the server was restarted: process ${pid}`,
        },
      ],
      next: undefined,
    });
}

/** Asks for the lines after those that are known and shows them. */
export async function readLog() {
  if (!status || !may("all")) return;
  try {
    const after = log.next;
    const answer = await ask(after === undefined ? "/.outrigger/log" : `/.outrigger/log?after=${after}`);
    // Another server process has answered, and its numbers are lower.
    if (after !== undefined && answer.next < after) log.next = undefined;
    else if (after === log.next) showLog(answer);
  } catch (error) {
    await handle(error);
  }
}

const filterLog = () =>
  log.box.replace(
    log.lines
      .slice(0, log.paused && log.held ? -log.held : undefined)
      .filter(isShown)
      .map(logLine),
  );
$("log-level").addEventListener("change", filterLog);
$("log-filter").addEventListener("input", filterLog);
$("log-pause").addEventListener("click", () => {
  log.paused = !log.paused;
  log.held = 0;
  $("log-pause").setAttribute("aria-pressed", String(log.paused));
  setText($("log-pause"), log.paused ? "Follow" : "Pause");
  if (!log.paused) filterLog();
});

const remembered = storage.getItem("outrigger.console.level");
if (remembered && LEVELS.includes(remembered)) $("log-level").value = remembered;
$("log-level").addEventListener("change", () => storage.setItem("outrigger.console.level", $("log-level").value));
