// The cases: what each needs of the specification, and how it is tried. `level` is MUST if clients break without it, SHOULD if the text
// recommends it or only says it in passing, and MAY for an option that is checked where it is offered.
"use strict";

const { Client, Skipped, expect, hello, shown } = require("./client.js");
const { Refused, request } = require("./websocket.js");

const TRANSPORT = "Streamable HTTP & WebSocket Transport";
const LIVENESS = `${TRANSPORT}, liveness`;
const BATCHES = "v2 Transports, JSON-RPC Batch Messages";

const cases = [];
const add = (group, name, level, text, run) => cases.push({ group, name, level, text, run });

const isError = (message, code) => message?.error !== undefined && (code === undefined || message.error.code === code);

/** Skips a case of turns if there is no prompt to try. */
function needPrompt(settings) {
  if (settings.prompt === "") throw new Skipped("there is no --prompt");
}

// Handshake.

add("handshake", "101 has Acp-Connection-Id", "MUST", TRANSPORT, async (settings) => {
  const [one, other] = [await Client.connect(settings), await Client.connect(settings)];
  expect(one.connectionId, "the 101 response has no Acp-Connection-Id");
  expect(one.connectionId !== other.connectionId, "two connections have the same id");
});
add("handshake", "a GET without an upgrade is no 101 and no 5xx", "SHOULD", TRANSPORT, async (settings) => {
  const { response } = await request(settings.url, { ...settings, headers: { ...settings.headers, Accept: "text/event-stream" } });
  expect(response.statusCode >= 400 && response.statusCode < 500, `the status is ${response.statusCode}`);
});
add("handshake", "a wrong Sec-WebSocket-Version gets 400 or 426", "SHOULD", "RFC 6455 section 4.4", async (settings) => {
  const refused = await Client.connect(settings, { "Sec-WebSocket-Version": "99" }).catch((error) => error);
  expect(refused instanceof Refused, "the handshake was accepted");
  expect([400, 426].includes(refused.status), `the status is ${refused.status}`);
});
add("handshake", "a request with a cookie is accepted", "MUST", `${TRANSPORT}, section 5`, async (settings) => {
  const first = await Client.connect(settings);
  const cookies = Object.entries({ ...first.cookies, other: "1" }).map(([name, value]) => `${name}=${value}`);
  const client = await Client.initialized(settings, {}, { Cookie: cookies.join("; ") });
  expect(client.agent, "the connection was not initialized");
});

// Initialization.

add("initialize", "initialize is answered with a version", "MUST", "Initialization", async (settings) => {
  const client = await Client.initialized(settings);
  expect(Number.isInteger(client.version), `protocolVersion is ${shown(client.version)}`);
});
add("initialize", "an unknown version is answered with one that the agent has", "MUST", "Initialization", async (settings) => {
  const client = await Client.initialized(settings, { protocolVersion: 9999 });
  expect(client.version < 9999, "the agent claims to have version 9999");
});
add("initialize", "nothing works before initialize", "SHOULD", TRANSPORT, async (settings) => {
  const client = await Client.connect(settings);
  const id = client.request("session/new", { cwd: settings.cwd, mcpServers: [] });
  const answer = await client.next();
  if (answer === undefined) return expect(client.socket.closed, "session/new got no answer, and the connection goes on");
  expect(answer.id === id && isError(answer), `session/new was answered with ${shown(answer)}`);
});

// Messages.

