// The section "Programs": the programs of terminals, pipes, agents and MCP servers that a client or a service has started. Those of the
// process API have a section of their own.

import { $, element, formatBytes, formatDuration } from "./common.js";
import { closeClient } from "./console_clients.js";
import { showSection } from "./console_page.js";
import { act, pollers } from "./console_requests.js";
import { KINDS, may, routeFields, services } from "./console_state.js";
import { Table } from "./console_table.js";
import { confirm, formatCount, plural, setHidden, setText } from "./view.js";

/** The use of the processor before, by process id, for differences. */
const usage = new Map();

/** Forgets what differences are taken from. */
export const forgetPrograms = () => usage.clear();

/** The share of a processor that a program uses, from its processor time at `uptime_s`. Undefined at first. */
export function cpuShare({ pid, cpu_s }, uptime_s) {
  if (typeof cpu_s !== "number") return undefined;
  const last = usage.get(pid);
  if (last && (last.uptime_s === uptime_s || uptime_s - last.uptime_s < 0.5)) return last.share;
  const share = last && cpu_s >= last.cpu_s ? (cpu_s - last.cpu_s) / (uptime_s - last.uptime_s) : undefined;
  usage.set(pid, { cpu_s, uptime_s, share });
  return share;
}

export const formatShare = (share) =>
  share === undefined || share === null ? "" : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;

/** The columns of the use of the processor and of memory. */
export const usageColumns = [
  { name: "Process id", kind: "number", value: ({ pid }) => pid, text: ({ pid }) => String(pid ?? "") },
  { name: "CPU", kind: "number", value: ({ share }) => share, text: ({ share }) => formatShare(share) },
  { name: "Memory", kind: "number", value: ({ mem_bytes }) => mem_bytes, text: ({ mem_bytes }) => (mem_bytes ? formatBytes(mem_bytes) : "") },
];

const endText = "Disconnecting its client ends the program and everything that it has started.";

const programsTable = new Table("programs", 640, {
  key: ({ path, pid }) => `${path} ${pid}`,
  title: ({ path, pid }) => `the program of ${path}, process ${pid}`,
  none: "No programs are running.",
  bulk: [
    {
      name: "End",
      title: "End these programs?",
      can: ({ client }) => Boolean(client) && may("all"),
      text: (count) => `${plural(count, "program")}. Their clients are disconnected, and cannot resume their connections.`,
      run: ({ client }, call) => closeClient(client, call),
    },
  ],
  columns: [
    { name: "Service", kind: "main mono", text: ({ path }) => path },
    { name: "Kind", kind: "tight", text: ({ service }) => KINDS[service] ?? service },
    { name: "Client", kind: "tight", text: ({ client }) => client ?? "" },
    ...usageColumns,
    {
      name: "Time",
      kind: "number",
      value: ({ running_s }) => running_s,
      text: ({ running_s }) => (running_s === undefined ? "" : formatDuration(running_s)),
    },
  ],
  actions: (row) =>
    element("button", { "aria-label": `End process ${row.item.pid}`, onclick: ({ target }) => end(row.item, target) }, "End"),
  updateActions: ([button], { client }) => setHidden(button, !client || !may("all")),
});

async function end({ client, pid }, button) {
  if (!(await confirm("End this program?", endText, "End"))) return;
  await act(`End process ${pid}`, button, (call) => closeClient(client, call));
  pollers.status.hurry();
}

/** Shows the programs that the status lists. `uptime_s` is the time of the status. */
export function showPrograms({ uptime_s }) {
  const list = [];
  for (const { path, service } of services)
    for (const program of routeFields(path).programs ?? []) {
      const started = Date.parse(program.started_at);
      list.push({
        path,
        service,
        ...program,
        share: cpuShare(program, uptime_s),
        running_s: Number.isNaN(started) ? undefined : Math.max(0, (Date.now() - started) / 1000),
      });
    }
  const known = services.some(({ path }) => routeFields(path).programs);
  programsTable.update(list);
  setText($("programs-count"), list.length ? formatCount(list.length) : "");
  showSection("programs", known, list.length);
}
