// How the console asks the server: the pollers, which repeat requests, and what happens when a request fails or the server
// refuses the token.

import { api, askForToken, session, token } from "./common.js";
import { setIdentity } from "./console_state.js";
import { note } from "./view.js";

/** Repeats a request: every `period` ms while the page is visible, every `hidden` ms otherwise (0: not at all). */
class Poller {
  constructor(period, hidden) {
    Object.assign(this, { period, hidden });
  }

  async start(work) {
    for (;;) {
      const began = performance.now();
      if (!document.hidden || this.hidden) await work();
      const period = document.hidden ? this.hidden || 3_600_000 : this.period;
      await new Promise((resolve) => {
        this.hurry = resolve;
        setTimeout(resolve, Math.max(250, period - (performance.now() - began)));
      });
    }
  }

  /** Sends the next request now. */
  hurry() {}
}

/** The pollers by the names of what they ask for. The module that shows an answer has the function that asks for it. */
export const pollers = {
  status: new Poller(1000, 10_000),
  processes: new Poller(1000, 0),
  log: new Poller(1000, 0),
  links: new Poller(5000, 0),
};

/** Requests JSON. Errors are the caller's. */
export const ask = (path) => api(path, { signal: AbortSignal.timeout(10_000) });

/** Whether the page knows the identity of its token. */
export let identified = false;
/** Resolves once the form that asks for a token has one. Undefined without such a form. */
export let asking;

/** Learns who this page is. Asks for a token until the server accepts one. */
export async function identify() {
  for (;;) {
    try {
      setIdentity((await session()) ?? { auth: true, scope: "all", principal: "default" });
      identified = true;
      return;
    } catch (error) {
      if (error.status !== 401) throw error;
      await askForToken(token() ? "The server does not accept the token of this page." : undefined);
    }
  }
}

/** Has the identity asked for again, because another server process has answered. */
export function forgetIdentity() {
  identified = false;
}

/** Asks for another token after a 401. */
export function reauthenticate() {
  identified = false;
  asking ??= askForToken(token() ? "The server does not accept the token of this page any more." : undefined).then(() => {
    asking = undefined;
    pollers.status.hurry();
  });
  return asking;
}

/** Handles a request's error. One that another poller sees as well is reported by `status` alone. */
export async function handle(error) {
  if (error.status === 401) await reauthenticate();
}

/** Runs what a control does, and shows its error. */
export async function attempt(work) {
  try {
    return await work();
  } catch (error) {
    if (error.status === 401) reauthenticate();
    else note(error.message, true);
    return undefined;
  }
}
