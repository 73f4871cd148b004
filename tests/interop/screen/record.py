#!/usr/bin/env python3
"""Records sessions of full-screen programs, with random keys and sizes, for compare.mjs.

usage: tests/interop/screen/record.py DIRECTORY [COUNT] [PROGRAM...]   COUNT sessions of each program, 30 by default

Each session is a file NAME.out with the output and a file NAME.json with the size. The keys depend on the name alone. Needs the
programs that are recorded: vim less tmux mc htop fzf btop emacs nvim bash. The program `random` is made up: sequences of all kinds.
"""
import fcntl
import json
import os
import pty
import random
import select
import shutil
import signal
import struct
import sys
import tempfile
import termios
import time

WIDE = ["漢字かな混じり文", "한국어 텍스트", "é ü ñ e\u0301 a\u0308\u0323", "😀 👍🏽 ❤️ 🇩🇪🇫🇷", "👩‍👩‍👧‍👦 🏳️‍🌈 1️⃣",
        "ไทย ภาษา हिन्दी क्षि", "─│┌┐└┘ ═║ ▒█", "plain text only", "ＦＵＬＬ　ｗｉｄｔｈ", "עברית العربية"]
ARROWS = ["\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D"]
KEYS = {
    "vim": ["j", "k", "l", "w", "\x06", "\x02", "G", "gg", "dd", "p", "u", "ihello 漢字\x1b", "o👍🏽 new\x1b", ":split\r", ":vsplit\r", "\x17w",
            ":set number!\r", ":syntax on\r", "/the\r", "n", "v5j", "\x1b", ">>", ":q\r", ":e!\r", "zz", "A tail\x1b", ":help\r",
            ":set list!\r", "\x05", "\x19", "J", "yyp", ":set background=light\r"],
    "less": [" ", "b", "j", "k", "G", "g", "/the\r", "n", "d", "u", "-S\r", "-N\r", "h", "q", "F", "\x03", "20p", *ARROWS],
    "tmux": ["\x02%", "\x02\"", "\x02o", "\x02z", "\x02c", "\x02n", "\x02[", "q", "ls -l --color=always /etc\r", "seq 50\r", "\x02 ", "clear\r",
             "printf '漢字 👍🏽 e\u0301\\n'\r", "\x02t", "q", "top -b -n1 | head -20\r", "\x02x", "n", "\x02?", "q", "\x02w", "q"],
    "mc": [*ARROWS, "\t", "\r", "\x1bOR", "\x1b[21~", "\x1bOS", "\x1b\x1b", "\x1b[5~", "\x1b[6~", "\x1b9", "\x1b3", "ls\r", "\x0f", "\x1bt"],
    "htop": [*ARROWS, "t", "H", "M", "P", "\x1b", "h", "\x1b", "F5", "\x1bOQ", "\x1b", "\x1b[6~", "I", "/ba\x1b", " "],
    "fzf": [*"etcabon", "\x7f", "\x10", "\x0e", *ARROWS, "\t", "\x15", "漢"],
    "btop": [*ARROWS, "m", "\x1b", "p", "1", "2", "3", "4", "+", "-", "f", "e", "\r", "r", "h", "\x1b"],
    "emacs": ["\x0e", "\x10", "\x16", "\x1bv", "\x1b<", "\x1b>", "\x182", "\x183", "\x181", "\x18o", "hello 漢字 ", "\x0b", "\x19", "\x18b\r",
              "\x1bx", "\x07", "\x13the", "\x07", "👍🏽 ", "\x1f", "\x18h", "\x07", "\x1bq"],
    "bash": ["ls --color=always /etc | head -40\r", "printf '%s\\n' WIDE\r", "echo WIDE", "\x1b[D", "\x7f", "\x01", "\x05", "\x0b", "\r", "seq 60\r",
             "clear\r", "\x12ec", "\x07", "\x1b[A", "printf 'a\\tb\\tc\\n'\r", "for i in 1 2 3; do printf '\\e[3%dm%s\\e[m ' $i WIDE; done\r",
             "printf '\\e[5;10H\\e[1;44mbox\\e[m\\n'\r", "printf 'x%.0s' {1..300}; echo\r", "tput rep 2>/dev/null; tput smul; echo WIDE; tput rmul\r"],
}
KEYS["nvim"] = KEYS["vim"]


