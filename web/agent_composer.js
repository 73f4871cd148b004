// The prompt box: several lines, pictures and files, the agent's commands after `/`, files after `@`, and prompts that wait for the
// running turn.

import { $, element, field, formatBytes } from "./common.js";
import { note, plain } from "./view.js";

/** The most bytes of a file, and of a prompt as it is sent. The server says which messages it accepts, which may be less. */
const MOST_FILE = 8 << 20;
const MOST_PROMPT = 60 << 20;
/** What a message with a prompt has beside the prompt's blocks. */
const MESSAGE_HEAD = 4096;
const MOST_SUGGESTIONS = 8;
/** With a finger, Enter is for the next line, and the button sends. */
const isTouch = matchMedia("(pointer: coarse)").matches;

/** The bytes of blocks as they are sent. */
const sizeOf = (blocks) => new Blob([JSON.stringify(blocks)]).size;

const base64 = (bytes) => {
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
};

/** The URI of a file of the agent's machine. */
function fileUri(path, directory) {
  const whole = path.startsWith("/") ? path : `${(directory ?? "").replace(/\/$/, "")}/${path}`;
  return `file://${whole.split("/").map(encodeURIComponent).join("/")}`;
}

/**
 * `view()` returns the session that is shown: `{draft, files, commands, paths, directory, running, canPrompt}`. `send({text, blocks})`
 * and `stop()` act on it. `maxMessage()` returns the most bytes of a message that the server accepts, if that is known.
 */
export class Composer {
  #form = $("composer");
  #text = /** @type {HTMLTextAreaElement} */ (/** @type {unknown} */ ($("prompt")));
  #files = $("files");
  #queue = $("queue");
  #list = $("suggestions");
  #stop = $("stop");
  #sendButton = $("send");
  #shown = [];
  #chosen = 0;
  #word;

