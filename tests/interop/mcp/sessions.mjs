// Checks of sessions (revision 2025-11-25) with requests that no SDK sends: status codes, streams and what a client that lost its
// stream gets back. The server behind the endpoint is conformance_server.mjs.
import assert from "node:assert/strict";

import { check } from "./checks.mjs";

const BOTH = "application/json, text/event-stream";

/** Sends a message, a text or a list of bytes as the body of a POST. */
const post = (url, body, headers = {}, signal) => fetch(url, {
  method: "POST",
  headers: { accept: BOTH, "content-type": "application/json", ...headers },
  body: typeof body === "string" || body instanceof ReadableStream ? body : JSON.stringify(body),
  duplex: "half",
  signal,
});

const message = (method, params, id = 1) => ({ jsonrpc: "2.0", id, method, params });
const initialize = (version = "2025-11-25") =>
  message("initialize", { protocolVersion: version, capabilities: {}, clientInfo: { name: "raw", version: "1" } }, 0);

/** Reads the events of a stream, or the one message of a JSON body, as { id, data } without those that have no data. */
async function* events(response) {
  if (response.headers.get("content-type").startsWith("application/json")) {
    yield { data: await response.json() };
    return;
  }
  let text = "";
  for await (const chunk of response.body.pipeThrough(new TextDecoderStream())) {
    text += chunk;
    for (let end; (end = /\r?\n\r?\n/.exec(text)); text = text.slice(end.index + end[0].length)) {
      const event = { data: "" };
      for (const line of text.slice(0, end.index).split(/\r?\n/)) {
        const [, name, value] = /^(\w+): ?(.*)$/.exec(line) ?? [];
        if (name === "data") event.data += value;
        else if (name) event[name] = value;
      }
      if (event.data) yield { ...event, data: JSON.parse(event.data) };
      else if (event.id) yield { ...event, data: undefined };
    }
  }
}

async function answer(response) {
  for await (const { data } of events(response)) if (data && ("result" in data || "error" in data)) return data;
  throw new Error("the stream ended without an answer");
}

/** Begins a session, and returns the headers of its requests. */
async function begin(url, version = "2025-11-25") {
  const response = await post(url, initialize(version));
  assert.equal(response.status, 200);
  const { result } = await answer(response);
  assert.equal(result.protocolVersion, version);
  const headers = { "mcp-session-id": response.headers.get("mcp-session-id"), "mcp-protocol-version": version };
  const initialized = await post(url, { jsonrpc: "2.0", method: "notifications/initialized" }, headers);
  assert.equal(initialized.status, 202);
  assert.equal(await initialized.text(), "");
  return headers;
}

const count = (steps, delay, id, progressToken) =>
  message("tools/call", { name: "count", arguments: { steps, delay }, _meta: { progressToken } }, id);