add("messages", "ids come back as they were", "MUST", "JSON-RPC 2.0 section 5", async (settings) => {
  const client = await Client.initialized(settings);
  for (const id of [0, 7, -3, 9007199254740991, "7", "", "ü\"\\", "x".repeat(200)]) {
    client.send({ id, method: "_conformance/none", params: {} });
    const answer = await client.response(id);
    expect(isError(answer), `an unknown method was answered with ${shown(answer)}`);
  }
});
add("messages", "equal ids of two clients do not cross", "MUST", "JSON-RPC 2.0 section 5", async (settings) => {
  const [one, other] = [await Client.initialized(settings), await Client.initialized(settings)];
  // With an equal id, one client asks for a session and the other one for what does not exist, so a response that crosses is of the
  // wrong kind.
  const ask = (client, id, isSession) => client.send(isSession
    ? { id, method: "session/new", params: { cwd: settings.cwd, mcpServers: [] } }
    : { id, method: "_conformance/none", params: {} });
  const rounds = ["a", "b", "c", "d"];
  rounds.forEach((id, round) => {
    ask(one, id, round % 2 === 0);
    ask(other, id, round % 2 === 1);
  });
  for (const [client, first] of [[one, 0], [other, 1]]) {
    const answers = new Map();
    while (answers.size < rounds.length) {
      const answer = await client.until((message) => message.method === undefined, "the responses");
      expect(rounds.includes(answer.id) && !answers.has(answer.id), `a client got ${shown(answer)}, which answers no request of its own`);
      answers.set(answer.id, answer);
    }
    rounds.forEach((id, round) => {
      const answer = answers.get(id);
      const isRight = round % 2 === first ? typeof answer.result?.sessionId === "string" : isError(answer);
      expect(isRight, `a client got the other client's response: ${shown(answer)}`);
    });
  }
});
add("messages", "an unknown method gets -32601", "MUST", "JSON-RPC 2.0 section 5.1", async (settings) => {
  const client = await Client.initialized(settings);
  const answer = await client.call("_conformance/none", {});
  expect(isError(answer, -32601), `it was answered with ${shown(answer)}`);
});
add("messages", "text that is not JSON gets -32700 with the id null", "SHOULD", "JSON-RPC 2.0 section 5.1", async (settings) => {
  const client = await Client.initialized(settings);
  client.socket.send('{"jsonrpc":"2.0","id":1,');
  const answer = await client.next();
  expect(answer !== undefined, client.socket.closed ? "the connection was closed" : "it was not answered");
  expect(isError(answer, -32700) && answer.id === null, `it was answered with ${shown(answer)}`);
  expect(await client.isAlive(), "the connection does not work any more");
});
add("messages", "a message that is no request gets -32600", "SHOULD", "JSON-RPC 2.0 section 5.1", async (settings) => {
  const client = await Client.initialized(settings);
  client.socket.send('{"jsonrpc":"2.0","id":1,"method":7}');
  const answer = await client.next();
  expect(isError(answer, -32600), `it was answered with ${shown(answer)}`);
  expect(await client.isAlive(), "the connection does not work any more");
});
add("messages", "a notification gets no answer", "MUST", "JSON-RPC 2.0 section 4.1", async (settings) => {
  const client = await Client.initialized(settings);
  client.notify("_conformance/none", {});
  expect(await client.isAlive(), "the connection does not work any more");
  const answers = client.others.filter((message) => message.method === undefined);
  expect(answers.length === 0, `it was answered with ${shown(answers[0])}`);
});
add("messages", "a binary message is ignored", "MUST", TRANSPORT, async (settings) => {
  const client = await Client.initialized(settings);
  client.socket.sendBinary('{"jsonrpc":"2.0","id":"binary","method":"_conformance/none"}');
  expect(await client.isAlive(), "the connection does not work any more");
  expect(!client.others.some(({ id }) => id === "binary"), "it was answered");
});
add("messages", "a message may come in fragments, with a PING in between", "MUST", "RFC 6455 section 5.4", async (settings) => {
  const client = await Client.initialized(settings);
  client.socket.sendInPieces('{"jsonrpc":"2.0","id":"pieces","method":"_conformance/none","params":{}}');
  await client.response("pieces");
});
add("messages", "a long message is taken", "SHOULD", TRANSPORT, async (settings) => {
  const client = await Client.initialized(settings);
  const answer = await client.call("_conformance/none", { text: "x".repeat(200_000) });
  expect(isError(answer), `it was answered with ${shown(answer)}`);
});

// Sessions.

