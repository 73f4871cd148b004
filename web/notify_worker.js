// The service worker of the pages. It shows notifications where a page may not do so itself, as in Chrome on Android, and brings the page
// to the front when somebody touches one. It keeps nothing, and no request goes through it.

const worker = /** @type {any} */ (globalThis);

worker.addEventListener("notificationclick", (event) => {
  const { notification } = event;
  notification.close();
  event.waitUntil(open(notification.data));
});

/** Opens a session in the page that has asked for the notification, or in a new one. */
async function open({ url, session }) {
  const pages = await worker.clients.matchAll({ type: "window", includeUncontrolled: true });
  const page = pages.find((one) => new URL(one.url).pathname === new URL(url).pathname);
  if (!page) return worker.clients.openWindow(url);
  page.postMessage({ session });
  return page.focus();
}
