// A session of the agent as this page sees it. The page controls it, observes it beside the client that controls it, or only views it.

import { AgentClient, isObject } from "./agent_client.js";
import { list } from "./agent_tools.js";
import { Transcript } from "./agent_transcript.js";
import { storage } from "./common.js";
import { plain } from "./view.js";

const KEY = `outrigger.sessions ${location.pathname}`;
/** What a reload needs of each session: the resume token, the directory, and what the agent offers. */
const kept = new Map();
try {
  for (const [id, fields] of Object.entries(JSON.parse(storage.getItem(KEY) ?? "{}"))) kept.set(id, fields);
} catch { /* written by another version */ }

/** The sessions that this tab has controlled, with their directories. */
export const ownSessions = () => [...kept].map(([id, { cwd, title }]) => ({ sessionId: id, cwd, title }));

function keep(id, fields) {
  kept.set(id, { ...kept.get(id), ...fields });
  const save = (all) => storage.setItem(KEY, JSON.stringify(Object.fromEntries(all)));
  try {
    save(kept);
  } catch {
    // The browser has no room for the files. They stay until the page is reloaded.
    try {
      save([...kept].map(([id, { files: _, ...others }]) => [id, others]));
    } catch { /* nor for the rest */ }
  }
}

/** Another client controls the session. */
const DENIED = -32010;
/** The agent does not have the session any more, for example because it has been started again. */
const LOST = -32002;

/** What to call a client: the person, if the server knows who it is. */
const nameOf = ({ principal, title, name }) => plain(principal ?? title ?? name ?? "another client");

/** Events: `change`, `ask` and `end` as those of the transcript, and `connection` with {state, text} of a view's own connection. */
export class SessionView extends EventTarget {
  draft = "";
  files = [];
  queue = [];
  commands = [];
  /** "opening", "controller", "observer", "viewer", "ended" or "failed". */
  role = "opening";
  /** The name of the client that controls the session, if it is another one. */
  controller = "";
  directory = "";
  title = "";
  modes;
  models;
  options;
  /** The page's connection, and the one of a view. */
  #client;
  #own;
  /** The prompt that the agent is working on. */
  #sent;
  /** Whether the agent is about to send everything again. */
  #loads = false;
  /** Whether updates are left out. */
  #isMuted = false;

  constructor(id, client, keepEnd) {
    super();
    this.id = id;
    this.#client = client;
    this.transcript = new Transcript(keepEnd);
    const { title, cwd, modes, models, options, draft, files, queue } = kept.get(id) ?? {};
    Object.assign(this, { title: title ?? "", directory: cwd ?? "", modes, models, options, draft: draft ?? "", files: files ?? [], queue: queue ?? [] });
    if (draft || files || queue) keep(id, { draft: undefined, files: undefined, queue: undefined });
    for (const type of ["change", "ask", "answered"])
      this.transcript.addEventListener(type, ({ detail }) => this.dispatchEvent(new CustomEvent(type, { detail })));
    this.transcript.addEventListener("end", () => {
      // Turns of the history have ended before.
      if (this.role !== "controller") return;
      this.dispatchEvent(new CustomEvent("end"));
      this.#next();
    });
  }

  get running() { return this.transcript.running; }
  get paths() { return this.transcript.paths; }
  get canPrompt() { return this.role === "controller"; }