add("sessions", "a turn has updates and ends", "MUST", "Prompt Turn", async (settings) => {
  needPrompt(settings);
  const client = await Client.initialized(settings);
  const session = await client.session();
  const reason = await client.turn(client.prompt(session), session);
  expect(typeof reason === "string", `the stop reason is ${shown(reason)}`);
  const updates = client.others.filter(({ method }) => method === "session/update");
  expect(updates.length > 0, "there was no session/update");
  expect(updates.every(({ params }) => params.sessionId === session), "an update is of another session");
});
add("sessions", "two sessions of a connection are kept apart", "MUST", TRANSPORT, async (settings) => {
  needPrompt(settings);
  const client = await Client.initialized(settings);
  const sessions = [await client.session(), await client.session()];
  expect(sessions[0] !== sessions[1], "both have the same id");
  for (const session of sessions) {
    client.others = [];
    await client.turn(client.prompt(session), session);
    const updates = client.others.filter(({ method }) => method === "session/update");
    expect(updates.some(({ params }) => params.sessionId === session), `there was no update for ${session}`);
  }
});
add("sessions", "a client sees nothing of another client's session", "MUST", TRANSPORT, async (settings) => {
  needPrompt(settings);
  const [one, other] = [await Client.initialized(settings), await Client.initialized(settings)];
  const session = await one.session();
  const own = await other.session();
  await one.turn(one.prompt(session), session);
  expect(await other.isAlive(), "the other connection does not work any more");
  const seen = other.others.filter(({ method, params }) => method === "session/update" && params.sessionId !== own);
  expect(seen.length === 0, `it got ${shown(seen[0])}`);
});
add("sessions", "a client cannot prompt another client's session", "MUST", TRANSPORT, async (settings) => {
  needPrompt(settings);
  const [one, other] = [await Client.initialized(settings), await Client.initialized(settings)];
  const session = await one.session();
  const own = await other.session();
  if (session === own) throw new Skipped("each client has an agent of its own, whose sessions have the same ids");
  const answer = await other.response(other.prompt(session), "the response to the other client's prompt");
  expect(isError(answer), "the prompt was accepted");
  expect(await one.isAlive(), "the connection of the session does not work any more");
  const seen = one.others.filter(({ method }) => method === "session/update");
  expect(seen.every(({ params }) => !JSON.stringify(params).includes(settings.prompt)), "the prompt reached the session");
});
add("sessions", "session/cancel ends a turn", "SHOULD", "Cancellation", async (settings) => {
  needPrompt(settings);
  const client = await Client.initialized(settings);
  const session = await client.session();
  const id = client.prompt(session);
  // An agent may not know of a turn that it has not begun.
  const isSaid = ({ method, params }) => method === "session/update" && params.update?.sessionUpdate === "agent_message_chunk";
  const isEnd = (message) => (client.version < 2 ? message.method === undefined && message.id === id : message.params?.update?.state === "idle");
  const first = await client.until((message) => isSaid(message) || isEnd(message), "an update of the turn");
  if (isEnd(first)) throw new Skipped("the turn had ended before it could be cancelled");
  client.notify("session/cancel", { sessionId: session });
  const known = client.others.length;
  const end = await client.until(isEnd, "the end of the turn");
  const reason = client.version < 2 ? end.result?.stopReason : end.params.update.stopReason;
  if (reason === "end_turn" && !client.others.slice(known).some(isSaid)) {
    throw new Skipped("the turn had nothing left to cancel; give a --prompt with a longer answer");
  }
  expect(reason === "cancelled", `the stop reason is ${shown(reason)}`);
});
add("sessions", "an unknown session gets an error", "MUST", "Errors", async (settings) => {
  const client = await Client.initialized(settings);
  const answer = await client.response(client.prompt("no-such-session", "x"), "the response to session/prompt");
  expect(isError(answer), `it was answered with ${shown(answer)}`);
});

// Batches.

async function batching(settings) {
  const client = await Client.initialized(settings, hello(2));
  if (client.version < 2) throw new Skipped("the agent has no version 2");
  return client;
}
add("batches", "an array in version 1 does not break the connection", "MUST", BATCHES, async (settings) => {
  const client = await Client.initialized(settings);
  if (client.version > 1) throw new Skipped("the agent has no version 1");
  client.socket.send('[{"jsonrpc":"2.0","id":1,"method":"_conformance/none"}]');
  expect(await client.isAlive(), "the connection does not work any more");
});
add("batches", "the requests of a batch are answered with one array", "SHOULD", BATCHES, async (settings) => {
  const client = await batching(settings);
  const call = (id) => ({ jsonrpc: "2.0", id, method: "_conformance/none", params: {} });
  client.socket.send(JSON.stringify([call("a"), { jsonrpc: "2.0", method: "_conformance/note", params: {} }, call(2), 7]));
  const answer = await client.until(Array.isArray, "an array");
  const ids = answer.map(({ id }) => id);
  expect(ids.length === 3 && [null, "a", 2].every((id) => ids.includes(id)), `the array is ${shown(answer)}`);
  expect(isError(answer.find(({ id }) => id === null), -32600), "what is no message got no -32600");
});
add("batches", "an empty batch gets one error", "SHOULD", BATCHES, async (settings) => {
  const client = await batching(settings);
  client.socket.send("[]");
  const answer = await client.next();
  expect(isError(answer, -32600) && answer.id === null, `it was answered with ${shown(answer)}`);
});
add("batches", "a batch of notifications gets no answer", "SHOULD", BATCHES, async (settings) => {
  const client = await batching(settings);
  client.socket.send('[{"jsonrpc":"2.0","method":"_conformance/note"}]');
  expect(await client.isAlive(), "the connection does not work any more");
  expect(!client.others.some((message) => message.method === undefined), `it was answered with ${shown(client.others[0])}`);
});

