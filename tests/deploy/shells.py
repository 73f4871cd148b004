#!/usr/bin/env python3
"""Checks the completions of `outrigger completions` in bash, zsh and fish, and the manual page with mandoc and man.

Each shell is a real one, and is interactive where it can be: the keys are typed into a terminal, and the test reads what the shell
offers. bash, bash-completion, zsh, fish, mandoc and man must be installed.

usage: tests/deploy/shells.py [PROGRAM]      by default target/release/outrigger
"""

import os
import pathlib
import pty
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time

PROGRAM = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "target/release/outrigger").resolve()
PATIENCE = 30.0

# What is on the line before the cursor, some of what must be offered, and some of what must not.
CASES = [
    ("outrigger ", ["agent", "terminal", "completions", "man", "token"], ["--port", "notes.txt"]),
    ("outrigger at", ["attach"], ["agent"]),
    ("outrigger agent --prot", ["--protocol"], ["--max-clients"]),
    ("outrigger agent --protocol ", ["acp", "jsonrpc"], ["notes.txt"]),
    ("outrigger pipe --framing ", ["lines", "raw", "content-length"], []),
    ("outrigger echo --log ", ["off", "error", "warn", "info", "debug", "trace"], ["json"]),
    ("outrigger echo --log-format ", ["text", "json"], ["debug"]),
    ("outrigger echo --p", ["--port", "--path", "--port-range"], ["--log", "--give-up"]),
    ("outrigger serve --p", ["--port"], ["--path"]),
    ("outrigger echo --max-clients ", [], ["notes.txt", "--log"]),
    ("outrigger echo -p 0 --lo", ["--log", "--log-format"], []),
    ("outrigger echo --config no", ["notes.txt"], ["--log"]),
    ("outrigger connect --gi", ["--give-up"], []),
    ("outrigger connect --l", ["--linger", "--log"], ["--listen"]),
    ("outrigger token ", ["add", "list", "revoke"], ["notes.txt"]),
    ("outrigger token add ada --scope ", ["all", "use", "watch", "metrics"], []),
    ("outrigger completions ", ["bash", "zsh", "fish"], []),
    ("outrigger help te", ["terminal"], ["token"]),
    ("outrigger terminal --read-only -- env", ["env"], ["--env"]),
    ("outrigger terminal -- cat no", ["notes.txt"], ["--once", "--no-auth"]),
]

# Where the shell knows the options of other programs.
PROGRAM_CASES = [
    ("outrigger terminal -- ls --al", ["--all", "--almost-all"], ["--allow-host"]),
    ("outrigger pipe --shared -- ls --siz", ["--size"], ["--shared"]),
]


class Terminal:
    """A shell on a terminal."""

    def __init__(self, args, folder):
        pid, self.master = pty.fork()
        if pid == 0:
            os.chdir(folder)
            environ = {"PATH": f"{PROGRAM.parent}:{os.environ['PATH']}", "HOME": folder, "TERM": "dumb", "LC_ALL": "C.UTF-8"}
            os.execvpe(args[0], args, environ)
        self.pid = pid
        self.output = b""

    def type(self, keys):
        os.write(self.master, keys.encode())

    def until(self, mark):
        """The next output, up to this mark."""
        deadline = time.monotonic() + PATIENCE
        while mark.encode() not in self.output:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.master], [], [], left)[0]:
                raise AssertionError(f"no {mark!r} in {self.output.decode()!r}")
            try:
                self.output += os.read(self.master, 65536)
            except OSError as error:
                raise AssertionError(f"the shell has exited: {self.output.decode()!r}") from error
        before, self.output = self.output.split(mark.encode(), 1)
        return before.decode()

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.master)


def script(shell, folder):
    text = subprocess.run([PROGRAM, "completions", shell], check=True, capture_output=True, text=True).stdout
    name = pathlib.Path(folder, "_outrigger")
    name.write_text(text)
    subprocess.run([shell, "-n", name], check=True)
    return name


def offered_by_bash(line, folder, before=":"):
    """Inserts all completions into the line, which then becomes the arguments of printf."""
    shell = Terminal(["bash", "--norc", "--noprofile", "-i"], folder)
    try:
        # The marks are split, so that the echo of the line is not taken for the output.
        shell.type(f"PS1= PS2=; bind 'set enable-bracketed-paste off'; {before}; source ./_outrigger; printf '%s%s\\n' RE ADY\n")
        shell.until("READY")
        shell.type(f"{line}\x1b*\x01printf '%s ' BE'GIN' \x05 ; printf '%s%s\\n' EN D\n")
        shell.until("BEGIN ")
        words = shell.until("END").split()
    finally:
        shell.close()
    kept = len(line.split()) - (not line.endswith(" "))
    return words[kept:]


