// The section "Processes": starts processes, shows them, and attaches to them or signals them.

import { $, element, field, formatBytes, formatDuration, request } from "./common.js";
import { offerCommand, offerLink } from "./console_links.js";
import { showOutput } from "./console_output.js";
import { openTab, showSection } from "./console_page.js";
import { act, ask, handle, pollers } from "./console_requests.js";
import { attachPath, commandLine, hasTerminal, may, of, processes, setProcesses, status } from "./console_state.js";
import { Table } from "./console_table.js";
import { confirm, fillState, formatCount, makeDialog, plural, setHidden, setText, showDialog } from "./view.js";

/** What a shell would act on outside of quotes. */
const SHELL_SIGNS = "|&;<>()$`*?[~#";

/**
 * Splits a command line into words as shells do, with quotes and backslashes only. `signs` gets the other signs on which a shell would
 * act.
 */
function splitWords(line, signs = new Set()) {
  const words = [];
  let word;
  let quote = "";
  for (let at = 0; at < line.length; at++) {
    const char = line[at];
    if (quote !== "'" && (quote ? "$`" : SHELL_SIGNS).includes(char)) signs.add(char);
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
  const why = { 126: "the command cannot be run", 127: "the command was not found" }[process.exit_code];
  return [process.exit_code === 0 ? "" : "bad", `exited with ${process.exit_code}`, why && `Shells say with ${process.exit_code}: ${why}`];
}

const isRunning = ({ state }) => state === "running";
const sendSignal = ({ path, process_id }, signal, call) =>
  call(`${path}/${process_id}/kill`, { method: "POST", body: { signal } });
const forget = ({ path, process_id }, call) => call(`${path}/${process_id}`, { method: "DELETE" });

/** Opens the terminal of a process, or what shows it in a build without the page of a terminal. */
function openProcess(item, isViewer) {
  if (!item.tty) return showOutput(item);
  if (hasTerminal()) return openTab(attachPath(item), isViewer ? { mode: "viewer" } : {});
  return isRunning(item) ? offerCommand(isViewer ? "Watch" : "Attach", attachPath(item), isViewer) : showOutput(item);
}

/** Saves the recording of a process. */
async function saveRecording(item, button) {
  await act(`Recording of process ${item.pid}`, button, async () => {
    const response = await request(`${item.path}/${item.process_id}/recording`);
    const link = element("a", { href: URL.createObjectURL(await response.blob()), download: `${item.process_id}.cast` });
    link.click();
    URL.revokeObjectURL(link.href);
  });
}

const processesTable = new Table("processes", 860, {
  key: ({ process_id }) => process_id,
  title: ({ command, pid }) => `${command}, process ${pid}`,
  none: "No processes yet.",
  bulk: [
    {
      name: "End",
      title: "End these processes?",
      can: isRunning,
      text: (count) => `${count} will get the signal TERM, with everything that they have started.`,
      run: (item, call) => sendSignal(item, "TERM", call),
    },
    {
      name: "Clear",
      title: "Clear these processes?",
      can: (item) => !isRunning(item),
      text: (count) => `${count} exited. Their last output is forgotten.`,
      run: forget,
    },
  ],
  columns: [
    { name: "Command", kind: "main text mono", text: commandLine },
    { name: "Process id", kind: "number", value: ({ pid }) => pid, text: ({ pid }) => String(pid) },
    {
      name: "State",
      kind: "tight",
      value: (item) => processState(item)[1],
      words: (item) => `${processState(item)[1]} ${item.process_id}`,
      fill: (cell, item) => fillState(cell, ...processState(item)),
    },
    {
      name: "CPU",
      kind: "number",
      value: ({ process_id }) => usage.get(process_id)?.share,
      text: ({ share }) => (share === null ? "" : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`),
    },
    {
      name: "Memory",
      kind: "number",
      value: (item) => (isRunning(item) ? item.mem_bytes : undefined),
      text: (item) => (isRunning(item) && item.mem_bytes ? formatBytes(item.mem_bytes) : ""),
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
  ],
  actions: (row) => {
    const { command, pid } = row.item;
    const button = (text, label, onclick) => element("button", { "aria-label": `${label} ${command}, process ${pid}`, onclick }, text);
    return [
      button("Attach", "Attach to", () => openProcess(row.item, false)),
      button("Watch", "Watch", () => openProcess(row.item, true)),
      button("Link", "Link: watch-only link for", () => offerLink(commandLine(row.item), attachPath(row.item))),
      button("Signal", "Signal", ({ target }) => askSignal(row.item, target)),
      button("Recording", "Recording of", ({ target }) => saveRecording(row.item, target)),
      button("Clear", "Clear", ({ target }) => clear(row.item, target)),
    ];
  },
  updateActions: ([attach, watch, link, signal, recording, clearing], item) => {
    const running = isRunning(item);
    setHidden(attach, !item.tty || !running);
    setHidden(link, !item.tty || !hasTerminal());
    setHidden(signal, !running);
    setHidden(recording, !item.recorded);
    setHidden(clearing, running);
    const name = running && item.tty ? "Watch" : "Output";
    if (watch.shown !== name) watch.setAttribute("aria-label", `${name === "Watch" ? "Watch" : "Output of"} ${item.command}, process ${item.pid}`);
    setText(watch, name);
  },
});

async function clear(item, button) {
  await act(`Clear process ${item.pid}`, button, (call) => forget(item, call));
  pollers.processes.hurry();
}

const SIGNALS = [
  ["INT", "interrupt, as Ctrl-C does"],
  ["TERM", "ask it to end"],
  ["HUP", "hang up; some programs reload instead"],
  ["KILL", "end it at once, without saving anything"],
];

async function askSignal(process, button) {
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
  await act(`${signal} to ${process.command}, process ${process.pid}`, button, (call) => sendSignal(process, signal, call));
  pollers.processes.hurry();
}

/** The command of the form: its words, or the line for a shell. Shows what a shell would do and this does not. */
function readCommand() {
  const line = field("spawn-command").value;
  const isShell = field("spawn-shell").checked;
  const signs = new Set();
  let words = [];
  let problem = "";
  try {
    words = splitWords(line, signs);
  } catch (error) {
    if (!isShell) problem = error.message;
  }
  const hint =
    !isShell && signs.size
      ? `Without a shell, the program gets ${[...signs].map((sign) => `“${sign}”`).join(" ")} as they are. Choose “in a shell” to have the line run by sh -c.`
      : "";
  setText($("spawn-hint"), hint);
  return { line, problem, words: isShell ? ["sh", "-c", line] : words };
}

async function spawn(attach, button) {
  setText($("spawn-error"), "");
  const { line, problem, words } = readCommand();
  const [command, ...args] = words;
  const fail = (why) => {
    setText($("spawn-error"), why);
    field("spawn-command").value ||= line;
    $("spawn-command").focus();
  };
  if (problem || !line.trim()) return fail(problem || "The command is missing.");
  const path = field("spawn-path").value || of("processes")[0].path;
  const tty = field("spawn-tty").checked;
  const body = tty ? { command, args, allocate_tty: true, rows: 24, cols: 80 } : { command, args };
  field("spawn-command").value = "";
  let why;
  const started = await act(`Run ${line}`, button, (call) =>
    call(`${path}/spawn`, { method: "POST", body }).catch((error) => {
      why = error.message;
      throw error;
    }),
  );
  if (!started) return fail(why);
  readCommand();
  const item = { ...started, path, tty, command, args, state: "running" };
  if (attach) openProcess(item, false);
  pollers.processes.hurry();
  return undefined;
}
$("spawn").addEventListener("submit", (event) => {
  event.preventDefault();
  const button = /** @type {HTMLButtonElement} */ (event.submitter ?? $("spawn-run"));
  spawn(button.name === "attach", button);
});
$("spawn-command").addEventListener("input", readCommand);
$("spawn-shell").addEventListener("change", readCommand);
$("spawn-tty").addEventListener("change", () => setText($("spawn-attach"), field("spawn-tty").checked ? "Run and attach" : "Run and show output"));

function showProcesses() {
  const all = [...processes.values()];
  const rank = (item) => (isRunning(item) ? 0 : 1);
  all.sort((a, b) => rank(a) - rank(b) || String(b.started_at).localeCompare(String(a.started_at)) || b.pid - a.pid);
  processesTable.update(all);
  const running = all.filter(isRunning).length;
  setText($("processes-count"), `${formatCount(running)} running, ${formatCount(all.length - running)} exited`);
  showSection("processes", true, running);
  for (const id of usage.keys()) if (!processes.has(id)) usage.delete(id);
}

/** Asks for the processes of all routes and shows them. */
export async function readProcesses() {
  if (!status || !may("all")) return;
  const routes = of("processes");
  if (!routes.length) return;
  try {
    const lists = await Promise.all(
      routes.map(async ({ path }) => (await ask(`${path}?usage=1`)).processes.map((one) => ({ ...one, path, share: cpuShare(one) }))),
    );
    setProcesses(lists.flat());
    showProcesses();
  } catch (error) {
    await handle(error);
  }
}
