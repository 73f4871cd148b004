// The console: shows what a server does, and controls it as far as the token allows.
// This module starts the page, asks for the status and shows the header. Each section is a module of its own, `console_*.js`.
//
// The page asks for JSON once a second while it is visible. Each kind of request is sent only after the one before was answered.
// Rows and charts are updated in place, so that focus, selection and scroll positions stay.

import { delay, formatDuration } from "./common.js";
import { showAgents } from "./console_agents.js";
import { addRates, needsMoreClients, showClients } from "./console_clients.js";
import { readLinks } from "./console_links.js";
import { readLog, showRestart } from "./console_log.js";
import { breakCharts, drawCharts, redrawCharts, secondsUntil, showFigures } from "./console_overview.js";
import { $, pageLink, showSection } from "./console_page.js";
import { readProcesses } from "./console_processes.js";
import { ask, asking, forgetIdentity, handle, identified, identify, pollers } from "./console_requests.js";
import { showServices } from "./console_services.js";
import { identity, may, of, processes, setStatus, status } from "./console_state.js";
import { clock, setHidden, setText } from "./view.js";

// --- Header ----------------------------------------------------------------------------------------------------------

let goneSince;

function showConnection(error) {
  if (error) {
    goneSince ??= new Date();
    $("connection").dataset.state = "gone";
    const since = `since ${clock(goneSince)}`;
    if (error.status === 0) setText($("connection-text"), `the server does not answer ${since}, trying again`);
    else if (error.status) setText($("connection-text"), `the server answers with an error ${since}: ${error.message}`);
    else setText($("connection-text"), `the page cannot show the server's answer: ${error.message}`);
  } else {
    goneSince = undefined;
    $("connection").dataset.state = "live";
    setText($("connection-text"), "connected");
  }
}

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

async function readStatus() {
  try {
    if (asking) await asking;
    if (!identified) {
      await identify();
      showIdentity();
      setHidden($("main"), false);
      if (identity.only) return showOnly();
    }
    const answer = await ask(`/status?limit=${needsMoreClients() ? 1000 : 200}`);
    if (status && (answer.pid !== status.pid || answer.uptime_s < status.uptime_s)) {
      // Another server process: its counters and its log begin again.
      breakCharts();
      showRestart(answer.pid);
      forgetIdentity();
    }
    addRates(answer.clients, secondsUntil(answer));
    setStatus(answer);
    showConnection();
    drawCharts();
    if (document.hidden) return undefined;
    setText(
      $("about"),
      `process ${status.pid}, up ${formatDuration(status.uptime_s)}, listening on ${status.listen.join(", ")}`,
    );
    showFigures();
    showServices();
    showClients();
    showAgents();
    setHidden($("sections"), false);
    pollAllowed();
  } catch (error) {
    if (error.status === 401) return handle(error);
    breakCharts();
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
  for (const poller of Object.values(pollers)) poller.hurry();
});

document.title = `${location.host} - Outrigger`;
pollers.status.start(readStatus);