def offered_with_bash_completion(line, folder):
    return offered_by_bash(line, folder, "source /usr/share/bash-completion/bash_completion")


# Prints what the functions of zsh offer, and adds it.
HOOK = r"""
PROMPT= RPROMPT=
autoload -Uz compinit && compinit -D
$LOAD
compadd() {
  if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then
    builtin compadd "$@"
    return
  fi
  local -a hits
  builtin compadd -O hits "$@"
  (($#hits)) && print -r -- "HIT ${(j: :)hits}"
  builtin compadd "$@"
}
finish() { print -r -- "EN""D"; }
comppostfuncs=(finish)
print "REA""DY"
"""


def offered_by_zsh(line, folder, load="source ./_outrigger"):
    pathlib.Path(folder, "hook.zsh").write_text(HOOK.replace("$LOAD", load))
    shell = Terminal(["zsh", "-f", "-i"], folder)
    try:
        shell.type("source ./hook.zsh\n")
        shell.until("READY")
        shell.type(line + "\t")
        output = shell.until("END")
    finally:
        shell.close()
    hits = [row.split("HIT ", 1)[1] for row in output.replace("\r", "").split("\n") if "HIT " in row]
    return [word.rstrip("=") for row in hits for word in row.split()]


def offered_by_autoload(line, folder):
    """As `offered_by_zsh`, with the script in a directory of $fpath. -u accepts a directory below /tmp."""
    return offered_by_zsh(line, folder, "fpath=($PWD $fpath); compinit -u -D")


def offered_by_fish(line, folder):
    environ = {"PATH": f"{PROGRAM.parent}:{os.environ['PATH']}", "HOME": folder, "LC_ALL": "C.UTF-8"}
    command = f"source ./_outrigger; complete -C {shlex.quote(line)}"
    output = subprocess.run(
        ["fish", "-c", command], cwd=folder, env=environ, check=True, capture_output=True, text=True, timeout=PATIENCE
    )
    assert not output.stderr, output.stderr
    return [row.split("\t")[0] for row in output.stdout.splitlines()]


def check_shell(shell, offered, cases):
    with tempfile.TemporaryDirectory() as folder:
        script(shell, folder)
        pathlib.Path(folder, "notes.txt").touch()
        for line, included, excluded in cases:
            words = offered(line, folder)
            for word in included:
                assert word in words, f"{shell}: {line!r} does not offer {word!r}: {words}"
            for word in excluded:
                assert word not in words, f"{shell}: {line!r} offers {word!r}: {words}"
    print(f"{shell}: {len(cases)} lines ok")


def check_manual():
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder, "outrigger.1")
        page.write_bytes(subprocess.run([PROGRAM, "man"], check=True, capture_output=True).stdout)
        lint = subprocess.run(["mandoc", "-T", "lint", page], capture_output=True, text=True)
        assert lint.returncode == 0 and not lint.stdout and not lint.stderr, lint
        environ = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "100", "MAN_KEEP_FORMATTING": ""}
        shown = subprocess.run(["man", "--warnings=w", "-P", "cat", "-l", page], env=environ, check=True, capture_output=True, text=True)
        assert not shown.stderr, shown.stderr
        for section in [
            "NAME", "SYNOPSIS", "DESCRIPTION", "COMMANDS", "OPTIONS", "EXAMPLES", "FILES", "ENVIRONMENT", "EXIT STATUS", "SIGNALS", "SEE ALSO",
        ]:
            assert f"\n{section}\n" in shown.stdout, section
        assert "-p, --port N" in shown.stdout
    print("man: ok")


if __name__ == "__main__":
    check_shell("bash", offered_by_bash, CASES)
    check_shell("bash", offered_with_bash_completion, CASES + PROGRAM_CASES)
    check_shell("zsh", offered_by_zsh, CASES + PROGRAM_CASES)
    check_shell("zsh", offered_by_autoload, CASES[:3])
    check_shell("fish", offered_by_fish, CASES + PROGRAM_CASES)
    check_manual()