def text(random_source):
    """A file of some lines in many languages."""
    lines = []
    for number in range(400):
        words = [random_source.choice(["the", "quick", "fox", "int main(void) {", "// comment", "\"text\"", "return 0;", "# title",
                                       *WIDE]) for _ in range(random_source.randrange(0, 22))]
        lines.append(f"{number}\t" + " ".join(words))
    return "\n".join(lines) + "\n"


def command(program, home, random_source):
    file = os.path.join(home, random_source.choice(["a.c", "b.txt", "c.md"]))
    with open(file, "w", encoding="utf-8") as out:
        out.write(text(random_source))
    return {
        "vim": ["vim", "-u", "DEFAULTS", "-n", file],
        "nvim": ["nvim", "--clean", "-n", file],
        "less": ["less", *random_source.choice([[], ["-R"], ["-S"], ["-N"]]), file],
        "tmux": ["tmux", "-u", "-L", f"screen{os.getpid()}", "-f", "/dev/null", "new-session", "bash --norc"],
        "mc": ["mc", "-u", home, "/etc"],
        "htop": ["htop", "-d", "3"],
        "fzf": ["bash", "-c", "find /etc 2>/dev/null | fzf --multi --ansi --preview 'head -50 {}'"],
        "btop": ["btop", "--utf-force"],
        "emacs": ["emacs", "-nw", "-Q", file],
        "bash": ["bash", "--norc"],
    }[program]


# Sequences of all kinds, which no program puts together in this way. Not among them: CSI 1 J, at which xterm.js fails in the last
# row, and underlines that DECRC restores, of which xterm.js forgets the style.
PIECES = ["text ", "line\r\n", "more text\r\n", "\t", "\b", "\r", "\n", "\x0b", "漢字", "e\u0301", "\u0301", "😀", "👩\u200d👩", "\u200d", "\ufe0f", "❤",
          "🇩", "1\ufe0f\u20e3", "👍🏽", "🏽", "각", "\u1100", "\u1161", "\u0903", "\xad", "\x1b[31m", "\x1b[1;44m", "\x1b[m", "\x1b[38;5;200m",
          "\x1b[48;2;1;2;3m", "\x1b[4:3mu\x1b[24m", "\x1b[9;53m", "\x1b[22;24m", "\x1b[38:2::9:8:7m", "\x1b[58;5;3m", "\x1b[H", "\x1b[3;5H", "\x1b[99;99H", "\x1b[2J", "\x1b[J",
          "\x1b[K", "\x1b[1K", "\x1b[2K", "\x1b[2;4r", "\x1b[r", "\x1bM", "\x1bD", "\x1bE", "\x1b7", "\x1b8", "\x1b[s", "\x1b[u", "\x1b[?1049h",
          "\x1b[?1049l", "\x1b[?47h", "\x1b[?47l", "\x1b[?1048h", "\x1b[?6h", "\x1b[?6l", "\x1b[?7l", "\x1b[?7h", "\x1b[4h", "\x1b[4l", "\x1b(0", "\x1b(B", "lqqk", "\x0e",
          "\x0f", "\x1b)0", "\x1bn", "\x1b[2L", "\x1b[2M", "\x1b[3@", "\x1b[3P", "\x1b[3X", "\x1b[2S", "\x1b[2T", "\x1bH", "\x1b[g", "\x1b[3g", "\x1b[A", "\x1b[2B",
          "\x1b[3C", "\x1b[2D", "\x1b[2E", "\x1b[F", "\x1b[9G", "\x1b[3d", "\x1b[2I", "\x1b[Z", "\x1b]2;title\x07", "\x1b]0;other\x1b\\", "\x1bP1$r0m\x1b\\", "\x1b[!p",
          "\x1b[?25l", "\x1b[?25h", "\x1b[?2004h", "\x1b[?1000h", "\x1b[?1002l", "\x1b[?1006h", "\x1b[?6l\x1b#8", "\x1b[99999999999999999999C", "\x1b[1;2;3;5m", "\x9b5;5H",
          "\x85", "\x1b[3\n1m", "\x18", "\x1b[1\x1b[2m", "\x1b[?45h", "\x1b[5 q", "\x1b[2 @", "\x1b[ A", "\x1b[2'}", "\x1b['~", "\x1b[?12h", "\x1b[?2026h",
          "\x1b[?2026l", "\x1b[20h", "\x1b[20l", "\x1b=", "\x1b>", "\x1b[?66h", "\x1b[?1h", "\x1b[?1004h", "\x1bc", "x\x1b[4b", "漢\x1b[4b", "e\u0301\x1b[4b", "\x7f"]


