// The section "Messages": connects to a service with a WebSocket, sends what the reader types, and shows what comes back.

import { $, element, field, request, socketProtocols, socketUrl } from "./common.js";
import { reauthenticate } from "./console_requests.js";
import { addressOf, identity, services } from "./console_state.js";
import { formatCount, Lines, plain, setHidden, setText } from "./view.js";

/** Whether the section can connect to a service. */
export const isTalkative = ({ service }) => ["echo", "app", "agent", "mcp", "pipe"].includes(service);
const HINTS = {
  echo: "Every message comes back.",
  app: "Every message goes to the program behind this path.",
  pipe: "Every message goes to a program of your own.",
  agent: "JSON-RPC messages of the Agent Client Protocol. The buttons fill in the messages and the session.",
  mcp: "JSON-RPC messages of the Model Context Protocol, to an MCP server of your own. The buttons fill in the messages.",
};
const talk = { socket: undefined, path: "", sessionId: "SESSION", next: 1, box: new Lines($("try-lines")) };

/** The message of each button, by kind of service. */
const PRESETS = {
  agent: () => ({
    initialize: { protocolVersion: 1, clientCapabilities: {} },
    "session/new": { cwd: "/", mcpServers: [] },
    "session/prompt": { sessionId: talk.sessionId, prompt: [{ type: "text", text: "hello" }] },
  }),
  mcp: () => ({
    initialize: { protocolVersion: "2025-06-18", capabilities: {}, clientInfo: { name: "console", version: identity.version } },
    "tools/list": {},
  }),
};

const chosenService = () => services.find(({ path }) => path === field("try-path").value);

export function showPresets() {
  const service = chosenService()?.service;
  const names = Object.keys(PRESETS[service]?.() ?? {});
  $("try-presets").replaceChildren(
    ...names.map((name) =>
      element(
        "button",
        {
          type: "button",
          onclick: () => {
            field("try-text").value = JSON.stringify({
              jsonrpc: "2.0",
              id: talk.next++,
              method: name,
              params: PRESETS[service]()[name],
            });
            $("try-text").focus();
          },
        },
        name,
      ),
    ),
  );
  setHidden($("try-presets"), !names.length);
  setText($("try-hint"), HINTS[service] ?? "");
}
$("try-path").addEventListener("change", showPresets);

const say = (look, mark, text) =>
  talk.box.append([
    element(
      "p",
      { class: look },
      `${mark}${text.length > 20000 ? `${text.slice(0, 20000)} … (${formatCount(text.length)} characters)` : text}`,
    ),
  ]);

function showTalk(text) {
  const isOpen = talk.socket !== undefined;
  setText($("try-connect"), isOpen ? "Disconnect" : "Connect");
  setText($("try-state"), text);
}

function connect() {
  const path = addressOf(chosenService().path);
  talk.box.replace([]);
  talk.sessionId = "SESSION";
  const socket = (talk.socket = new WebSocket(socketUrl(path), socketProtocols()));
  socket.binaryType = "arraybuffer";
  showTalk("connecting");
  let wasOpen = false;
  socket.addEventListener("open", () => {
    wasOpen = true;
    showTalk(`connected to ${path}`);
    say("event", "", `connected to ${path}`);
    $("try-text").focus();
  });
  socket.addEventListener("message", ({ data }) => {
    if (typeof data !== "string") return say("event", "< ", `${data.byteLength} bytes of binary data`);
    if (data.includes('"sessionId"')) {
      try {
        talk.sessionId = JSON.parse(data).result?.sessionId ?? talk.sessionId;
      } catch {
        /* not JSON */
      }
    }
    return say("", "< ", plain(data));
  });
  socket.addEventListener("close", async ({ code, reason }) => {
    if (socket !== talk.socket) return;
    talk.socket = undefined;
    showTalk("");
    say("event", "", wasOpen ? `disconnected: ${code}${reason ? ` ${plain(reason)}` : ""}` : "could not connect");
    if (wasOpen) return;
    // A page does not see why a handshake failed. An HTTP request to the same path often tells.
    try {
      await request(path, { headers: { Accept: "application/json" } });
    } catch (error) {
      if (error.status === 401) reauthenticate();
      else say("event", "", error.message);
    }
  });
}
$("try-connect").addEventListener("click", () => {
  if (!talk.socket) return connect();
  const socket = talk.socket;
  return socket.readyState === WebSocket.CONNECTING
    ? ((talk.socket = undefined), showTalk(""), socket.close())
    : socket.close(1000);
});
$("try-send").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = field("try-text").value;
  if (talk.socket?.readyState !== WebSocket.OPEN) {
    showTalk(talk.socket ? "connecting" : "not connected");
    $("try-connect").focus();
    return;
  }
  talk.socket.send(text);
  say("sent", "> ", text);
  field("try-text").value = "";
});
