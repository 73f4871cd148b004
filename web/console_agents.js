// The section "Agents": shows the agents' processes and sessions. A session can be watched here, or by others with a link.

import { $, element } from "./common.js";
import { offerLink } from "./console_links.js";
import { openTab, showSection } from "./console_page.js";
import { cpuShare, usageColumns } from "./console_programs.js";
import { agentRoutes, identity, may } from "./console_state.js";
import { Table } from "./console_table.js";
import { fillState, formatCount, plain, plural, setHidden, setText } from "./view.js";

const agentsTable = new Table("agents", 720, {
  key: ({ key }) => key,
  title: ({ path, pid }) => `the agent of ${path}, process ${pid ?? "none"}`,
  none: "No agent process is listed. Agents with a process for each client are among the programs.",
  columns: [
    { name: "Agent process", kind: "main mono", text: ({ path, index, count }) => (count > 1 ? `${path} (${index + 1})` : path) },
    {
      name: "State",
      kind: "tight",
      value: ({ running }) => (running ? "running" : "not running"),
      fill: (cell, { running }) => fillState(cell, running ? "good" : "bad", running ? "running" : "not running"),
    },
    {
      name: "Protocol",
      kind: "tight",
      text: ({ version }) => (version === undefined || version === null ? "" : `version ${version}`),
    },
    { name: "Clients", kind: "number", value: ({ clients }) => clients ?? 0, text: ({ clients }) => formatCount(clients ?? 0) },
    { name: "Sessions", kind: "number", value: ({ sessions }) => sessions ?? 0, text: ({ sessions }) => formatCount(sessions ?? 0) },
    { name: "Restarts", kind: "number", value: ({ restarts }) => restarts ?? 0, text: ({ restarts }) => formatCount(restarts ?? 0) },
    ...usageColumns,
  ],
});

const SESSION_STATES = {
  active: ["good", "active"],
  idle: ["", "idle"],
  detached: ["warn", "client cut"],
  gone: ["", "no client"],
};

/** Whether this page may watch a session: it must have the same owner. Without tokens, sessions have none. */
const mayWatch = ({ owner }) => identity.auth && may("watch") && owner === identity.principal;

const sessionsTable = new Table("sessions", 640, {
  key: ({ path, id }) => `${path} ${id}`,
  title: ({ id }) => `session ${plain(id)}`,
  none: "No sessions.",
  columns: [
    { name: "Session", kind: "main text mono", text: ({ id }) => plain(id) },
    {
      name: "State",
      kind: "tight",
      value: ({ state }) => state,
      words: ({ state }) => SESSION_STATES[state]?.[1] ?? state,
      fill: (cell, { state }) => fillState(cell, ...(SESSION_STATES[state] ?? ["", String(state)])),
    },
    { name: "Owner", kind: "text", text: ({ owner }) => (owner === null || owner === undefined ? "nobody" : plain(owner)) },
    { name: "Client", kind: "tight", text: ({ client }) => client ?? "" },
    { name: "Waiting requests", kind: "number", value: ({ waiting }) => waiting ?? 0, text: ({ waiting }) => formatCount(waiting ?? 0) },
    { name: "Observers", kind: "number", value: ({ observers }) => observers ?? 0, text: ({ observers }) => formatCount(observers ?? 0) },
  ],
  actions: (row) => {
    const name = plain(row.item.id);
    const watch = () => openTab(row.item.path, { session: row.item.id });
    const offer = () => offerLink(name, row.item.path, row.item.id);
    return [
      element("button", { "aria-label": `Watch session ${name}`, onclick: watch }, "Watch"),
      element("button", { "aria-label": `Link: watch-only link for session ${name}`, onclick: offer }, "Link"),
    ];
  },
  updateActions: ([watch, link], item) => {
    setHidden(watch, !mayWatch(item));
    setHidden(link, !mayWatch(item) || !may("all"));
  },
});

/** Shows the agents of the status. */
export function showAgents({ uptime_s }) {
  const routes = agentRoutes();
  if (!routes.length) return showSection("agents", false);
  const running = [];
  const list = [];
  const sums = { waiting: 0, asked: 0, denied: 0, timed_out: 0, observers: 0 };
  let sessions = 0;
  for (const { path, fields } of routes) {
    fields.agent?.processes?.forEach((process, index, { length }) =>
      running.push({ ...process, path, index, count: length, key: `${path} ${index}`, share: cpuShare(process, uptime_s) }),
    );
    for (const session of fields.agent?.session_list ?? []) list.push({ path, ...session });
    sessions += fields.sessions ?? 0;
    for (const name of Object.keys(sums)) sums[name] += fields.agent?.[name] ?? fields[name] ?? 0;
  }
  agentsTable.update(running);
  setText(
    $("agents-now"),
    `${[
      sums.waiting + sums.asked === 0
        ? "No request waits for an answer"
        : `${plural(sums.waiting, "request")} of clients and ${plural(sums.asked, "request")} of agents wait for an answer`,
      sums.observers && plural(sums.observers, "observer"),
      sums.denied && `${formatCount(sums.denied)} denied`,
      sums.timed_out && `${formatCount(sums.timed_out)} timed out`,
    ]
      .filter(Boolean)
      .join(", ")}.`,
  );
  sessionsTable.update(list);
  setText($("sessions-count"), formatCount(sessions));
  return showSection("agents", true, sessions);
}
