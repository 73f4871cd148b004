// The server that the scenarios of the MCP conformance suite expect: their tools, resources and prompts, on the TypeScript SDK 1.x.
// sessions.mjs uses it too, and its tool `count`.
//
// usage: node conformance_server.mjs                 speaks on standard input and output
//        node conformance_server.mjs --http PORT     serves the SDK's own Streamable HTTP transport, and prints its URL
import { randomUUID } from "node:crypto";
import http from "node:http";

import { load } from "./packages.mjs";
import { pause } from "./server.mjs";

const { Server } = await load("@modelcontextprotocol/sdk/server/index.js");
const schema = await load("@modelcontextprotocol/sdk/types.js");

const PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";
const WAV = Buffer.from("RIFF\x26\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data\x02\0\0\0\0\0", "latin1").toString("base64");

const text = (text) => ({ type: "text", text });
const image = { type: "image", data: PNG, mimeType: "image/png" };
const audio = { type: "audio", data: WAV, mimeType: "audio/wav" };
const embedded = (uri, mimeType, text) => ({ type: "resource", resource: { uri, mimeType, text } });
const content = (...parts) => ({ content: parts });
const object = (properties = {}, required = Object.keys(properties)) => ({ type: "object", properties, required });
const string = (description) => ({ type: "string", description });
const titled = (values) => values.map(([value, title]) => ({ const: value, title }));

/** Asks the client's user for `properties`, and returns the answer as text. */
async function elicit(call, message, properties, required = []) {
  const request = { method: "elicitation/create", params: { message, requestedSchema: object(properties, required) } };
  const { action, content: answer } = await call.sendRequest(request, schema.ElicitResultSchema);
  return content(text(`The user answered: action=${action}, content=${JSON.stringify(answer ?? {})}`));
}

/** name: [description, input schema, function]. */
const TOOLS = {
  test_simple_text: ["Returns a text", object(), () => content(text("This is a simple text response for testing."))],
  test_image_content: ["Returns an image", object(), () => content(image)],
  test_audio_content: ["Returns a sound", object(), () => content(audio)],
  test_embedded_resource: ["Returns a resource", object(),
    () => content(embedded("test://embedded-resource", "text/plain", "This is an embedded resource content."))],
  test_multiple_content_types: ["Returns a text, an image and a resource", object(),
    () => content(text("Multiple content types test:"), image,
      embedded("test://mixed-content-resource", "application/json", JSON.stringify({ test: "data", value: 123 })))],
  test_error_handling: ["Fails", object(), () => {
    throw new Error("This tool intentionally returns an error for testing");
  }],
  test_tool_with_logging: ["Logs three messages", object(), async (_, call) => {
    for (const data of ["Tool execution started", "Tool processing data", "Tool execution completed"]) {
      if (data !== "Tool execution started") await pause(50);
      await call.sendNotification({ method: "notifications/message", params: { level: "info", logger: "conformance", data } });
    }
    return content(text("Logged three messages."));
  }],
  test_tool_with_progress: ["Reports its progress", object(), async (_, call) => {
    const progressToken = call._meta?.progressToken;
    for (const progress of [0, 50, 100]) {
      if (progress > 0) await pause(50);
      if (progressToken === undefined) continue;
      await call.sendNotification({ method: "notifications/progress", params: { progressToken, progress, total: 100 } });
    }
    return content(text("Done."));
  }],
  test_sampling: ["Asks the client's model", object({ prompt: string("What to ask") }), async ({ prompt }, call) => {
    const params = { messages: [{ role: "user", content: text(prompt) }], maxTokens: 100 };
    const answer = await call.sendRequest({ method: "sampling/createMessage", params }, schema.CreateMessageResultSchema);
    return content(text(`LLM response: ${answer.content.text}`));
  }],
  test_elicitation: ["Asks the client's user", object({ message: string("What to ask") }), ({ message }, call) =>
    elicit(call, message, { username: string("User's response"), email: string("User's email address") }, ["username", "email"])],
  test_elicitation_sep1034_defaults: ["Asks with default values", object(), (_, call) =>
    elicit(call, "Check the values", {
      name: { type: "string", default: "John Doe" },
      age: { type: "integer", default: 30 },
      score: { type: "number", default: 95.5 },
      status: { type: "string", enum: ["active", "inactive", "pending"], default: "active" },
      verified: { type: "boolean", default: true },
    })],
  test_elicitation_sep1330_enums: ["Asks with every kind of enumeration", object(), (_, call) =>
    elicit(call, "Choose", {
      untitledSingle: { type: "string", enum: ["option1", "option2", "option3"] },
      titledSingle: { type: "string", oneOf: titled([["value1", "First Option"], ["value2", "Second Option"]]) },
      legacyEnum: { type: "string", enum: ["opt1", "opt2"], enumNames: ["Option One", "Option Two"] },
      untitledMulti: { type: "array", items: { type: "string", enum: ["option1", "option2", "option3"] } },
      titledMulti: { type: "array", items: { anyOf: titled([["value1", "First Choice"], ["value2", "Second Choice"]]) } },
    })],
  test_reconnection: ["Closes its stream, where the transport can, before it answers", object(), async (_, call) => {
    call.closeSSEStream?.();
    await pause(100);
    return content(text("The answer after the stream was closed."));
  }],
  announce: ["Tells the client that the tools changed, with a notification that belongs to no call", object(), async (_, call) => {
    await call.server.sendToolListChanged();
    return content(text("announced"));
  }],
  count: ["Reports its progress `steps` times, with `delay` seconds before each", object({ steps: { type: "integer" }, delay: { type: "number" } }),
    async ({ steps, delay }, call) => {
      for (let progress = 1; progress <= steps && !call.signal.aborted; progress++) {
        await pause(delay * 1000);
        const params = { progressToken: call._meta?.progressToken, progress, total: steps };
        if (params.progressToken !== undefined) await call.sendNotification({ method: "notifications/progress", params });
      }
      return content(text(`counted to ${steps}`));
    }],
  json_schema_2020_12_tool: ["Has a schema with keywords of JSON Schema 2020-12", {
    $schema: "https://json-schema.org/draft/2020-12/schema",
    type: "object",
    $defs: { address: object({ street: { type: "string" }, city: { type: "string" } }, []) },
    properties: { name: { type: "string" }, address: { $ref: "#/$defs/address" } },
    additionalProperties: false,
  }, (values) => content(text(JSON.stringify(values)))],
};

