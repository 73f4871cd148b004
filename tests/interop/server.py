"""`outrigger` as a child process of a test."""

import os
import re
import subprocess

OUTRIGGER = os.environ["OUTRIGGER"]
TLS = os.environ.get("TLS_OPTIONS", "").split()


class Server:
    """Runs `outrigger` with these arguments, and stops it at the end."""

    def __init__(self, command, *args):
        self.command = [OUTRIGGER, command, "--listen", "127.0.0.1:0", "--log", "warn", *TLS, *args]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        found = None
        while not found:
            line = self.process.stdout.readline()
            assert line, "the program has ended"
            found = re.search(r"wss?://\S+", line)
        self.url = found[0]
        return self

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(timeout=30) == 0, "a clean stop"
