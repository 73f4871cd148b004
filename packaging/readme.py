#!/usr/bin/env python3
"""Is a new user: follows the README from its first line to its last, in a user account of its own with an empty home, with the
registries as they are. Each block of shell commands is pasted, as it stands, into one interactive shell. What the README shows
below a block must appear. Prints the time of each step and the disk that it took.

The only difference to a user of today: `git clone` takes this clone in the place of the repository, by a setting of git.

usage: packaging/readme.py [--tests]      needs root, Rust and a C compiler; --tests also runs `cargo test`, which the text names
"""

import argparse
import fcntl
import os
import pathlib
import pty
import pwd
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
USER = "outrigger-reader"
# How this machine reaches its network.
NETWORK = re.compile("(?i).*_proxy|SSL_CERT_(FILE|DIR)")
DEADLINE = 900
PROMPT = "reader-is-done"


def blocks():
    """The blocks of shell commands with the output that is shown below each, in the order of the README."""
    text = (ROOT / "README.md").read_text()
    text = re.sub(r"^<!-- after the first release\n.*?^-->\n", "", text, flags=re.M | re.S)
    found = re.findall(r"^```sh\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", text, re.M | re.S)
    assert len(found) >= 8, "the README has lost its blocks"
    return found


class Shell:
    """An interactive bash of the new user on a terminal."""

    def __init__(self, home, rust):
        environment = {
            **{name: value for name, value in os.environ.items() if NETWORK.fullmatch(name)},
            "HOME": home,
            "USER": USER,
            "TERM": "xterm",
            "LANG": "C.UTF-8",
            "SHELL": "/bin/bash",
            # Rust is installed, but nothing was downloaded with it.
            "PATH": f"{rust}/bin:/usr/local/bin:/usr/bin:/bin",
            "PS1": f"{PROMPT} $? $ ",
        }
        account = pwd.getpwnam(USER)
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.setgroups([])
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)
            os.chdir(home)
            os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "-i"], environment)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        self.output = ""
        self.wait_for(f"{PROMPT} 0 \\$ $")

    def read(self, deadline):
        """Reads what arrives; false if nothing does until the deadline."""
        ready, _, _ = select.select([self.terminal], [], [], max(0, min(0.5, deadline - time.monotonic())))
        if ready:
            self.output += os.read(self.terminal, 1 << 16).decode(errors="replace")
        assert time.monotonic() < deadline, f"nothing more happens:\n{self.output[-3000:]}"

    def wait_for(self, pattern, patience=60):
        deadline = time.monotonic() + patience
        while not (match := re.search(pattern, self.output)):
            self.read(deadline)
        return match

    def type(self, text):
        os.write(self.terminal, text.encode())

    def paste(self, block):
        """Pastes a block as a terminal does, and returns the output when the prompt is back. The answers are for programs that ask."""
        self.output = ""
        for line in block.splitlines():
            self.type(line + "\n")
        return self.output


def expected(shown):
    """A pattern for the output that the README shows: `...` is any text in its line."""
    lines = [".*".join(re.escape(part) for part in line.split("...")) for line in shown.strip().splitlines()]
    return lines


def run_demo(shell, times):
    """The first block: waits until the demo listens, uses what it prints as a reader would, and ends it."""
    begin = time.monotonic()
    console = shell.wait_for(r"(http://\S+/)#token=(\w+)", DEADLINE)
    shell.wait_for(r"\^C ends the demo")
    times.append(("clone, build and start the demo", time.monotonic() - begin))
    page = urllib.request.Request(console.group(1), headers={"Accept": "text/html"})
    with urllib.request.urlopen(page, timeout=30) as answer:
        assert b"<html" in answer.read(), "the console is not a page"
    commands = re.findall(r"^  # (.*)\r?\n  (.*\S)\r?$", shell.output, re.M)
    assert len(commands) >= 5, shell.output
    account = pwd.getpwnam(USER)
    for what, command in commands:
        # In another folder and another shell.
        asked = "echo $((6*7)); exit\n" if "attach" in command else "hello\n"
        done = subprocess.run(
            ["/bin/sh", "-c", command], input=asked, text=True, capture_output=True, timeout=60, cwd="/",
            env={"PATH": "/usr/bin:/bin", "HOME": account.pw_dir}, user=account.pw_uid, group=account.pw_gid, extra_groups=[],
        )  # fmt: skip
        assert done.returncode == 0 and done.stdout.strip(), f"{what}: {command}\n{done.stdout}{done.stderr}"
        print(f"readme: the demo's command works: {what.split(':')[0]}")
    shell.output = ""
    shell.type("\x03")
    shell.wait_for(f"{PROMPT} \\d+ \\$ $")


