// The section "Processes": starts processes, shows them, and attaches to them or signals them.

import { api, element, formatBytes, formatDuration } from "./common.js";
import { offerLink } from "./console_links.js";
import { $, matches, openTab, setEmpty, showSection } from "./console_page.js";
import { ask, attempt, handle, pollers, reauthenticate } from "./console_requests.js";
import { attachPath, commandLine, may, of, processes, setProcesses, status } from "./console_state.js";
import {
  confirm,
  fillActions,
  fillState,
  formatCount,
  makeDialog,
  note,
  plural,
  setHidden,
  setText,
  showDialog,
  Table,
} from "./view.js";

/** Splits a command line into words as shells do, with quotes and backslashes only. */
function splitWords(line) {
  const words = [];
  let word;
  let quote = "";
  for (let at = 0; at < line.length; at++) {
    const char = line[at];
    if (quote === "'" ? char === "'" : quote === '"' && char === '"') quote = "";
    else if (char === "\\" && quote !== "'") {
      at++;
      if (at === line.length) throw new Error("The command line ends with a backslash.");
      word = (word ?? "") + (quote && !'"\\$`'.includes(line[at]) ? "\\" : "") + line[at];
    } else if (quote) word += char;
    else if (char === "'" || char === '"') {
      quote = char;
      word ??= "";
    } else if (/\s/.test(char)) {
      if (word !== undefined) words.push(word);
      word = undefined;
    } else word = (word ?? "") + char;
  }
  if (quote) throw new Error(`The quote ${quote} is not closed.`);
  if (word !== undefined) words.push(word);
  return words;
}

/** The CPU usage before, by process id, for differences. */
const usage = new Map();

/** Forgets what differences are taken from. */
export const forgetUsage = () => usage.clear();

function cpuShare(process) {
  const last = usage.get(process.process_id);
  if (process.state !== "running" || typeof process.cpu_s !== "number") return null;
  if (!last || process.running_s - last.running_s > 0.5) {
    const share =
      last && process.cpu_s >= last.cpu_s
        ? (process.cpu_s - last.cpu_s) / (process.running_s - last.running_s)
        : (last?.share ?? null);
    usage.set(process.process_id, { cpu_s: process.cpu_s, running_s: process.running_s, share });
    return share;
  }
  return last.share;
}

function processState(process) {
  if (process.state === "running") return ["good", "running"];
  if (process.signal) return ["warn", `killed by ${process.signal}`];
  if (process.exit_code === null || process.exit_code === undefined) return ["warn", "exited"];
  return [process.exit_code === 0 ? "" : "bad", `exited with ${process.exit_code}`];
}

const processesTable = new Table($("processes-table"), 860, ({ process_id }) => process_id, [
  { name: "Command", kind: "main text mono", text: commandLine },
  { name: "Process id", kind: "number", value: ({ pid }) => pid, text: ({ pid }) => String(pid) },
  { name: "State", kind: "tight", value: (item) => processState(item)[1], fill: (cell, item) => fillState(cell, ...processState(item)) },
  {
    name: "CPU",
    kind: "number",
    value: ({ process_id }) => usage.get(process_id)?.share,
    text: (item) => {
      const share = cpuShare(item);
      return share === null ? "" : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
    },
  },
  {
    name: "Memory",
    kind: "number",
    value: ({ state, mem_bytes }) => (state === "running" ? mem_bytes : undefined),
    text: ({ state, mem_bytes }) => (state === "running" && mem_bytes ? formatBytes(mem_bytes) : ""),
  },
  { name: "Time", kind: "number", value: ({ running_s }) => running_s, text: ({ running_s }) => formatDuration(running_s) },
  {
    name: "Attached",
    kind: "tight",
    text: ({ attached, readers }) => {
      const watching = Math.max(0, (readers ?? 0) - (attached ? 1 : 0));
      return [attached ? "writer" : "", watching ? plural(watching, "viewer") : ""].filter(Boolean).join(", ");
    },
  },
  {
    name: "Actions",
    kind: "actions",
    fill: (cell, item, row) => {
      fillActions(cell, () => {
        const name = `${item.command}, process ${item.pid}`;
        const button = (text, label, onclick) => element("button", { "aria-label": `${label} ${name}`, onclick }, text);
        return [
          button("Attach", "Attach to", () => openTab(attachPath(row.item))),
          button("Watch", "Watch", () => openTab(attachPath(row.item), { mode: "viewer" })),
          button("Link", "Link: watch-only link for", () => offerLink(commandLine(row.item), attachPath(row.item))),
          button("Signal", "Signal", () => askSignal(row.item)),
        ];
      });
      const [attach, watch, link, signal] = cell.firstElementChild.children;
      const running = item.state === "running";
      setHidden(attach, !item.tty || !running);
      setHidden(watch, !item.tty);
      setHidden(link, !item.tty);
      setHidden(signal, !running);
      if (!running && watch.shown !== "Output")
        watch.setAttribute("aria-label", `Output of ${item.command}, process ${item.pid}`);
      setText(watch, running ? "Watch" : "Output");
    },
  },
]);

