"""An agent's view of examples/terminal_mcp.py behind `outrigger mcp`: vim, less, a Python prompt and `git rebase -i`, with waits for what
the screen shows and without a fixed delay.

env: OUTRIGGER
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request

OUTRIGGER = os.environ["OUTRIGGER"]
EXAMPLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/terminal_mcp.py")


def start(*args):
    """Starts a server on a free port. Returns it and its address."""
    command = [OUTRIGGER, args[0], "--no-auth", "--listen", "127.0.0.1:0", "--log", "warn", *args[1:]]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return server, re.search(r"(?:http|ws)://(\S+)", server.stdout.readline())[1].rstrip("/")


class Agent:
    """A client of the MCP server."""

    def __init__(self, url):
        self.url, self.ids, self.session = url, 0, None
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        self.ask("initialize", hello)
        tools = self.ask("tools/list", {})["tools"]
        assert [tool["name"] for tool in tools] == ["run", "screen", "type", "wait"], tools

    def ask(self, method, params):
        self.ids += 1
        body = json.dumps({"jsonrpc": "2.0", "id": self.ids, "method": method, "params": params}).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if self.session:
            headers["Mcp-Session-Id"] = self.session
        with urllib.request.urlopen(urllib.request.Request(self.url, body, headers)) as answer:
            self.session = answer.headers.get("Mcp-Session-Id", self.session)
            text = answer.read().decode()
        if not text.startswith("{"):
            text = [line[5:] for line in text.splitlines() if line.startswith("data:") and '"id"' in line][-1]
        return json.loads(text)["result"]

    def use(self, tool, **arguments):
        result = self.ask("tools/call", {"name": tool, "arguments": arguments})
        text = result["content"][0]["text"]
        assert not result.get("isError"), text
        return text

    def run(self, command, *args, **options):
        text = self.use("run", command=command, args=list(args), **options)
        return Terminal(self, re.match(r"terminal (\S+)\n", text)[1])


class Terminal:
    def __init__(self, agent, terminal):
        self.agent, self.terminal = agent, terminal

    def type(self, text="", *keys):
        return self.agent.use("type", terminal=self.terminal, text=text, keys=list(keys))

    def wait(self, **conditions):
        text = self.agent.use("wait", terminal=self.terminal, timeout_ms=60_000, **conditions)
        assert not text.startswith("[timeout"), text
        return text

    def expect_exit(self):
        text = self.wait(exit=True)
        assert "exit code 0]" in text, text


def vim(agent, folder):
    file = os.path.join(folder, "notes.txt")
    terminal = agent.run("vim", "-u", "NONE", file)
    terminal.wait(text="notes.txt")
    terminal.type("ihello from an agent", "Escape")
    terminal.wait(text="hello from an agent")
    terminal.type(":wq", "Enter")
    terminal.expect_exit()
    assert open(file).read() == "hello from an agent\n"


def less(agent, folder):
    file = os.path.join(folder, "long.txt")
    with open(file, "w") as out:
        out.writelines(f"line {number}\n" for number in range(1, 501))
    terminal = agent.run("less", file)
    terminal.wait(text="line 23\n")
    terminal.type("", "PageDown")
    terminal.wait(text="line 46\n")
    terminal.type("G")
    assert "line 500" in terminal.wait(text="(END)")
    terminal.type("q")
    terminal.expect_exit()


def python(agent, _):
    terminal = agent.run(sys.executable, "-q")
    terminal.wait(regex=r">>>$")
    terminal.type("sum(range(101))", "Enter")
    terminal.wait(text="5050")
    terminal.type("", "C-d")
    terminal.expect_exit()


def rebase(agent, folder):
    repository = os.path.join(folder, "repository")

    def git(*args):
        names = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", *names, "-C", repository, *args], check=True, capture_output=True, text=True).stdout

    os.mkdir(repository)
    git("init", "-q")
    for number in range(3):
        git("commit", "-q", "--allow-empty", "-m", f"change {number}")
    env = {"GIT_EDITOR": "vim -u NONE", "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@example.org"}
    terminal = agent.run("git", "rebase", "-i", "--keep-empty", "HEAD~2", cwd=repository, env=env, cols=160)
    terminal.wait(regex=r"^pick \w+ .*change 2")
    terminal.type("jcwsquash", "Escape")
    terminal.wait(regex=r"^squash \w+ .*change 2")
    terminal.type(":wq", "Enter")
    terminal.wait(text="This is a combination of 2 commits")
    terminal.type(":wq", "Enter")
    terminal.expect_exit()
    assert git("log", "--format=%s").splitlines() == ["change 1", "change 0"]
    assert "change 2" in git("log", "-1", "--format=%b")


def main():
    processes, address = start("processes")
    server, url = start("mcp", "--", sys.executable, EXAMPLE, f"http://{address}")
    try:
        agent = Agent(f"http://{url}")
        with tempfile.TemporaryDirectory() as folder:
            for use in vim, less, python, rebase:
                use(agent, folder)
                print(f"  an agent uses {use.__name__} through MCP ok")
        error = agent.ask("tools/call", {"name": "screen", "arguments": {"terminal": "../status"}})
        assert error["isError"] and "not a UUID" in error["content"][0]["text"], error
    finally:
        for child in server, processes:
            child.terminate()
            child.wait()


main()
