// The output of a process without the page of a terminal: live while it runs, and its last output until it is forgotten.

import { element, request } from "./common.js";
import { commandLine } from "./console_state.js";
import { makeDialog, plain, setText, showDialog } from "./view.js";

/** The most characters that the dialog keeps. */
const MOST = 256 << 10;

/** The events of a stream, from its chunks. A blank line ends an event (WHATWG HTML, "Server-sent events"). */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const line = part.split("\n").find((one) => one.startsWith("data: "));
      if (line) yield JSON.parse(line.slice(6));
    }
  }
}

const decodeBytes = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));

/** Shows the output of a process, and follows it until it ends or the dialog is closed. */
export async function showOutput(item) {
  const text = element("pre", { class: "lines output", tabindex: "0", "aria-label": "Output" });
  const state = element("p", { class: "faint", role: "status" }, "connecting");
  const abort = new AbortController();
  const dialog = makeDialog(
    commandLine(item),
    text,
    state,
    element("div", { class: "actions" }, element("button", { class: "primary", onclick: () => dialog.close() }, "Close")),
  );
  dialog.classList.add("broad");
  const closed = showDialog(dialog).then(() => abort.abort());
  const decoders = new Map();
  let follows = true;
  let length = 0;
  text.addEventListener("scroll", () => {
    follows = text.scrollTop + text.clientHeight > text.scrollHeight - 24;
  });
  const show = (stream, piece) => {
    if (!piece) return;
    text.append(element("span", { class: stream === "stderr" ? "stderr" : "" }, plain(piece).replaceAll("\r\n", "\n")));
    length += text.lastElementChild.textContent.length;
    while (length > MOST && text.childElementCount > 1) {
      length -= text.firstElementChild.textContent.length;
      text.firstElementChild.remove();
    }
    if (follows) text.scrollTop = text.scrollHeight;
  };
  try {
    const path = `${item.path}/${item.process_id}/stdout/stream?details=1`;
    const response = await request(path, { signal: abort.signal, headers: { Accept: "text/event-stream" } });
    setText(state, "live");
    let end = "The stream has ended.";
    for await (const event of events(response.body)) {
      if (event.data_b64) {
        if (!decoders.has(event.stream)) decoders.set(event.stream, new TextDecoder());
        show(event.stream, decoders.get(event.stream).decode(decodeBytes(event.data_b64), { stream: true }));
      } else if (event.event === "gap") show("", `\n[${event.to - event.from} bytes are no longer kept]\n`);
      else if (event.event === "exit")
        end = event.signal ? `killed by ${event.signal}` : `exited with ${event.exit_code}`;
    }
    setText(state, text.childElementCount ? end : `${end} It has written nothing.`);
  } catch (error) {
    if (!abort.signal.aborted) setText(state, `The output cannot be read: ${error.message}`);
  }
  await closed;
}
