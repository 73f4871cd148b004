// The section "Services": shows the routes with what they do at present, and keeps the lists of services in forms up to date.

import { element, formatBytes } from "./common.js";
import { isTalkative, showPresets } from "./console_messages.js";
import { $, pageLink, showSection } from "./console_page.js";
import { identity, isBelow, KINDS, may, of, routeFields, services, status } from "./console_state.js";
import { fillActions, formatCount, setHidden, Table } from "./view.js";

/** What a route does at present, in a few words. */
function describe({ path, service }) {
  const fields = routeFields(path);
  const parts = [];
  const add = (count, one, many = `${one}s`) => {
    if (count !== undefined) parts.push(`${formatCount(count)} ${count === 1 ? one : many}`);
  };
  switch (service) {
    case "terminal":
      add(fields.processes?.running, "program running", "programs running");
      break;
    case "processes":
      add(fields.processes?.running, "process running", "processes running");
      add(fields.processes?.started, "started", "started");
      break;
    case "agent":
      if (fields.agent) add(fields.agent.processes.length, "agent process", "agent processes");
      else add(fields.processes, "agent process", "agent processes");
      add(fields.sessions, "session");
      if (fields.observers) add(fields.observers, "observer");
      if (fields.agent && !fields.agent.running) parts.push("not running");
      break;
    case "mcp":
      if (fields.support && fields.support !== "unknown") parts.push(fields.support);
      add(fields.processes, "process", "processes");
      add(fields.sessions, "session");
      add(fields.pending_requests, "pending request");
      if (fields.websockets) add(fields.websockets, "WebSocket");
      if (fields.kept_bytes) parts.push(`${formatBytes(fields.kept_bytes)} of events kept`);
      break;
    default:
      if (typeof fields.processes === "number") add(fields.processes, "program running", "programs running");
      if (fields.restarts) add(fields.restarts, "restart");
  }
  return parts.join(", ");
}

/** The number of clients of a route, unless the status lists only some clients. */
function clientsOf({ path }) {
  return status.next ? undefined : status.clients.filter((client) => isBelow(client.path, path)).length;
}

const servicesTable = new Table($("services-table"), 560, ({ path }) => path, [
  { name: "Path", kind: "main mono", text: ({ path }) => path },
  { name: "Service", kind: "tight", text: ({ service }) => KINDS[service] ?? service },
  {
    name: "Clients",
    kind: "number",
    value: clientsOf,
    text: (item) => String(clientsOf(item) ?? ""),
  },
  { name: "Now", kind: "text", text: describe },
  {
    name: "Actions",
    kind: "actions",
    fill: (cell, item) =>
      fillActions(cell, () => {
        if (item.service === "terminal" && may("use")) return pageLink("Open a terminal", item.path);
        const hasSessions = item.service === "agent" && routeFields(item.path).agent;
        if (hasSessions && may("use")) return pageLink("Open the agent", item.path);
        if (hasSessions && identity.auth && may("watch")) return pageLink("Watch a session", item.path);
        if (item.service === "processes" && may("all"))
          return element(
            "a",
            {
              href: "#processes",
              onclick: (event) => {
                event.preventDefault();
                $("spawn-command").focus();
              },
            },
            "Run a command",
          );
        if (isTalkative(item) && may("use"))
          return element(
            "a",
            {
              href: "#try",
              onclick: (event) => {
                event.preventDefault();
                $("try-path").value = item.path;
                showPresets();
                $("try-connect").focus();
              },
            },
            "Send messages",
          );
        return [];
      }),
  },
]);

/** Updates lists of services in forms. */
function fillOptions(select, list) {
  const key = JSON.stringify(list);
  if (select.shown === key) return;
  select.shown = key;
  const { value } = select;
  select.replaceChildren(
    ...list.map(({ path, service }) => element("option", { value: path }, `${path} (${KINDS[service] ?? service})`)),
  );
  if (list.some(({ path }) => path === value)) select.value = value;
}

servicesTable.changed = () => showServices();
servicesTable.limit = 1000;

export function showServices() {
  showSection("services", services.length > 0);
  servicesTable.show(servicesTable.first(services));
  const runners = of("processes");
  fillOptions($("spawn-path"), runners);
  setHidden($("spawn-path"), runners.length < 2);
  const talkative = services.filter(isTalkative);
  const before = $("try-path").shown;
  fillOptions($("try-path"), talkative);
  if ($("try-path").shown !== before) showPresets();
  showSection("try", talkative.length > 0 && may("use"));
}