// After a cut.

add("cut", "a session can be loaded after a cut", "MUST", `${TRANSPORT}, v1 durability`, async (settings) => {
  const client = await Client.initialized(settings);
  if (!client.agent.agentCapabilities?.loadSession) throw new Skipped("the agent does not announce loadSession");
  const session = await client.session();
  client.socket.cut();
  const next = await Client.initialized(settings, {}, {}, client);
  const answer = await next.call("session/load", { sessionId: session, cwd: settings.cwd, mcpServers: [] });
  expect(answer.result !== undefined, `session/load was answered with ${shown(answer)}`);
});
add("cut", "a cut in the middle of a turn does not end the server", "MUST", TRANSPORT, async (settings) => {
  needPrompt(settings);
  const client = await Client.initialized(settings);
  const session = await client.session();
  client.prompt(session);
  client.socket.cut();
  const next = await Client.initialized(settings, {}, {}, client);
  const own = await next.session();
  expect(typeof (await next.turn(next.prompt(own), own)) === "string", "the next client has no turn");
});

// Connections that are half open.

add("liveness", "a PING is answered with its payload", "MUST", "RFC 6455 section 5.5.3", async (settings) => {
  const client = await Client.initialized(settings);
  client.socket.ping("are you there?");
  expect(await client.isAlive(), "the connection does not work any more");
  expect(client.socket.pongs.includes("are you there?"), `the PONGs are ${shown(client.socket.pongs)}`);
});
add("liveness", "a client that stops reading in the middle of a turn holds up no other one", "MUST", LIVENESS, async (settings) => {
  needPrompt(settings);
  const silent = await Client.initialized(settings);
  const session = await silent.session();
  silent.socket.answersPings = false;
  silent.socket.pause();
  silent.prompt(session);
  const client = await Client.initialized(settings);
  const own = await client.session();
  for (let turn = 0; turn < 3; turn++) {
    expect(typeof (await client.turn(client.prompt(own), own)) === "string", "the other client has no turn");
  }
});
add("liveness", "a connection that answers no PING is ended, and its session can be loaded", "MAY", LIVENESS, async (settings) => {
  const silent = await Client.initialized(settings);
  const session = await silent.session();
  silent.socket.answersPings = false;
  const began = Date.now();
  while (silent.socket.pings === 0) {
    if (Date.now() - began > settings.timeout) throw new Skipped(`the server sends no PING within ${settings.timeout / 1000} s`);
    await silent.next(50);
  }
  expect(await silent.socket.ending(3 * settings.timeout), "it goes on after PINGs that were not answered");
  const client = await Client.initialized(settings, {}, {}, silent);
  if (client.version > 1 || !client.agent.agentCapabilities?.loadSession) return;
  const answer = await client.call("session/load", { sessionId: session, cwd: settings.cwd, mcpServers: [] });
  expect(answer.result !== undefined, `session/load was answered with ${shown(answer)}`);
});

// The agent crashes.

/** A client that waits for the answer to the prompt that makes the agent exit. */
async function crashed(settings) {
  if (settings.crash === "") throw new Skipped("there is no --crash");
  const client = await Client.initialized(settings);
  const id = client.prompt(await client.session(), settings.crash);
  return { client, answer: await client.response(id).catch(() => undefined) };
}

add("crash", "a request that the agent does not answer gets an error, or the connection ends", "MUST", TRANSPORT, async (settings) => {
  const { client, answer } = await crashed(settings);
  if (answer === undefined) return expect(client.socket.closed, "the request got no answer, and the connection goes on");
  expect(isError(answer) || client.version > 1, `it was answered with ${shown(answer)}`);
});
add("crash", "the next client has an agent that works", "MUST", TRANSPORT, async (settings) => {
  await crashed(settings);
  const client = await Client.initialized(settings);
  await client.session();
});

module.exports = { cases };
