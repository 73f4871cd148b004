// The console: shows what a server does, and controls it as far as the token allows.
// This module starts the page, asks for the status and shows the header. Each section is a module of its own, `console_*.js`.
//
// The page asks for JSON once a second while it is visible, and only for what is in sight. Each kind of request is sent only after the one
// before was answered.
// Rows and charts are updated in place, so that focus, selection and scroll positions stay.

import { $, delay, formatDuration } from "./common.js";
import { showAgents } from "./console_agents.js";
import { addRates, clientsQuery, showClients } from "./console_clients.js";
import { forgetHealth, showHealth } from "./console_health.js";
import { readLinks } from "./console_links.js";
import { readLog, showRestart } from "./console_log.js";
import { showMcp } from "./console_mcp.js";
import { addSamples, breakRates, forgetSamples, historyQuery, redrawCharts, showFigures } from "./console_overview.js";
import { isInSight, pageLink, showSection } from "./console_page.js";
import { readProcesses } from "./console_processes.js";
import { showPrograms } from "./console_programs.js";
import { ask, askedAt, asking, forgetIdentity, handle, hurryAll, identified, identify, pollers } from "./console_requests.js";
import { showServices } from "./console_services.js";
import { identity, may, of, processes, setStatus, status } from "./console_state.js";
import { clock, setHidden, setText } from "./view.js";

// --- Header ----------------------------------------------------------------------------------------------------------

/** After this time without an answer, in ms, the page says so, and then shows its data as dead. */
const SLOW = 2500;
const DEAD = 5000;

let goneSince;
/** When the last answer came. */
let answeredAt = performance.now();

/** Shows the state of the connection: `live`, `slow` or `gone`. The data looks dead if it is not current. */
function setConnection(state, text, isDead = state === "gone") {
  $("connection").dataset.state = state;
  setText($("connection-text"), text);
  document.body.classList.toggle("dead", isDead && status !== undefined);
}

function showConnection(error) {
  if (error) {
    goneSince ??= new Date();
    const since = `since ${clock(goneSince)}`;
    if (error.status === 0) setConnection("gone", `the server does not answer ${since}, trying again`);
    else if (error.status) setConnection("gone", `the server answers with an error ${since}: ${error.message}`);
    else setConnection("gone", `the page cannot show the server's answer: ${error.message}`);
  } else {
    goneSince = undefined;
    answeredAt = performance.now();
    setConnection("live", "connected");
  }
}

/** Notices that an answer is late, long before the question's time limit. */
setInterval(() => {
  if (document.hidden || goneSince || askedAt === undefined) return;
  const late = performance.now() - Math.max(askedAt, answeredAt);
  if (late > SLOW) setConnection("slow", `no answer for ${Math.round(late / 1000)} s`, late > DEAD);
}, 500);

addEventListener("offline", () => {
  goneSince ??= new Date();
  setConnection("gone", "this device is offline");
});
addEventListener("online", hurryAll);

const ALLOWS = {
  metrics: "It shows this server's figures. It cannot connect to services.",
  watch:
    "It shows this server's figures and may watch processes and sessions. It cannot type, start processes or connect to services.",
  use: "It may connect to services. It cannot list, start or signal processes, disconnect clients, make links or read the log.",
};

function showIdentity() {
  setText($("version"), identity?.version ?? "");
  const ends = identity?.expires_s ? `, for ${formatDuration(identity.expires_s)} more` : "";
  setText(
    $("identity"),
    !identity ? "" : identity.auth ? `${identity.principal}, scope ${identity.scope}${ends}` : "no token required",
  );
  const allows = identity?.auth ? ALLOWS[identity.scope] : undefined;
  setText($("allows"), allows ? `Your token has the scope ${identity.scope}. ${allows}` : "");
  setHidden($("allows"), !allows);
}

// --- Asking the server -----------------------------------------------------------------------------------------------

/** The question for the status: only what somebody may look at. */
function statusQuery() {
  const usage = ["programs", "agents", "mcp"].some(isInSight) ? "&usage=1" : "";
  return `/status?health=1&${historyQuery()}&${clientsQuery()}${usage}`;
}

async function readStatus() {
  try {
    if (asking) await asking;
    if (!identified) {
      await identify();
      showIdentity();
      setHidden($("main"), false);
      if (identity.only) return showOnly();
    }
    const answer = await ask(statusQuery());
    if (status && (answer.pid !== status.pid || answer.uptime_s < status.uptime_s)) {
      // Another server process: its counters, its figures and its log begin again.
      forgetSamples();
      forgetHealth();
      showRestart(answer.pid);
      forgetIdentity();
    } else addSamples(answer);
    addRates(answer);
    setStatus(answer);
    showConnection();
    if (document.hidden) return undefined;
    setText(
      $("about"),
      `process ${status.pid}, up ${formatDuration(status.uptime_s)}, listening on ${status.listen.join(", ")}`,
    );
    showHealth();
    showFigures();
    showServices();
    showPrograms(status);
    showClients();
    showAgents(status);
    showMcp(status);
    setHidden($("sections"), false);
    pollAllowed();
  } catch (error) {
    if (error.status === 401) return handle(error);
    breakRates();
    showConnection(error);
  }
  return undefined;
}

let started = false;

/** Starts what needs to know the services and the scope first, and hides what the scope forbids. */
function pollAllowed() {
  const all = may("all");
  if (!all || !of("processes").length) {
    showSection("processes", false);
    processes.clear();
  }
  if (!all) {
    showSection("log", false);
    showSection("links", false);
  }
  if (started) return;
  started = true;
  pollers.processes.start(readProcesses);
  pollers.log.start(readLog);
  pollers.links.start(readLinks);
}

/** The page of a link's token: it may watch one process or session. */
function showOnly() {
  const { path, session: sessionId } = identity.only;
  const link = pageLink(
    sessionId ? `session ${sessionId}` : path,
    path,
    sessionId ? { session: sessionId } : { mode: "viewer" },
  );
  $("allows").replaceChildren("Your link lets you watch ", link, ", and nothing else.");
  setHidden($("allows"), false);
  showConnection();
  return delay(3_600_000);
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  redrawCharts();
  hurryAll();
});

document.title = `${location.host} - Outrigger`;
pollers.status.start(readStatus);