  constructor({ view, capabilities, maxMessage, send, stop }) {
    this.view = view;
    this.capabilities = capabilities;
    this.maxMessage = maxMessage;
    this.send = send;
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#sendButton.addEventListener("click", () => this.#submit());
    this.#stop.addEventListener("click", stop);
    this.#text.addEventListener("input", () => this.#changed());
    this.#text.addEventListener("keydown", (event) => this.#key(event));
    this.#text.addEventListener("blur", () => setTimeout(() => document.activeElement !== this.#text && this.#suggest([]), 150));
    this.#text.addEventListener("paste", (event) => {
      if (event.clipboardData.files.length) {
        event.preventDefault();
        this.add(event.clipboardData.files);
      }
    });
    const picker = field("picker");
    $("attach").addEventListener("click", () => picker.click());
    picker.addEventListener("change", () => {
      this.add(picker.files);
      picker.value = "";
    });
    addEventListener("dragover", (event) => event.preventDefault());
    addEventListener("drop", (event) => {
      event.preventDefault();
      if (event.dataTransfer.files.length) this.add(event.dataTransfer.files);
    });
  }

  /** Shows the draft and the waiting prompts of the session. */
  show() {
    const view = this.view();
    this.#form.hidden = !view?.canPrompt;
    if (this.#form.hidden) return;
    if (this.#text.value !== view.draft) this.#text.value = view.draft;
    this.#grow();
    this.#stop.hidden = !view.running;
    this.#sendButton.textContent = view.running ? "Queue" : "Send";
    const remove = (from, item, show) => () => {
      from.splice(from.indexOf(item), 1);
      show();
      this.#text.focus();
    };
    const chip = (from, item, text, more) =>
      element("li", {}, more, element("span", {}, text), element("button", { type: "button", "aria-label": `Remove ${text}`, onclick: remove(from, item, () => this.show()) }, "×"));
    this.#files.replaceChildren(
      ...view.files.map((file) => chip(view.files, file, `${file.name}, ${formatBytes(file.size)}`, file.block.type === "image" && element("img", { src: `data:${file.block.mimeType};base64,${file.block.data}`, alt: "" }))),
    );
    this.#files.hidden = !view.files.length;
    this.#queue.replaceChildren(...view.queue.map((prompt) => chip(view.queue, prompt, `Next: ${prompt.text.slice(0, 200) || "files"}`)));
    this.#queue.hidden = !view.queue.length;
  }

  focus() {
    if (!this.#form.hidden && !isTouch) this.#text.focus();
  }

  #grow() {
    this.#text.style.height = "auto";
    this.#text.style.height = `${this.#text.scrollHeight + 2}px`;
  }

  #changed() {
    this.view().draft = this.#text.value;
    this.#grow();
    const before = this.#text.value.slice(0, this.#text.selectionStart);
    const [, command] = /^\/(\S*)$/.exec(before) ?? [];
    const [, path] = /(?:^|\s)@(\S*)$/.exec(before) ?? [];
    const { commands, paths } = this.view();
    const contains = (text, part) => text.toLowerCase().includes(part.toLowerCase());
    if (command !== undefined) {
      this.#word = before;
      const found = commands.filter(({ name }) => contains(name, command));
      this.#suggest(found.map(({ name, description, input }) => ({ insert: `/${name} `, text: `/${name}`, about: plain(description ?? input?.hint ?? "") })));
    } else if (path !== undefined) {
      this.#word = `@${path}`;
      this.#suggest([...paths].filter((one) => contains(one, path)).map((one) => ({ insert: `@${one} `, text: one, about: "" })));
    } else this.#suggest([]);
  }

  #suggest(all) {
    this.#shown = all.slice(0, MOST_SUGGESTIONS);
    this.#chosen = 0;
    this.#drawSuggestions();
  }

  #drawSuggestions() {
    this.#list.hidden = !this.#shown.length;
    this.#list.replaceChildren(
      ...this.#shown.map(({ text, about }, index) =>
        element(
          "li",
          { id: `suggestion-${index}`, role: "option", "aria-selected": String(index === this.#chosen), onpointerdown: (event) => {
            event.preventDefault();
            this.#take(index);
          } },
          element("span", { class: "mono" }, text),
          about && element("small", {}, ` ${about}`),
        ),
      ),
    );
    if (this.#shown.length) this.#text.setAttribute("aria-activedescendant", `suggestion-${this.#chosen}`);
    else this.#text.removeAttribute("aria-activedescendant");
  }

  #take(index) {
    const at = this.#text.selectionStart;
    this.#text.setRangeText(this.#shown[index].insert, at - this.#word.length, at, "end");
    this.#suggest([]);
    this.view().draft = this.#text.value;
    this.#grow();
  }

  #key(event) {
    if (event.isComposing) return;
    const count = this.#shown.length;
    if (count && ["ArrowDown", "ArrowUp", "Tab", "Enter", "Escape"].includes(event.key) && !event.shiftKey) {
      event.preventDefault();
      if (event.key === "Escape") this.#suggest([]);
      else if (event.key.startsWith("Arrow")) {
        this.#chosen = (this.#chosen + (event.key === "ArrowDown" ? 1 : count - 1)) % count;
        this.#drawSuggestions();
      } else this.#take(this.#chosen);
      return;
    }
    if (event.key === "Enter" && !event.shiftKey && (!isTouch || event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      this.#submit();
    }
  }

  /** Adds files to the prompt, as the agent accepts them. */
  async add(given) {
    // The browser empties the list.
    const files = [...given];
    const view = this.view();
    if (!view?.canPrompt) return;
    const isTooMuch = (size) => view.files.reduce((sum, one) => sum + (one.sent ?? 0), size) > this.#mostPrompt();
    for (const file of files) {
      const block = file.size > MOST_FILE ? undefined : await this.#blockOf(file);
      const sent = block && sizeOf(block);
      if (block && isTooMuch(sent)) note(`${file.name || "The file"} does not fit: ${this.#mostText()}.`, true);
      else if (block) view.files.push({ name: file.name || "picture", size: file.size, sent, block });
      else if (file.size > MOST_FILE) note(`${file.name} has more than ${formatBytes(MOST_FILE)}.`, true);
      else note(`The agent does not accept files such as ${file.name || file.type}.`, true);
    }
    this.show();
    this.focus();
  }

  #mostPrompt() {
    return Math.min(MOST_PROMPT, (this.maxMessage() ?? MOST_PROMPT) - MESSAGE_HEAD);
  }

  #mostText() {
    return `a prompt can have at most ${formatBytes(this.#mostPrompt())} as it is sent, where a picture takes a third more`;
  }

  async #blockOf(file) {
    const { image, audio, embeddedContext } = this.capabilities();
    const [kind] = file.type.split("/");
    const bytes = new Uint8Array(await file.arrayBuffer());
    if ((kind === "image" && image) || (kind === "audio" && audio)) return { type: kind, mimeType: file.type, data: base64(bytes) };
    let text;
    try {
      text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    } catch {
      return undefined;
    }
    const uri = `file:///${encodeURIComponent(file.name)}`;
    if (embeddedContext) return { type: "resource", resource: { uri, mimeType: file.type || "text/plain", text } };
    return { type: "text", text: `${file.name}:\n\`\`\`\n${text}\n\`\`\`` };
  }

  #submit() {
    const view = this.view();
    const text = this.#text.value.trim();
    if (!view?.canPrompt || (!text && !view.files.length)) return;
    const named = [...text.matchAll(/(?:^|\s)@([^\s@]*[^\s@.,;:!?)])/g)].map(([, path]) => path).filter((path) => /[/.]/.test(path) || view.paths.has(path));
    const links = [...new Set(named)].map((path) => ({ type: "resource_link", name: path.split("/").at(-1), uri: fileUri(path, view.directory) }));
    const blocks = [...(text ? [{ type: "text", text }] : []), ...links, ...view.files.map(({ block }) => block)];
    if (sizeOf(blocks) > this.#mostPrompt()) {
      note(`The prompt is too long: ${this.#mostText()}.`, true);
      return;
    }
    const { files } = view;
    view.draft = "";
    view.files = [];
    this.#suggest([]);
    this.send({ text, blocks, files });
    this.show();
  }
}
