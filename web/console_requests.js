// How the console asks the server: the pollers, which repeat requests, what happens when a request fails or the server refuses the
// token, and actions, which show that they are pending and then their result.

import { api, askForToken, session, token } from "./common.js";
import { setIdentity } from "./console_state.js";
import { pendingNote, setText } from "./view.js";

/** The time limits of a question and of an action, in ms. */
const QUESTION_LIMIT = 10_000;
const ACTION_LIMIT = 15_000;

/**
 * Repeats a request: every `period` ms while the page is visible and somebody looks at the section, every `away` ms while the
 * section is out of sight, and every `hidden` ms while the page is (0: not at all).
 */
class Poller {
  constructor(period, away, hidden) {
    this.period = period;
    this.away = away;
    this.hidden = hidden;
    this.isInSight = () => true;
  }

  async start(work) {
    for (;;) {
      const began = performance.now();
      this.isHurried = false;
      if (!document.hidden || this.hidden) await work();
      if (this.isHurried) continue;
      await new Promise((resolve) => {
        this.wait = { resolve, began };
        this.plan();
      });
      this.wait = undefined;
    }
  }

  /** Sets the time of the next request. */
  plan() {
    if (!this.wait) return;
    const { resolve, began } = this.wait;
    const period = document.hidden ? this.hidden || 3_600_000 : this.isInSight() ? this.period : this.away;
    clearTimeout(this.timer);
    this.timer = setTimeout(resolve, Math.max(250, period - (performance.now() - began)));
  }

  /** Sends the next request now. */
  hurry() {
    this.isHurried = true;
    this.wait?.resolve();
  }
}

/** The pollers by the names of what they ask for. The module that shows an answer has the function that asks for it. */
export const pollers = {
  status: new Poller(1000, 1000, 10_000),
  processes: new Poller(1000, 10_000, 0),
  log: new Poller(1000, 10_000, 0),
  links: new Poller(5000, 10_000, 0),
};

export const hurryAll = () => {
  for (const poller of Object.values(pollers)) poller.hurry();
};

/** Since when a question waits for its answer. Undefined if none does. */
export let askedAt;
let waiting = 0;

/** Requests JSON. Errors are the caller's. */
export async function ask(path) {
  if (!waiting++) askedAt = performance.now();
  try {
    return await api(path, { signal: AbortSignal.timeout(QUESTION_LIMIT) });
  } finally {
    if (!--waiting) askedAt = undefined;
  }
}

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

/**
 * Does what a control is for. `name` says what it is, `button` is disabled meanwhile, and `work` gets a function like `api` whose
 * requests have a time limit. Shows that it is pending if that takes time, then its result. Returns what `work` returns, or
 * undefined if it failed.
 */
export async function act(name, button, work) {
  const text = button?.textContent;
  if (button) {
    button.disabled = true;
    button.setAttribute("aria-busy", "true");
  }
  const told = pendingNote(name);
  const call = async (path, options = {}) => {
    const signal = AbortSignal.timeout(ACTION_LIMIT);
    try {
      return await api(path, { signal, ...options });
    } catch (error) {
      if (signal.aborted) error.message = `the server has not answered within ${ACTION_LIMIT / 1000} s. It may still do it.`;
      throw error;
    }
  };
  try {
    const result = await work(call);
    told.succeed();
    return result;
  } catch (error) {
    if (error.status === 401) {
      reauthenticate();
      told.remove();
    } else told.fail(error.message);
    return undefined;
  } finally {
    if (button) {
      button.disabled = false;
      button.removeAttribute("aria-busy");
      setText(button, text);
    }
  }
}
