"""How many columns bash and vim believe that characters have, beside the server's screen.

usage: tests/interop/screen/widths.py         needs bash, vim and the locale C.UTF-8
env:   OUTRIGGER=target/release/outrigger

The screen's width of a text is where the cursor is after `printf`. In bash, keys move the cursor back over the text, which readline does
by as many columns as it believes. vim puts the cursor behind the text. Both move the cursor of the server's screen, so a program that
believes another width shows it there.

Single characters and letters with marks must have the same width everywhere, and the one of the C library's wcwidth. bash and vim measure
code points and not grapheme clusters, so they may differ in clusters: `CLUSTERS` has these, with the columns on the screen.
"""

import ctypes
import json
import locale
import os
import re
import subprocess
import sys
import urllib.request

OUTRIGGER = os.environ.get("OUTRIGGER", os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../target/release/outrigger"))
SAME = {
    "a letter": "é", "Greek": "λ", "Cyrillic": "Ж", "a letter and a mark": "e\u0301", "a letter and two marks": "a\u0308\u0323",
    "Hebrew": "שלום", "Arabic": "مرحبا", "Thai": "ภาษา", "Thai with marks": "ที่นี้", "an ideograph": "漢", "ideographs": "漢字かな", "Hangul": "한국어",
    "full width": "ＦＵＬＬ", "half width": "ｶﾀｶﾅ", "lines": "─│┌┐", "blocks": "▒█", "a wide punctuation mark": "。", "an emoji": "😀",
    "emoji": "👍🚀🎉", "an emoji of Unicode 12": "🦦", "a wide symbol": "⚡", "a check mark": "✅", "a hand": "✋", "a narrow symbol": "❤", "an arrow": "→",
    "an ideograph of plane 2": "𠀀", "a currency": "€",
}
CLUSTERS = {
    "a flag": ("🇩🇪", 2), "two flags": ("🇩🇪🇫🇷", 4), "Hangul of jamo": ("\u1112\u1161\u11ab", 2),
    "a skin tone": ("👍🏽", 2), "a family": ("👩‍👩‍👧‍👦", 2), "a profession": ("👩🏽‍🚀", 2), "a rainbow flag": ("🏳️‍🌈", 2), "a heart as emoji": ("❤️", 2),
    "a keycap": ("1️⃣", 2), "a Devanagari cluster": ("षि", 1), "a Devanagari conjunct": ("क्षि", 2), "a flag of tags": ("🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", 2),
}
PROMPT = 40
ENVIRONMENT = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TERM": "xterm-256color", "PS1": "." * (PROMPT - 1) + " ", "HISTFILE": "", "INPUTRC": "/dev/null"}


def wcwidth(text):
    library = ctypes.CDLL(None)
    library.wcwidth.argtypes = [ctypes.c_wchar]
    return sum(library.wcwidth(character) for character in text)


class Terminals:
    def __init__(self):
        command = [OUTRIGGER, "processes", "--no-auth", "--listen", "127.0.0.1:0", "--log", "warn"]
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.url = re.sub("^ws", "http", re.search(r"(?:http|ws)://[^/\s]+", self.server.stdout.readline())[0])

    def call(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def run(self, *command):
        body = {"command": command[0], "args": command[1:], "allocate_tty": True, "rows": 10, "cols": 120, "env": ENVIRONMENT}
        return Terminal(self, self.call("/process/spawn", body)["process_id"])


class Terminal:
    def __init__(self, terminals, process):
        self.terminals, self.path = terminals, f"/process/{process}"

    def wait(self, **condition):
        answer = self.terminals.call(f"{self.path}/wait", {**condition, "timeout_ms": 30_000})
        assert answer["reason"] not in ("timeout", "exit"), answer
        return answer["screen"]

    def put(self, wanted, **put):
        """Types, and waits until the program has answered, shows what is wanted, and rests."""
        offset = self.terminals.call(f"{self.path}/screen")["offset"]
        self.terminals.call(f"{self.path}/input", put)
        self.wait(changed_since=offset)
        self.wait(text=wanted)
        return self.wait(idle_ms=100)

    def end(self):
        self.terminals.call(f"{self.path}/kill", {"signal": "KILL"})


def on_screen(terminals, text):
    """The columns of the text, and whether the screen shows it whole."""
    terminal = terminals.run("printf", "%s%s", text, "|done")
    screen = terminal.wait(text="|done")
    assert screen["lines"][0] == text + "|done", screen
    return screen["cursor"]["col"] - len("|done")


def in_bash(bash, text, count):
    """What readline goes back over the text, after it has cleared the line."""
    prompt = ENVIRONMENT["PS1"]
    bash.put(prompt.strip(), keys=["C-a", "C-k", "C-l"])
    typed = bash.put(prompt + text, text=text)
    end = typed["cursor"]["col"]
    assert end == PROMPT + count, (text, typed)
    # Further keys than characters do nothing.
    return end - bash.put(prompt, keys=["C-b"] * len(text))["cursor"]["col"]


def in_vim(vim, text):
    """Where vim puts the cursor behind the text."""
    vim.put("~", keys=["Escape"], text=":%d\r")
    # vim may show the parts of a cluster beside each other.
    vim.put("|", text=f"i{text}|")
    return vim.put("|", keys=["Escape"])["cursor"]["col"]


def main():
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    terminals = Terminals()
    wrong = []
    try:
        bash = terminals.run("bash", "--norc", "--noprofile")
        vim = terminals.run("vim", "-u", "NONE", "-N", "-n", "--cmd", "set encoding=utf-8 ambiwidth=single noarabicshape noruler noshowcmd t_u7=")
        bash.wait(text=ENVIRONMENT["PS1"].strip())
        vim.wait(text="~")
        texts = [(name, text, None) for name, text in SAME.items()]
        texts += [(name, text, columns) for name, (text, columns) in CLUSTERS.items()]
        print(f"{'':24} {'screen':>6} {'bash':>5} {'vim':>5} {'wcwidth':>8}")
        for name, text, columns in texts:
            ours = on_screen(terminals, text)
            theirs = [in_bash(bash, text, ours), in_vim(vim, text), wcwidth(text)]
            print(f"{name:24} {ours:6} {theirs[0]:5} {theirs[1]:5} {theirs[2]:8}")
            if columns is None and set(theirs) != {ours} or columns not in (None, ours):
                wrong.append(name)
        for terminal in (bash, vim):
            terminal.end()
    finally:
        terminals.server.terminate()
        terminals.server.wait()
    if wrong:
        sys.exit(f"other widths: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
