// Notifications of the browser. Where a page may not show them itself, as in Chrome on Android, its service worker does.

/** Whether the browser has notifications, which the user may permit. */
export const canNotify = "Notification" in globalThis && isSecureContext;

/** What opens the session with an id. */
let openSession = (_id) => {};

/** Names what opens a session when somebody touches a notification of the service worker. */
export function onNotificationTouched(open) {
  openSession = open;
}

/**
 * Shows a notification, if it is permitted. `session` is the id of the session that it is about, if there is one. Resolves with false if
 * this browser has none for pages.
 * @param {string} title
 * @param {string} body
 * @param {string} [session]
 */
export async function notify(title, body, session) {
  if (!canNotify || Notification.permission !== "granted") return true;
  try {
    const shown = new Notification(title, { body, tag: session });
    shown.onclick = () => {
      focus();
      if (session !== undefined) openSession(session);
      shown.close();
    };
    return true;
  } catch {
    return notifyByWorker(title, { body, tag: session, data: { url: location.href, session } });
  }
}

async function notifyByWorker(title, options) {
  try {
    // Its scope is the folder of the pages' files, so no page is under its control.
    const registration = await navigator.serviceWorker.register(new URL("notify_worker.js", import.meta.url));
    await activation(registration);
    await registration.showNotification(title, options);
    return true;
  } catch {
    return false;
  }
}

/** Resolves once the service worker can show notifications. */
async function activation({ installing, waiting, active }) {
  const worker = installing ?? waiting ?? active;
  while (worker.state !== "activated") {
    if (worker.state === "redundant") throw new Error("the service worker was replaced");
    await new Promise((resolve) => {
      worker.addEventListener("statechange", resolve, { once: true });
    });
  }
}

navigator.serviceWorker?.addEventListener("message", ({ data }) => {
  if (typeof data?.session === "string") openSession(data.session);
});
navigator.serviceWorker?.startMessages();
