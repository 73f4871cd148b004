// The section "Clients": shows the connections of the server, their traffic and their state, and disconnects them. The server sorts
// and filters them, because it may have many more than the page shows.

import { $, element, formatBytes, formatDuration } from "./common.js";
import { isInSight, showSection } from "./console_page.js";
import { act, pollers } from "./console_requests.js";
import { commandLine, isBelow, KINDS, may, processes, services, status } from "./console_state.js";
import { Table } from "./console_table.js";
import { confirm, fillPair, fillState, formatCount, plain, plural, setHidden, setText } from "./view.js";

/** The traffic before, by client id, for differences. */
const rates = new Map();

/** Adds the rates to the clients of a status. */
export function addRates({ clients, uptime_s }) {
  for (const client of clients) {
    const last = rates.get(client.id);
    const passed = last ? uptime_s - last.uptime_s : 0;
    const rate = (name) => (passed > 0 ? Math.max(0, client[name] - last[name]) / passed : 0);
    client.rate_in = rate("bytes_in");
    client.rate_out = rate("bytes_out");
  }
  rates.clear();
  for (const { id, bytes_in, bytes_out } of clients) rates.set(id, { bytes_in, bytes_out, uptime_s });
}

/** Forgets what differences are taken from. */
export const forgetRates = () => rates.clear();

function resumeState({ resume }) {
  if (!resume) return ["good", "connected"];
  const more = `${plural(resume.resumes, "connection")} resumed, ${formatBytes(resume.kept_bytes)} unconfirmed`;
  if (resume.detached_s !== null && resume.detached_s !== undefined)
    return ["warn", `cut ${formatDuration(resume.detached_s)} ago`, more];
  return ["good", resume.resumes ? `resumed ${resume.resumes}×` : "resumable", more];
}

/** The service of a client, from the server or from its path. */
const kindOf = (client) => client.service ?? services.find(({ path }) => isBelow(client.path, path))?.service;

/** Disconnects a client. */
export const closeClient = (id, call) => call(`/.outrigger/clients/${encodeURIComponent(id)}/close`, { method: "POST", body: {} });

const clientsTable = new Table("clients", 1110, {
  isRemote: true,
  key: ({ id }) => id,
  title: ({ id }) => `client ${id}`,
  none: "No clients are connected.",
  detail: ({ rate_in, rate_out, ...fields }) => ({ ...fields, service: kindOf(fields) }),
  changed: () => pollers.status.hurry(),
  bulk: [
    {
      name: "Disconnect",
      title: "Disconnect these clients?",
      can: () => may("all"),
      text: (count) => `${plural(count, "client")} cannot resume the connection.`,
      run: ({ id }, call) => closeClient(id, call),
    },
  ],
  columns: [
    {
      name: "Path",
      kind: "main text mono",
      sort: "path",
      fill: (cell, { path }) => {
        // A path of a process has a long id. What runs there says more.
        const [, process] = path.match(/([0-9a-f]{8}-[0-9a-f-]{27})\/attach$/) ?? [];
        fillPair(
          cell,
          process ? path.replace(process.slice(8), "…") : path,
          process && processes.has(process) ? commandLine(processes.get(process)) : "",
        );
        if (cell.title !== path) cell.title = path;
      },
    },
    { name: "Client", kind: "tight", sort: "id", fill: (cell, item) => fillPair(cell, item.id, KINDS[kindOf(item)] ?? kindOf(item) ?? "") },
    { name: "Address", kind: "tight", sort: "remote", text: ({ remote }) => plain(remote) },
    { name: "Principal", kind: "text", sort: "principal", text: ({ principal }) => plain(principal) },
    { name: "Connected", kind: "number", sort: "connected_s", text: ({ connected_s }) => formatDuration(connected_s) },
    {
      name: "In",
      kind: "number",
      sort: "bytes_in",
      fill: (cell, item) => fillPair(cell, `${formatBytes(item.rate_in)}/s`, formatBytes(item.bytes_in)),
    },
    {
      name: "Out",
      kind: "number",
      sort: "bytes_out",
      fill: (cell, item) => fillPair(cell, `${formatBytes(item.rate_out)}/s`, formatBytes(item.bytes_out)),
    },
    {
      name: "Queue",
      kind: "number",
      sort: "queued_bytes",
      text: ({ queued_bytes }) => (queued_bytes ? formatBytes(queued_bytes) : "0"),
    },
    { name: "State", kind: "tight", sort: "detached_s", fill: (cell, item) => fillState(cell, ...resumeState(item)) },
  ],
  actions: (row) =>
    element("button", { "aria-label": `Disconnect client ${row.item.id}`, onclick: ({ target }) => disconnect(row.item, target) }, "Disconnect"),
  updateActions: ([button]) => setHidden(button, !may("all")),
});

async function disconnect(client, button) {
  const text = [
    "The client ",
    element("code", {}, client.id),
    ` of ${client.principal}, ${client.remote}, at `,
    element("code", {}, client.path),
    ". It cannot resume this connection.",
  ];
  if (!(await confirm("Disconnect this client?", text, "Disconnect"))) return;
  await act(`Disconnect ${client.id}`, button, (call) => closeClient(client.id, call));
  pollers.status.hurry();
}

/** The part of the question for the status that says which clients to list. */
export function clientsQuery() {
  const query = new URLSearchParams({ limit: String(isInSight("clients") || clientsTable.opened ? clientsTable.limit : 0) });
  const { column, direction, filter } = clientsTable;
  if (column) {
    query.set("sort", column.sort);
    query.set("order", direction > 0 ? "asc" : "desc");
  }
  if (filter.value) query.set("filter", filter.value.slice(0, 200));
  // A plus sign is a plus sign to the server.
  return query.toString().replaceAll("+", "%20");
}

export function showClients() {
  if (status.clients.length || !status.matched || isInSight("clients")) clientsTable.update(status.clients, status.matched ?? 0);
  setText($("clients-count"), formatCount(status.client_count));
  showSection("clients", true, status.client_count);
}