  #changed() {
    this.dispatchEvent(new CustomEvent("change"));
  }

  #set(role, text) {
    this.role = role;
    if (text) this.transcript.event(text, "end");
    this.#changed();
  }

  /** The parameters that open a session which the agent has. */
  #opening(takeover) {
    const resumeToken = kept.get(this.id)?.token;
    return {
      sessionId: this.id,
      cwd: this.directory || "/",
      mcpServers: [],
      _meta: { outrigger: { ...(resumeToken && { resumeToken }), ...(takeover && { takeover }) } },
    };
  }

  /** Takes what an answer says that opens the session. */
  controlled(result) {
    const token = result._meta?.outrigger?.resumeToken;
    if (isObject(result.modes)) this.modes = result.modes;
    if (isObject(result.models)) this.models = result.models;
    if (Array.isArray(result.configOptions)) this.options = list(result.configOptions);
    keep(this.id, { ...(token && { token }), cwd: this.directory });
    this.#keepOffers();
    this.controller = "";
    // The turn of a client that has left is cancelled, and nobody gets its end.
    if (this.hadClient === false && this.running) this.transcript.endTurn("cancelled");
    this.hadClient = undefined;
    this.#set("controller");
    this.#next();
  }

  #keepOffers() {
    keep(this.id, { title: this.title, modes: this.modes, models: this.models, options: this.options });
  }

  /** Opens the session: with its history, and as its client if no other one controls it. Returns whether it is there. */
  async open({ viewOnly = false } = {}) {
    let attached;
    this.transcript.clear();
    const resumeToken = kept.get(this.id)?.token;
    try {
      attached = await this.#client.request("session/attach", {
        sessionId: this.id,
        historyPolicy: "full",
        _meta: { outrigger: { ...(resumeToken && { resumeToken }) } },
      });
    } catch { /* the server does not have it, or this page may not observe it */ }
    if (attached) {
      this.isCut = Boolean(attached._meta?.outrigger?.historyCut);
      if (this.isCut && !viewOnly && (await this.#load(Boolean(resumeToken)))) return true;
      const other = list(attached.connectedClients).find(({ role }) => role === "controller");
      this.controller = other ? nameOf(other) : "";
      this.hadClient = Boolean(other);
      this.#set("observer");
      if (!viewOnly) await this.control(Boolean(resumeToken));
      return true;
    }
    if (!viewOnly && (await this.control(Boolean(resumeToken)))) return true;
    return this.view();
  }

  /**
   * Takes control, and lets the agent send all of the session again, if it can. The server's shorter history, which is about to arrive,
   * is not shown. Returns whether that has succeeded; otherwise, the session is observed as before.
   */
  async #load(takeover) {
    if (!this.#client.agent.agentCapabilities?.loadSession) return false;
    this.#isMuted = true;
    const { id: sessionId } = this;
    await this.#client.request("session/detach", { sessionId }).catch(() => {});
    this.#isMuted = false;
    this.#loads = true;
    try {
      const result = await this.#client.request("session/load", this.#opening(takeover));
      this.isCut = false;
      this.transcript.settled();
      this.controlled(result);
      return true;
    } catch (error) {
      this.reason = error.message;
      const resumeToken = kept.get(this.id)?.token;
      const params = { sessionId, historyPolicy: "full", _meta: { outrigger: { ...(resumeToken && { resumeToken }) } } };
      await this.#client.request("session/attach", params).catch(() => {});
      return false;
    } finally {
      this.#loads = false;
    }
  }

  /** Takes control from another client. Returns whether that has succeeded. A page that may not do so views the session again. */
  async takeOver() {
    const wasViewer = this.role === "viewer";
    if (wasViewer) this.close();
    if (await this.control(true)) return true;
    if (wasViewer) await this.view();
    return false;
  }

  /** Takes control. Returns whether that has succeeded. */
  async control(takeover = false) {
    const canLoad = this.#client.agent.agentCapabilities?.loadSession;
    // An observer has the last updates. Older ones come from the agent, which sends all of them again.
    const methods = ["observer", "viewer"].includes(this.role) && !(this.isCut && canLoad) ? ["session/resume", "session/load"] : ["session/load", "session/resume"];
    for (const method of methods.filter((one) => one !== "session/load" || canLoad)) {
      this.#loads = method === "session/load";
      try {
        const result = await this.#client.request(method, this.#opening(takeover));
        if (method === "session/load") {
          this.isCut = false;
          this.transcript.settled();
        }
        this.controlled(result);
        return true;
      } catch (error) {
        this.reason = error.message;
        if (error.code === DENIED) {
          if (/another connection/.test(this.reason)) this.reason = "Another page controls this session. Close it first.";
          return false;
        }
      } finally {
        this.#loads = false;
      }
    }
    return false;
  }

  /** Views the session on a connection of its own, for which a link is enough. Resolves once it is known whether that works. */
  view() {
    return new Promise((resolve) => {
      // With a link that permits it, this page may answer.
      const ask = (params, id, answer) => {
        if (this.#own === own) this.transcript.permission(params, id, answer);
      };
      const own = new AgentClient({ ask, query: { watch: this.id } });
      this.#own = own;
      own.addEventListener("notification", ({ detail: { method, params } }) => {
        if (this.#own !== own) return;
        if (method === "$/cancel_request") this.transcript.withdraw(params.requestId);
        else if (method === "_outrigger/watching") {
          this.transcript.clear();
          this.isCut = Boolean(params._meta?.outrigger?.historyCut);
          const [other] = list(params.connectedClients);
          this.controller = other ? nameOf(other) : "";
          this.#set("viewer");
          resolve(true);
        } else this.handle(method, params);
      });
      const tell = (state, text) => this.dispatchEvent(new CustomEvent("connection", { detail: { state, text } }));
      own.addEventListener("cut", ({ detail: { reason } }) => tell("gone", reason));
      own.addEventListener("resume", () => tell("live", "connected"));
      own.addEventListener("close", ({ detail: { code, reason, status } }) => {
        if (this.#own !== own) return resolve(false);
        const wasOpen = this.role === "viewer";
        this.reason = reason;
        if (wasOpen && status === 410) return resolve(this.view());
        if (wasOpen) this.#set("ended", code === 1000 ? "The session has ended." : `Disconnected: ${reason || code}.`);
        else if (this.role !== "ended") {
          kept.delete(this.id);
          this.#set("failed");
        }
        return resolve(wasOpen);
      });
    });
  }

  /** Handles a notification about the session. */
  handle(method, params) {
    if (this.#isMuted) return;
    if (this.#loads && method === "session/update") {
      this.#loads = false;
      this.transcript.clear();
    }
    switch (method) {
      case "session/update":
        if (isObject(params.update)) this.#update(params.update);
        break;
      case "session/request_permission":
        this.transcript.permission(params, params._meta?.outrigger?.requestId);
        break;
      case "_outrigger/turn_ended":
        this.transcript.endTurn(params.result?.stopReason, params.error);
        break;
      case "_outrigger/session_taken_over":
        this.controller = "another client";
        this.transcript.event("Another client has taken the session over.");
        this.open({ viewOnly: true });
        break;
      case "_outrigger/session_ended":
        this.transcript.endTurn("end_turn");
        this.#set("ended", "The session has ended.");
        break;
      default:
    }
  }

  #update(update) {
    switch (update.sessionUpdate) {
      case "available_commands_update":
        this.commands = list(update.availableCommands).filter(({ name }) => typeof name === "string");
        return;
      case "current_mode_update":
        if (this.modes) this.modes = { ...this.modes, currentModeId: update.currentModeId };
        break;
      case "config_option_update":
        this.options = list(update.configOptions);
        break;
      case "session_info_update":
        if (update.title) this.title = plain(update.title);
        break;
      case "usage_update":
        this.usage = { used: update.used, size: update.size };
        break;
      case "client_disconnected":
        this.controller = "";
        this.transcript.apply(update);
        break;
      default:
        this.transcript.apply(update);
        return;
    }
    if (this.role === "controller") this.#keepOffers();
    this.#changed();
  }

  /** Sends a prompt, or queues it while a turn is running. */
  prompt(prompt) {
    if (this.running) {
      this.queue.push(prompt);
      this.#changed();
      return;
    }
    if (!this.title) {
      this.title = prompt.text.slice(0, 80);
      this.#keepOffers();
    }
    this.transcript.prompt(prompt.blocks);
    this.#sent = prompt;
    this.#client.request("session/prompt", { sessionId: this.id, prompt: prompt.blocks }).then(
      ({ stopReason }) => {
        this.#sent = undefined;
        this.transcript.endTurn(stopReason);
      },
      (error) => this.#failed(error),
    );
  }

  /** A prompt has failed. What waited for its turn comes back, instead of following it into the same failure. */
  async #failed(error) {
    // If the session was taken over, the turn goes on. If the connection has ended, the page begins a new one.
    if (this.role !== "controller" || error.isLost) return;
    if (error.code === LOST) this.putBack();
    else this.#sent = undefined;
    this.#unqueue();
    this.transcript.endTurn("error", error);
    if (error.code !== LOST) return;
    if (await this.control(true)) this.transcript.event("The session was opened again. You can send the prompt again.");
    else this.#set("ended", "The agent does not have this session any more.");
  }

  #unqueue() {
    for (const { text, files } of this.queue.splice(0)) {
      this.draft = [this.draft, text].filter(Boolean).join("\n\n");
      this.files.push(...(files ?? []));
    }
  }

  /** Puts a prompt that was not accepted back, and keeps what was written for the next view of the session. */
  putBack() {
    const { text, files } = this.#sent ?? {};
    this.#sent = undefined;
    this.draft = [text, this.draft].filter(Boolean).join("\n\n");
    this.files = [...(files ?? []), ...this.files];
    this.keepDraft();
  }

  /** Keeps what was written, for a reload. */
  keepDraft() {
    keep(this.id, { draft: this.draft, files: this.files, queue: this.queue });
  }

  #next() {
    if (this.role === "controller" && !this.running && this.queue.length) this.prompt(this.queue.shift());
  }

  /** Asks the agent to stop. It answers the prompt when it has. */
  stop() {
    // What waits would start at once.
    this.#unqueue();
    this.transcript.cancelPermissions();
    this.#client.notify("session/cancel", { sessionId: this.id });
    this.#changed();
  }

  /** Chooses a mode, a model or another option of the agent. */
  async choose(kind, value, option) {
    const { id: sessionId } = this;
    if (kind === "mode") {
      await this.#client.request("session/set_mode", { sessionId, modeId: value });
      this.modes = { ...this.modes, currentModeId: value };
    } else if (kind === "model") {
      await this.#client.request("session/set_model", { sessionId, modelId: value });
      this.models = { ...this.models, currentModelId: value };
    } else {
      const isBoolean = option.type === "boolean";
      const params = { sessionId, configId: option.id, ...(isBoolean && { type: "boolean" }), value };
      const { configOptions } = await this.#client.request("session/set_config_option", params);
      if (Array.isArray(configOptions)) this.options = list(configOptions);
    }
    this.#keepOffers();
    this.#changed();
  }

  /** The connection has ended, and this view with it. */
  close() {
    const own = this.#own;
    this.#own = undefined;
    own?.close();
  }
}
