// The connection of the page to its agent. It implements nothing for the agent but permission requests.

import { AgentConnection } from "./acp.js";
import { askForToken, pagePath, session, socketProtocols, socketUrl, token } from "./common.js";

export const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** What the page does with a permission request: it calls `answer` with the id of an option, or without one to dismiss the request. */
/** @typedef {(params: any, id: string | number, answer: (optionId?: string) => void) => void} AskPermission */

/** A connection to the agent of this page. */
export class AgentClient extends AgentConnection {
  /** The result of `initialize`. */
  agent;

  /**
   * @param {object} options
   * @param {AskPermission} options.ask
   * @param {Record<string, string>} [options.query] the parameters of the address
   */
  constructor({ ask, query = {} }) {
    const url = () => {
      const url = socketUrl(pagePath);
      for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
      return url;
    };
    super(url, {
      protocols: socketProtocols,
      unauthorized: () => askForToken(token() ? "The server does not accept the token of this page." : undefined),
      request({ method, params, id }) {
        if (method !== "session/request_permission") return undefined;
        return new Promise((resolve) => {
          ask(params, id, (optionId) =>
            resolve({ outcome: optionId === undefined ? { outcome: "cancelled" } : { outcome: "selected", optionId } }),
          );
        });
      },
    });
  }

  /** What the server adds to it: `maxMessage`, `directory` and `approvals`. */
  get about() {
    const about = this.agent?._meta?.outrigger;
    return isObject(about) ? about : {};
  }

  /** Resolves once the agent has answered `initialize`. */
  async initialize() {
    this.agent = await super.initialize({
      clientCapabilities: { fs: { readTextFile: false, writeTextFile: false }, terminal: false },
      clientInfo: { name: "outrigger-page", title: "Outrigger in a browser", version: (await session().catch(() => undefined))?.version ?? "1" },
    });
    return this.agent;
  }
}