def made_up(source):
    """Output that no program writes, without what docs/protocols.md lists as different."""
    known = [piece for piece in PIECES if piece not in ("\x1b[?7l", "\x1b(0", "\x1b)0", "\x0e", "\x1bn")]
    if source.randrange(3) == 0:
        known = [piece for piece in PIECES if piece.isascii() and piece not in ("\x1b7", "\x1b8", "\x1b[s", "\x1b[u", "\x1b[?1048h")]
    pieces = []
    for _ in range(source.randrange(20, 600)):
        kind = source.randrange(12)
        pieces.append("x" * source.randrange(60) if kind == 0 else source.choice(known[:26]) if kind < 5 else source.choice(known))
    return "".join(pieces).encode()


# What xterm.js answers to the questions of programs.
ANSWERS = {b"\x1b[c": b"\x1b[?1;2c", b"\x1b[0c": b"\x1b[?1;2c", b"\x1b[>c": b"\x1b[>0;276;0c", b"\x1b[6n": b"\x1b[1;1R", b"\x1b[5n": b"\x1b[0n"}


def record(program, index, directory):
    name = f"{program}-{index:02}"
    source = random.Random(name)
    # btop shows nothing but a complaint in a small window.
    least = (24, 80) if program == "btop" else (8, 30)
    rows, cols = source.choice([(24, 80), (source.randrange(least[0], 50), source.randrange(least[1], 150))])
    if program == "random":
        rows, cols = source.randrange(2, 8), source.randrange(5, 24)
        save(directory, name, rows, cols, output := made_up(source))
        return len(output)
    home = tempfile.mkdtemp(prefix="screen-")
    arguments = command(program, home, source)
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM=source.choice(["xterm-256color", "xterm-256color", "xterm"]), LANG="C.UTF-8", LC_ALL="C.UTF-8", HOME=home,
                          COLORTERM="truecolor", PS1="$ ", SHELL="/bin/bash")
        os.environ.pop("TMUX", None)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.chdir(home)
        # The size has to be right before the program asks for it.
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
        os.execvp(arguments[0], arguments)
    output = bytearray()

    def read(quiet, most):
        """Reads until there is no output for a while."""
        end = time.monotonic() + most
        while time.monotonic() < end and select.select([terminal], [], [], quiet)[0]:
            try:
                data = os.read(terminal, 65536)
            except OSError:
                return False
            if not data:
                return False
            output.extend(data)
            for question, answer in ANSWERS.items():
                for _ in range(data.count(question)):
                    os.write(terminal, answer)
        return True

    alive = read(1.2 if program == "emacs" else 0.4, 3)
    for _ in range(source.randrange(15, 45)):
        if not alive or len(output) > 400_000:
            break
        key = source.choice(KEYS[program]).replace("WIDE", "'" + source.choice(WIDE) + "'")
        try:
            os.write(terminal, key.encode())
        except OSError:
            break
        alive = read(0.02, 0.3)
    # Half of the sessions end in the middle of the program.
    if alive and source.random() < 0.5:
        os.kill(child, signal.SIGHUP if program != "tmux" else signal.SIGTERM)
        read(0.2, 1)
    os.close(terminal)
    try:
        os.kill(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    os.waitpid(child, 0)
    if program == "tmux":
        os.system(f"tmux -L screen{os.getpid()} kill-server 2>/dev/null")
    shutil.rmtree(home, ignore_errors=True)
    save(directory, name, rows, cols, output)
    return len(output)


def save(directory, name, rows, cols, output):
    with open(os.path.join(directory, name + ".out"), "wb") as out:
        out.write(output)
    with open(os.path.join(directory, name + ".json"), "w", encoding="utf-8") as out:
        json.dump({"rows": rows, "cols": cols}, out)


def main():
    directory = sys.argv[1]
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 30
    programs = sys.argv[3:] or list(KEYS)
    missing = [program for program in programs if program != "random" and not shutil.which(program)]
    if missing:
        sys.exit(f"record.py: not installed: {' '.join(missing)}")
    os.makedirs(directory, exist_ok=True)
    for program in programs:
        sizes = [record(program, index, directory) for index in range(count)]
        print(f"{program}: {count} sessions, {sum(sizes)} bytes")


if __name__ == "__main__":
    main()
