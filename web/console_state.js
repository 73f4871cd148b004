// What the console knows about the server and about its own token: identity, status, services and processes. The other modules
// read it; only the modules that ask the server set it.

import { plain } from "./view.js";

const SCOPES = ["metrics", "watch", "use", "all"];

/** The names of the kinds of services. */
export const KINDS = {
  agent: "agent",
  terminal: "terminal",
  processes: "processes",
  app: "app",
  mcp: "MCP server",
  pipe: "pipe",
  echo: "echo",
};

/** The answer of /.outrigger/session. */
export let identity;
/** The latest answer of /status. */
export let status;
/** The routes, as `{path, service}`. */
export let services = [];
/** The processes of all routes, by id. */
export let processes = new Map();

export function setIdentity(answer) {
  identity = answer;
}

export function setStatus(answer) {
  status = answer;
  services = answer.services ?? Object.keys(answer.routes ?? {}).map((path) => ({ path, service: path.slice(1) }));
}

export function setProcesses(list) {
  processes = new Map(list.map((one) => [one.process_id, one]));
}

/** Whether the token has a scope, or a higher one. */
export const may = (scope) => !identity?.auth || SCOPES.indexOf(identity.scope) >= SCOPES.indexOf(scope);
/** The routes of a kind of service. */
export const of = (kind) => services.filter(({ service }) => service === kind);
/** The path to connect to. A route `/live/...` takes every path below `/live/`. */
export const addressOf = (path) => path.replace(/\.\.\.$/, "");
/** Whether this build of the server has the page of a terminal. */
export const hasTerminal = () => status?.pages?.terminal ?? true;
/** Whether the server is the demo. */
export const isDemo = () => status?.pages?.demo ?? false;
/** Whether a path is that of a route, or one that the route takes. */
export const isBelow = (path, route) => path === route || path.startsWith(`${addressOf(route).replace(/\/$/, "")}/`);

/** The service's own fields of a route. */
export const routeFields = (path) => status?.routes?.[path] ?? (services.length === 1 ? status : undefined) ?? {};

/** The agents' routes with their fields. */
export const agentRoutes = () => of("agent").map(({ path }) => ({ path, fields: routeFields(path) }));

const quoteWord = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
/** The command line of a process, as it is typed in a shell. */
export const commandLine = ({ command, args }) => plain([command, ...(args ?? [])].map(quoteWord).join(" "));
/** The path to attach to a process. */
export const attachPath = (process) => `${process.path}/${process.process_id}/attach`;