def run(shell, block, shown, times):
    begin = time.monotonic()
    shell.paste(block)
    if "cargo demo" in block:
        return run_demo(shell, times)
    if "outrigger attach" in block:
        # The reader looks around in the shell behind the WebSocket, and leaves it.
        shell.wait_for(r"(?s)outrigger attach \S+\r\n.*[$#]\S* $")
        shell.type("echo $((6*7))\n")
        shell.wait_for(r"[\r\n]42\r")
        shell.output = ""
        shell.type("exit\n")
        shell.wait_for(f"{PROMPT} 0 \\$ $")
    last = block.strip().splitlines()[-1]
    shell.type("echo the-block-ends\n")
    shell.wait_for(r"[\r\n]the-block-ends\r\n")
    for line in expected(shown):
        assert re.search(line, shell.output), f"the README shows {line!r}, and this happens:\n{shell.output[-3000:]}"
    for failure in ("command not found", "No such file", "error: ", "Traceback"):
        assert failure not in shell.output, f"{last}:\n{shell.output[-3000:]}"
    times.append((last[:60], time.monotonic() - begin))


def disk(folder):
    return int(subprocess.run(["du", "-sm", folder], capture_output=True, text=True, check=True).stdout.split()[0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tests", action="store_true", help="also run cargo test, which the text names")
    options = parser.parse_args()
    if "READER_IN_NAMESPACE" not in os.environ:
        # The mount below ends with the script.
        os.execvpe("unshare", ["unshare", "--mount", *sys.orig_argv], {**os.environ, "READER_IN_NAMESPACE": "1"})
    subprocess.run(["userdel", "--force", USER], capture_output=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="reader-"))
    folder.chmod(0o755)
    home, rust = folder / "home", folder / "rust"
    subprocess.run(["useradd", "--create-home", "--home-dir", home, "--shell", "/bin/bash", USER], check=True)
    shell = None
    try:
        # The user cannot enter the home of the user who has installed Rust.
        sysroot = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True).stdout.strip()
        rust.mkdir()
        subprocess.run(["mount", "--bind", sysroot, rust], check=True)
        repository = re.search("^REPOSITORY=(.*)$", (ROOT / "packaging/names").read_text(), re.M).group(1)
        settings = f'[url "{ROOT}"]\n\tinsteadOf = {repository}\n[safe]\n\tdirectory = *\n'
        (home / ".gitconfig").write_text(settings)
        shell = Shell(str(home), rust)
        times = []
        for block, shown in blocks():
            run(shell, block, shown, times)
            print(f"readme: ok: {block.strip().splitlines()[0][:100]}", flush=True)
        target = home / "outrigger/target"
        sizes = [f"{disk(target)} MB in target after the blocks"]
        if options.tests:
            begin = time.monotonic()
            # On one line: a test that uses the terminal may discard what was typed ahead.
            shell.paste("cargo test; echo the-tests-ended-with-$?")
            shell.wait_for(r"[\r\n]the-tests-ended-with-0\r", DEADLINE)
            times.append(("cargo test", time.monotonic() - begin))
            sizes.append(f"{disk(target)} MB after cargo test")
        sizes.append(f"{disk(home / '.cargo')} MB in ~/.cargo")
        for what, seconds in times:
            print(f"readme: {seconds:6.1f} s  {what}")
        print(f"readme: {', '.join(sizes)}")
    finally:
        if shell:
            os.kill(shell.pid, signal.SIGHUP)
        subprocess.run(["pkill", "-KILL", "-u", USER], capture_output=True)
        time.sleep(0.2)
        subprocess.run(["userdel", "--force", USER], capture_output=True)
        subprocess.run(["umount", "--lazy", rust], capture_output=True)
        subprocess.run(["rm", "-rf", "--one-file-system", folder], check=True)


if __name__ == "__main__":
    sys.exit(main())
