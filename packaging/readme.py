#!/usr/bin/env python3
"""Runs the first two blocks of the README below "Try it", unchanged: the one for machines without Rust, and the one for machines
with Rust. The environment makes the package managers take the packages of this clone, because no registry has them yet.

Each block starts the demo on port 7070, in a network of its own, and is used through it. Needs root for the network, uv, and the wheel
of packaging/wheel.sh.

usage: packaging/readme.py
"""

import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
WHEELS = ROOT / "target/packages/python"
DEADLINE = 600
# Runs in the network: the block in the background, and a client once the demo listens.
RUN = """
ip link set lo up
: >"$2"
sh -eu "$1" >"$2" 2>&1 &
block=$!
until grep -q "listening on ws://127.0.0.1:7070/" "$2"; do
  kill -0 "$block" 2>/dev/null || { cat "$2"; exit 1; }
  sleep 0.2
done
"$3" "$4" --connect 7070 "/echo?$(grep -om 1 'token=[0-9a-f]*' "$2")" ""
"""


def blocks():
    """The blocks of shell commands below "Try it"."""
    text = (ROOT / "README.md").read_text()
    section = text.split("\n## Try it\n")[1].split("\n## ")[0]
    return re.findall(r"^```sh\n(.*?)^```", section, re.M | re.S)


def run(block, environment, home):
    script, log = home / "block.sh", home / "log"
    script.write_text(block)
    process = subprocess.Popen(
        ["/usr/bin/unshare", "--net", "--pid", "--fork", "--kill-child", "/bin/bash", "-euc", RUN, "readme", script, log]
        + [shutil.which("python3", path="/usr/bin"), ROOT / "packaging/talk.py"],
        env={"HOME": str(home), "LANG": "C.UTF-8", **environment},
        cwd=home,
        start_new_session=True,
    )
    try:
        assert process.wait(DEADLINE) == 0, f"this block fails:\n{block}\n{log.read_text()}"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def without_rust(block, home):
    environment = {
        "PATH": f"{pathlib.Path(shutil.which('uv')).parent}:/usr/bin:/bin:/usr/sbin:/sbin",
        "UV_FIND_LINKS": str(WHEELS),
        "UV_OFFLINE": "1",
        "UV_PYTHON": shutil.which("python3", path="/usr/bin"),
    }
    assert not shutil.which("cargo", path=environment["PATH"]), "Rust is among the programs of the system"
    run(block, environment, home)


def with_rust(block, home):
    """Puts the crate's package into a folder with its dependencies, which stands for the registry."""
    crates = home / "crates"
    cargo = {"cwd": ROOT, "check": True, "stdout": subprocess.DEVNULL}
    subprocess.run(["cargo", "vendor", "--locked", "--quiet", crates], **cargo)
    subprocess.run(["cargo", "package", "--locked", "--allow-dirty", "--no-verify", "--quiet"], **cargo)
    (archive,) = (ROOT / "target/package").glob("outrigger-*.crate")
    with tarfile.open(archive) as package:
        package.extractall(crates, filter="data")
    checksum = {"files": {}, "package": hashlib.sha256(archive.read_bytes()).hexdigest()}
    (crates / archive.stem / ".cargo-checksum.json").write_text(json.dumps(checksum))
    (home / ".cargo").mkdir()
    (home / ".cargo/config.toml").write_text(
        f'[source.crates-io]\nreplace-with = "crates"\n[source.crates]\ndirectory = "{crates}"\n[net]\noffline = true\n'
    )
    environment = {
        "PATH": f"{home}/.cargo/bin:{pathlib.Path(shutil.which('cargo')).parent}:/usr/bin:/bin:/usr/sbin:/sbin",
        "RUSTUP_HOME": os.environ.get("RUSTUP_HOME", str(pathlib.Path.home() / ".rustup")),
        # Compiles in a third of the time. The text of the block stays as it is.
        "CARGO_PROFILE_RELEASE_OPT_LEVEL": "0",
        "CARGO_PROFILE_RELEASE_LTO": "false",
        "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
    }
    run(block, environment, home)


def main():
    package, source = blocks()[:2]
    for name, try_it, block in ("without Rust", without_rust, package), ("with Rust", with_rust, source):
        with tempfile.TemporaryDirectory() as home:
            try_it(block, pathlib.Path(home))
        print(f"readme: the block for machines {name} works: {'; '.join(block.splitlines())}")


sys.exit(main())