const RESOURCES = {
  "test://static-text": { name: "static-text", mimeType: "text/plain", text: "This is the content of the static text resource." },
  "test://static-binary": { name: "static-binary", mimeType: "image/png", blob: PNG },
  "test://watched-resource": { name: "watched-resource", mimeType: "text/plain", text: "A resource to subscribe to." },
};

const user = (...contents) => ({ messages: contents.map((content) => ({ role: "user", content })) });
const argument = (name) => ({ name, description: `The argument ${name}`, required: true });
/** name: [arguments, function]. */
const PROMPTS = {
  test_simple_prompt: [[], () => user(text("This is a simple prompt for testing."))],
  test_prompt_with_arguments: [["arg1", "arg2"], ({ arg1, arg2 }) => user(text(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`))],
  test_prompt_with_embedded_resource: [["resourceUri"], ({ resourceUri }) =>
    user(embedded(resourceUri, "text/plain", "Embedded resource content for testing."), text("Please process the embedded resource above."))],
  test_prompt_with_image: [[], () => user(image, text("Please analyze the image above."))],
};

/** A new server, as each session needs one. */
function conformance_server() {
  const capabilities = { logging: {}, completions: {}, tools: { listChanged: true }, prompts: {}, resources: { subscribe: true } };
  const server = new Server({ name: "outrigger-conformance", version: "1.0.0" }, { capabilities });
  const on = (name, handler) => server.setRequestHandler(schema[name + "RequestSchema"], (request, call) => handler(request.params ?? {}, call));
  const unknown = (what) => new schema.McpError(schema.ErrorCode.InvalidParams, `unknown ${what}`);
  const subscribed = new Set();

  on("ListTools", () => ({ tools: Object.entries(TOOLS).map(([name, [description, inputSchema]]) => ({ name, description, inputSchema })) }));
  on("CallTool", async (params, call) => {
    if (!TOOLS[params.name]) throw unknown(`tool '${params.name}'`);
    try {
      return await TOOLS[params.name][2](params.arguments ?? {}, { ...call, _meta: params._meta, server });
    } catch (error) {
      return { isError: true, ...content(text(error.message)) };
    }
  });
  on("ListResources", () => ({
    resources: Object.entries(RESOURCES).map(([uri, { name, mimeType }]) => ({ uri, name, mimeType, description: `The resource ${name}` })),
  }));
  on("ListResourceTemplates", () => ({
    resourceTemplates: [{ uriTemplate: "test://template/{id}/data", name: "template", description: "Data of an id", mimeType: "application/json" }],
  }));
  on("ReadResource", ({ uri }) => {
    const id = /^test:\/\/template\/([^/]+)\/data$/.exec(uri)?.[1];
    const made = { mimeType: "application/json", text: JSON.stringify({ id, templateTest: true, data: `Data for ID: ${id}` }) };
    const { name, ...found } = id ? made : RESOURCES[uri] ?? {};
    if (!found.mimeType) throw unknown(`resource '${uri}'`);
    return { contents: [{ uri, ...found }] };
  });
  on("Subscribe", ({ uri }) => (subscribed.add(uri), {}));
  on("Unsubscribe", ({ uri }) => (subscribed.delete(uri), {}));
  on("ListPrompts", () => ({
    prompts: Object.entries(PROMPTS).map(([name, [names]]) => ({ name, description: `The prompt ${name}`, arguments: names.map(argument) })),
  }));
  on("GetPrompt", ({ name, arguments: values }) => {
    if (!PROMPTS[name]) throw unknown(`prompt '${name}'`);
    return PROMPTS[name][1](values ?? {});
  });
  on("Complete", ({ argument: { value } }) => ({ completion: { values: [`${value}1`, `${value}2`], total: 2, hasMore: false } }));
  return server;
}

/** Keeps the events of a session's streams, so that a client that comes back gets what it missed. */
class EventStore {
  events = [];
  async storeEvent(streamId, message) {
    this.events.push({ streamId, message });
    return String(this.events.length - 1);
  }
  async getStreamIdForEventId(id) {
    return this.events[Number(id)]?.streamId;
  }
  async replayEventsAfter(id, { send }) {
    const { streamId } = this.events[Number(id)];
    for (let next = Number(id) + 1; next < this.events.length; next++) {
      const { streamId: stream, message } = this.events[next];
      if (stream === streamId && Object.keys(message).length > 0) await send(String(next), message);
    }
    return streamId;
  }
}

async function serve_http(port) {
  const { StreamableHTTPServerTransport } = await load("@modelcontextprotocol/sdk/server/streamableHttp.js");
  const sessions = new Map();
  const refuse = (response, status, code, message) => {
    response.writeHead(status, { "content-type": "application/json" });
    response.end(JSON.stringify({ jsonrpc: "2.0", id: null, error: { code, message } }));
  };
  const listener = http.createServer(async (request, response) => {
    const id = request.headers["mcp-session-id"];
    if (new URL(request.url, "http://localhost").pathname !== "/mcp") return refuse(response, 404, -32000, "no such path");
    if (id && !sessions.has(id)) return refuse(response, 404, -32001, "Session not found");
    let transport = sessions.get(id);
    if (!transport) {
      const own = ["127.0.0.1", "localhost"].map((host) => `${host}:${listener.address().port}`);
      transport = new StreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized: (id) => sessions.set(id, transport),
        onsessionclosed: (id) => sessions.delete(id),
        eventStore: new EventStore(),
        retryInterval: 500,
        enableDnsRebindingProtection: true,
        allowedHosts: own,
        allowedOrigins: own.map((host) => `http://${host}`),
      });
      await conformance_server().connect(transport);
    }
    await transport.handleRequest(request, response);
  });
  listener.listen(port, "127.0.0.1", () => console.log(`http://127.0.0.1:${listener.address().port}/mcp`));
}

if (process.argv[2] === "--http") {
  await serve_http(Number(process.argv[3] ?? 0));
} else {
  const { StdioServerTransport } = await load("@modelcontextprotocol/sdk/server/stdio.js");
  await conformance_server().connect(new StdioServerTransport());
}