/** `own` is true for an endpoint of `outrigger mcp`: some checks are about what the SDK's transport leaves undone. */
export async function sessions(url, title, own) {
  const it = (what, test, seconds) => check(`${title}: ${what}`, test, seconds);

  await it("older revisions", async () => {
    for (const version of ["2025-06-18", "2025-03-26"]) {
      const headers = await begin(url, version);
      const { result } = await answer(await post(url, message("tools/list"), headers));
      assert.ok(result.tools.length > 5);
      assert.ok((await fetch(url, { method: "DELETE", headers })).ok);
    }
  });

  await it("errors", async () => {
    const headers = await begin(url);
    const list = message("tools/list", {}, 7);
    const expect = async (status, code, response) => {
      assert.equal(response.status, status, await response.clone().text());
      if (code !== null) assert.equal((await response.json()).error.code, code);
    };
    await expect(404, -32001, await post(url, list, { ...headers, "mcp-session-id": "no-such-session" }));
    await expect(404, -32001, await fetch(url, { headers: { accept: "text/event-stream", "mcp-session-id": "no-such-session" } }));
    await expect(404, -32001, await fetch(url, { method: "DELETE", headers: { "mcp-session-id": "no-such-session" } }));
    await expect(400, null, await post(url, list, { "mcp-protocol-version": "2025-11-25" }));
    await expect(400, null, await post(url, list, { ...headers, "mcp-protocol-version": "1999-01-01" }));
    await expect(406, null, await post(url, list, { ...headers, accept: "text/html" }));
    await expect(406, null, await fetch(url, { headers: { ...headers, accept: "text/html" } }));
    await expect(415, null, await post(url, list, { ...headers, "content-type": "text/plain" }));
    await expect(400, -32700, await post(url, "{", headers));
    await expect(405, null, await fetch(url, { method: "PUT", headers, body: "{}" }));
    await expect(404, -32001, await post(url, list, { ...headers, "mcp-session-id": headers["mcp-session-id"] + "x" }));
    // The session is none the worse for them.
    assert.ok((await answer(await post(url, list, headers))).result.tools);
  });

  await it("DELETE ends the session and its streams", async () => {
    const headers = await begin(url);
    const stream = await fetch(url, { headers: { ...headers, accept: "text/event-stream" } });
    assert.equal(stream.status, 200);
    const ended = (async () => {
      for await (const _ of events(stream));
    })();
    assert.ok((await fetch(url, { method: "DELETE", headers })).ok);
    await ended;
    assert.equal((await post(url, message("tools/list"), headers)).status, 404);
  });

  await it("equal ids in two sessions", async () => {
    const both = await Promise.all([begin(url), begin(url)]);
    const answers = await Promise.all(both.map(async (headers, index) => {
      const params = { name: "test_prompt_with_arguments", arguments: { arg1: `session ${index}`, arg2: "" } };
      return answer(await post(url, message("prompts/get", params, "same"), headers));
    }));
    answers.forEach(({ result }, index) => assert.match(result.messages[0].content.text, new RegExp(`session ${index}`)));
  });

  await it("each stream carries the progress of its own call", async () => {
    const headers = await begin(url);
    await Promise.all([1, 2, 3, 4].map(async (id) => {
      const seen = [];
      for await (const { data } of events(await post(url, count(3, 0.1, id, `token ${id}`), headers))) if (data) seen.push(data);
      assert.deepEqual(seen.map(({ params }) => params?.progressToken), [...Array(3).fill(`token ${id}`), undefined]);
      assert.equal(seen[3].id, id);
    }));
  });

  await it("a client that lost its stream gets the rest with Last-Event-ID", async () => {
    const headers = await begin(url);
    const cut = new AbortController();
    const seen = [];
    let last;
    try {
      for await (const { id, data } of events(await post(url, count(5, 0.2, 11, "t"), headers, cut.signal))) {
        last = id;
        if (!data) continue;
        seen.push(data);
        if (seen.length === 2) cut.abort();
      }
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
    assert.equal(seen.length, 2);
    assert.ok(last, "the events have ids");
    const again = await fetch(url, { headers: { ...headers, accept: "text/event-stream", "last-event-id": last } });
    assert.equal(again.status, 200);
    for await (const { data } of events(again)) {
      if (data) seen.push(data);
      if (data?.id === 11) break;
    }
    assert.deepEqual(seen.map(({ params }) => params?.progress), [1, 2, 3, 4, 5, undefined]);
    assert.ok(seen[5].result);
  });

  if (!own) return;
  await it("a request that the server's parser would drop", async () => {
    const headers = await begin(url);
    const ping = message("ping", {}, 31);
    for (const wrong of [{ ...ping, id: 1.5 }, { ...ping, params: "x" }, { ...ping, params: [1] }]) {
      const response = await post(url, wrong, headers);
      assert.equal(response.status, 400, JSON.stringify(wrong));
      assert.ok([-32600, -32602].includes((await response.json()).error.code));
    }
    assert.deepEqual((await answer(await post(url, ping, headers))).result, {});
  });

  await it("initialize with a session that does not exist", async () => {
    assert.equal((await post(url, initialize(), { "mcp-session-id": "no-such-session" })).status, 404);
  });

  await it("a request of revision 2026-07-28 names the versions that the server has", async () => {
    const prefix = "io.modelcontextprotocol/";
    const _meta = { [prefix + "protocolVersion"]: "2026-07-28", [prefix + "clientCapabilities"]: {} };
    const response = await post(url, message("server/discover", { _meta }), { "mcp-protocol-version": "2026-07-28", "mcp-method": "server/discover" });
    assert.equal(response.status, 400);
    const { error } = await response.json();
    assert.equal(error.code, -32022);
    assert.equal(error.data.requested, "2026-07-28");
    assert.ok(error.data.supported.includes("2025-11-25") && error.data.supported.includes("2025-06-18"), JSON.stringify(error));
  });

  await it("a notification of no call arrives once", async () => {
    // Nothing tells whether it belongs to the call that is open, so that either stream may carry it.
    const headers = await begin(url);
    const methods = [];
    for await (const { data } of events(await post(url, message("tools/call", { name: "announce" }), headers))) methods.push(data?.method);
    const stop = new AbortController();
    const stream = await fetch(url, { headers: { ...headers, accept: "text/event-stream" }, signal: stop.signal });
    await post(url, message("tools/call", { name: "announce" }), headers).then(async (response) => {
      for await (const { data } of events(response)) methods.push(data?.method);
    });
    const announced = () => methods.filter((method) => method === "notifications/tools/list_changed").length;
    if (announced() < 2) {
      for await (const { data } of events(stream)) {
        methods.push(data?.method);
        if (announced() === 2) break;
      }
    }
    assert.equal(announced(), 2);
    stop.abort();
  });

  await it("a cancelled call leaves no open stream behind", async () => {
    const headers = await begin(url);
    const response = await post(url, count(100, 0.1, 21, "t"), headers);
    let cancelled = false;
    for await (const { data } of events(response)) {
      if (!data || cancelled) continue;
      cancelled = true;
      const notification = { jsonrpc: "2.0", method: "notifications/cancelled", params: { requestId: 21 } };
      assert.equal((await post(url, notification, headers)).status, 202);
    }
    assert.ok(cancelled);
    assert.ok((await answer(await post(url, message("tools/list", {}, 22), headers))).result.tools);
  });
}
