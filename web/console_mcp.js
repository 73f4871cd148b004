// The section "MCP": the sessions of MCP servers.

import { $ } from "./common.js";
import { showSection } from "./console_page.js";
import { cpuShare, usageColumns } from "./console_programs.js";
import { of, routeFields } from "./console_state.js";
import { Table } from "./console_table.js";
import { formatCount, plain, setText } from "./view.js";

const mcpTable = new Table("mcp", 640, {
  key: ({ path, id }) => `${path} ${id}`,
  title: ({ id }) => `MCP session ${id}…`,
  none: "No sessions. Stateless servers and clients of newer revisions begin none.",
  columns: [
    { name: "Session", kind: "main text mono", text: ({ id }) => `${plain(id)}…` },
    { name: "Server", kind: "tight", text: ({ path }) => path },
    { name: "Owner", kind: "text", text: ({ owner }) => plain(owner ?? "") },
    { name: "Revision", kind: "tight", text: ({ version }) => plain(version ?? "") },
    { name: "Pending requests", kind: "number", value: ({ pending }) => pending, text: ({ pending }) => formatCount(pending ?? 0) },
    ...usageColumns,
  ],
});

/** Shows the sessions that the status lists. `uptime_s` is the time of the status. */
export function showMcp({ uptime_s }) {
  const routes = of("mcp");
  if (!routes.length) return showSection("mcp", false);
  const list = routes.flatMap(({ path }) =>
    (routeFields(path).session_list ?? []).map((session) => ({ path, ...session, share: cpuShare(session, uptime_s) })),
  );
  const count = routes.reduce((sum, { path }) => sum + (routeFields(path).sessions ?? 0), 0);
  mcpTable.update(list);
  setText($("mcp-count"), count ? formatCount(count) : "");
  return showSection("mcp", true, count);
}
