// The section "Clients": shows the connections of the server, their traffic and their state, and disconnects them.

import { api, element, formatBytes, formatDuration } from "./common.js";
import { $, matches, setEmpty, showSection } from "./console_page.js";
import { attempt, pollers } from "./console_requests.js";
import { commandLine, isBelow, KINDS, may, processes, services, status } from "./console_state.js";
import {
  confirm,
  fillActions,
  fillPair,
  fillState,
  formatCount,
  makeDialog,
  plain,
  plural,
  setHidden,
  setText,
  showDialog,
  Table,
} from "./view.js";

/** The traffic before, by client id, for differences. */
const rates = new Map();

function trafficRate(client, passed) {
  const last = rates.get(client.id);
  const rate = (name) => (last && passed > 0 ? Math.max(0, client[name] - last[name]) / passed : 0);
  client.rate_in = rate("bytes_in");
  client.rate_out = rate("bytes_out");
}

/** Adds the rates to the clients of a status, `passed` seconds after the status before. */
export function addRates(clients, passed) {
  for (const client of clients) trafficRate(client, passed);
  rates.clear();
  for (const client of clients) rates.set(client.id, client);
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

/** The ids of the clients that were chosen. */
const chosen = new Set();

const clientsTable = new Table($("clients-table"), 1040, ({ id }) => id, [
  {
    name: "Choose",
    kind: "choose",
    fill: (cell, { id }) => {
      if (!may("all")) return;
      cell.firstElementChild ??
        cell.append(element("input", { type: "checkbox", "aria-label": `Choose client ${id}`, onchange: ({ target }) => choose(id, target.checked) }));
      cell.firstElementChild.checked = chosen.has(id);
    },
  },
  {
    name: "Path",
    kind: "main text mono",
    value: ({ path }) => path,
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
  { name: "Client", kind: "tight", value: ({ id }) => id, fill: (cell, item) => fillPair(cell, item.id, KINDS[kindOf(item)] ?? kindOf(item) ?? "") },
  { name: "Address", kind: "tight", text: ({ remote }) => plain(remote) },
  { name: "Principal", kind: "text", text: ({ principal }) => plain(principal) },
  { name: "Connected", kind: "number", value: ({ connected_s }) => connected_s, text: ({ connected_s }) => formatDuration(connected_s) },
  {
    name: "In",
    kind: "number",
    value: ({ bytes_in }) => bytes_in,
    fill: (cell, item) => fillPair(cell, `${formatBytes(item.rate_in)}/s`, formatBytes(item.bytes_in)),
  },
  {
    name: "Out",
    kind: "number",
    value: ({ bytes_out }) => bytes_out,
    fill: (cell, item) => fillPair(cell, `${formatBytes(item.rate_out)}/s`, formatBytes(item.bytes_out)),
  },
  { name: "Queue", kind: "number", value: ({ queued_bytes }) => queued_bytes, text: ({ queued_bytes }) => (queued_bytes ? formatBytes(queued_bytes) : "0") },
  { name: "State", kind: "tight", value: (item) => resumeState(item)[1], fill: (cell, item) => fillState(cell, ...resumeState(item)) },
  {
    name: "Actions",
    kind: "actions",
    fill: (cell, item, row) =>
      fillActions(cell, () => [
        element("button", { "aria-label": `Details of client ${item.id}`, onclick: () => showDetails(row.item) }, "Details"),
        may("all") &&
          element(
            "button",
            { "aria-label": `Disconnect client ${item.id}`, onclick: () => disconnect(row.item) },
            "Disconnect",
          ),
      ]),
  },
]);

async function disconnect(client) {
  const text = [
    "The client ",
    element("code", {}, client.id),
    ` of ${client.principal}, ${client.remote}, at `,
    element("code", {}, client.path),
    ". It cannot resume this connection.",
  ];
  if (!(await confirm("Disconnect this client?", text, "Disconnect"))) return;
  await attempt(async () => {
    await api(`/.outrigger/clients/${encodeURIComponent(client.id)}/close`, { method: "POST", body: {} });
    pollers.status.hurry();
  });
}

function choose(id, isChosen) {
  if (isChosen) chosen.add(id);
  else chosen.delete(id);
  showChosen();
}

function showChosen() {
  setHidden($("clients-chosen"), !chosen.size);
  setText($("clients-chosen"), `Disconnect ${plural(chosen.size, "chosen client")}`);
}

/** Disconnects the chosen clients one after the other. What could not be done stays chosen. */
async function disconnectChosen() {
  const all = [...chosen];
  const text = `${plural(all.length, "client")} cannot resume the connection.`;
  if (!(await confirm("Disconnect these clients?", text, "Disconnect"))) return;
  $("clients-chosen").disabled = true;
  await attempt(async () => {
    for (const id of all) {
      setText($("clients-chosen"), `Disconnecting ${id}`);
      // A client that is gone meanwhile is what was wanted.
      await api(`/.outrigger/clients/${encodeURIComponent(id)}/close`, { method: "POST", body: {} }).catch((error) => {
        if (error.status !== 404) throw error;
      });
      chosen.delete(id);
    }
  });
  $("clients-chosen").disabled = false;
  showChosen();
  pollers.status.hurry();
}
$("clients-chosen").addEventListener("click", disconnectChosen);

/** Shows all that the status knows about a client. */
async function showDetails(client) {
  const rows = (fields, prefix = "") =>
    Object.entries(fields).flatMap(([name, value]) =>
      typeof value === "object" && value !== null ? rows(value, `${prefix}${name}.`) : [[`${prefix}${name}`, value]],
    );
  const shown = rows(client)
    .filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => [element("dt", {}, name), element("dd", {}, plain(value))]);
  const dialog = makeDialog(
    `Client ${client.id}`,
    element("dl", { class: "details", tabindex: "0" }, shown),
    element("div", { class: "actions" }, element("button", { class: "primary", onclick: () => dialog.close() }, "Close")),
  );
  await showDialog(dialog);
}

/** Whether the table shows, filters or sorts more clients than a status has by default. */
export const needsMoreClients = () => Boolean($("clients-filter").value || clientsTable.column) || clientsTable.limit > 200;

export function showClients() {
  const list = status.clients ?? [];
  const found = list.filter((item) =>
    matches($("clients-filter"), item.id, item.path, item.remote, item.principal, KINDS[kindOf(item)]),
  );
  const shown = clientsTable.first(found);
  const present = new Set(list.map(({ id }) => id));
  if (!status.next) for (const id of chosen) if (!present.has(id)) chosen.delete(id);
  showChosen();
  clientsTable.show(shown);
  const unlisted = $("clients-filter").value ? 0 : status.client_count - list.length;
  setEmpty(
    $("clients-empty"),
    clientsTable,
    shown.length,
    found.length + Math.max(0, unlisted),
    "No clients are connected.",
    $("clients-filter"),
  );
  setText($("clients-count"), formatCount(status.client_count));
  showSection("clients", true, status.client_count);
}
function showAgain() {
  if (status) showClients();
  pollers.status.hurry();
}
$("clients-filter").addEventListener("input", showAgain);
clientsTable.changed = showAgain;
