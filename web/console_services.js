// The section "Services": shows the routes with what they do at present, and keeps the lists of services in forms up to date.

import { $, element, field, formatBytes } from "./common.js";
import { isTalkative, showPresets } from "./console_messages.js";
import { pageLink, showSection } from "./console_page.js";
import { hasTerminal, identity, isDemo, KINDS, may, of, routeFields, services, status } from "./console_state.js";
import { offerCommand } from "./console_links.js";
import { Table } from "./console_table.js";
import { formatCount, setHidden } from "./view.js";

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

/** The number of clients of a route. */
const clientsOf = ({ path }) => status.clients_by_route?.[path] ?? (services.length === 1 ? status.client_count : 0);

/** The control of a service: a link, or the command that does the same where this build has no page. */
function offer(item) {
  if (item.service === "terminal" && may("use"))
    return hasTerminal()
      ? pageLink("Open a terminal", item.path)
      : element("button", { onclick: () => offerCommand("Open a terminal", item.path) }, "Open a terminal");
  const hasSessions = item.service === "agent" && routeFields(item.path).agent;
  if (hasSessions && may("use")) return pageLink("Open the agent", item.path);
  if (hasSessions && identity.auth && may("watch")) return pageLink("Watch a session", item.path);
  const jump = (text, section, focused) =>
    element(
      "a",
      {
        href: `#${section}`,
        onclick: (event) => {
          event.preventDefault();
          focused().focus();
        },
      },
      text,
    );
  if (item.service === "processes" && may("all")) return jump("Run a command", "processes", () => $("spawn-command"));
  if (isDemo() && isTalkative(item) && may("use"))
    return jump("Send messages", "try", () => {
      field("try-path").value = item.path;
      showPresets();
      return $("try-connect");
    });
  return [];
}

const servicesTable = new Table("services", 560, {
  key: ({ path }) => path,
  title: ({ path }) => `the service at ${path}`,
  none: "No services.",
  detail: (item) => ({ ...item, clients: clientsOf(item), ...routeFields(item.path) }),
  columns: [
    { name: "Path", kind: "main mono", text: ({ path }) => path },
    { name: "Service", kind: "tight", text: ({ service }) => KINDS[service] ?? service },
    { name: "Clients", kind: "number", value: clientsOf, text: (item) => formatCount(clientsOf(item)) },
    { name: "Now", kind: "text", text: describe },
  ],
  actions: (row) => offer(row.item),
});
servicesTable.limit = 1000;

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

export function showServices() {
  showSection("services", services.length > 0);
  servicesTable.update(services);
  const runners = of("processes");
  fillOptions($("spawn-path"), runners);
  setHidden($("spawn-path"), runners.length < 2);
  const talkative = services.filter(isTalkative);
  const before = $("try-path").shown;
  fillOptions($("try-path"), talkative);
  if ($("try-path").shown !== before) showPresets();
  showSection("try", isDemo() && talkative.length > 0 && may("use"));
}