const SIGNALS = [
  ["INT", "interrupt, as Ctrl-C does"],
  ["TERM", "ask it to end"],
  ["HUP", "hang up; some programs reload instead"],
  ["KILL", "end it at once, without saving anything"],
];

async function askSignal(process) {
  const name = commandLine(process);
  const dialog = makeDialog(
    "Send a signal",
    element("p", {}, "To the process group of ", element("code", {}, name), `, process ${process.pid}`),
    element(
      "div",
      { class: "signals" },
      SIGNALS.map(([signal, text]) =>
        element("button", { onclick: () => dialog.close(signal) }, element("b", {}, signal), text),
      ),
    ),
    element("div", { class: "actions" }, element("button", { onclick: () => dialog.close("") }, "Cancel")),
  );
  const signal = await showDialog(dialog);
  if (!signal) return;
  if (
    signal === "KILL" &&
    !(await confirm("Kill this process?", ["It cannot save anything: ", element("code", {}, name)], "Kill"))
  )
    return;
  await attempt(async () => {
    await api(`${process.path}/${process.process_id}/kill`, { method: "POST", body: { signal } });
    note(`Sent ${signal} to ${name}.`);
    pollers.processes.hurry();
  });
}

async function spawn(attach) {
  setText($("spawn-error"), "");
  const line = $("spawn-command").value;
  try {
    const [command, ...args] = splitWords(line);
    if (!command) throw new Error("The command is missing.");
    const path = $("spawn-path").value || of("processes")[0].path;
    const tty = $("spawn-tty").checked;
    const body = tty ? { command, args, allocate_tty: true, rows: 24, cols: 80 } : { command, args };
    $("spawn-command").value = "";
    const { process_id } = await api(`${path}/spawn`, { method: "POST", body });
    if (attach && tty) openTab(`${path}/${process_id}/attach`);
    pollers.processes.hurry();
  } catch (error) {
    if (error.status === 401) reauthenticate();
    setText($("spawn-error"), error.message);
    $("spawn-command").value ||= line;
    $("spawn-command").focus();
  }
}
$("spawn").addEventListener("submit", (event) => {
  event.preventDefault();
  spawn(event.submitter?.name === "attach");
});
$("spawn-tty").addEventListener("change", () => {
  $("spawn-attach").disabled = !$("spawn-tty").checked;
});

function showProcesses() {
  const all = [...processes.values()];
  const rank = ({ state }) => (state === "running" ? 0 : 1);
  all.sort((a, b) => rank(a) - rank(b) || String(b.started_at).localeCompare(String(a.started_at)) || b.pid - a.pid);
  const found = all.filter((item) =>
    matches($("processes-filter"), commandLine(item), item.pid, item.process_id, processState(item)[1]),
  );
  const shown = processesTable.first(found);
  processesTable.show(shown);
  const running = all.filter(({ state }) => state === "running").length;
  setText($("processes-count"), `${formatCount(running)} running, ${formatCount(all.length - running)} exited`);
  setEmpty($("processes-empty"), processesTable, shown.length, found.length, "No processes yet.", $("processes-filter"));
  showSection("processes", true, running);
  for (const id of usage.keys()) if (!processes.has(id)) usage.delete(id);
}
$("processes-filter").addEventListener("input", showProcesses);
processesTable.changed = showProcesses;

/** Asks for the processes of all routes and shows them. */
export async function readProcesses() {
  if (!status || !may("all")) return;
  const routes = of("processes");
  if (!routes.length) return;
  try {
    const lists = await Promise.all(
      routes.map(async ({ path }) => (await ask(`${path}?usage=1`)).processes.map((one) => ({ ...one, path }))),
    );
    setProcesses(lists.flat());
    showProcesses();
  } catch (error) {
    await handle(error);
  }
}
