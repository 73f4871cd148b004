#!/usr/bin/env python3
"""Does the steps of a Dockerfile in a folder, where no container engine is at hand: COPY from the folder of the Dockerfile, and RUN
by chroot. Checks the steps that only describe the image. Fails at a step that it does not know.

usage: packaging/container/run_steps.py DOCKERFILE ROOT ARCHITECTURE

The base image has to be in ROOT already; for `FROM scratch`, ROOT must be missing or empty.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys


def steps(text):
    """The instructions with their arguments. A line that ends in a backslash continues."""
    joined = re.sub(r"\\\n", " ", text)
    for line in joined.splitlines():
        if line.strip() and not line.startswith("#"):
            instruction, _, rest = line.strip().partition(" ")
            yield instruction, rest.strip()


def copy(context, root, words):
    mode = None
    if words[0].startswith("--chmod="):
        mode = int(words.pop(0).removeprefix("--chmod="), 8)
    *sources, target = words
    target_path = root / target.lstrip("/")
    if target.endswith("/") or len(sources) > 1:
        target_path.mkdir(parents=True, exist_ok=True)
    else:
        target_path.parent.mkdir(parents=True, exist_ok=True)
    for source in sources:
        copied = pathlib.Path(shutil.copy(context / source, target_path))
        if mode is not None:
            copied.chmod(mode)


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__.split("usage: ")[1].splitlines()[0])
    dockerfile, root, architecture = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    assert root.resolve() != pathlib.Path("/"), "ROOT is the system itself"
    variables = {}
    for instruction, rest in steps(dockerfile.read_text()):
        expanded = re.sub(r"\$\{(\w+)\}", lambda found: variables[found[1]], rest)
        match instruction:
            case "FROM" if rest == "scratch":
                root.mkdir(parents=True, exist_ok=True)
                assert not list(root.iterdir()), f"{root} is not empty"
            case "FROM":
                assert (root / "bin/sh").exists(), f"{root} does not have the image {rest}"
            case "ARG":
                name, _, default = rest.partition("=")
                variables[name] = architecture if name == "TARGETARCH" else default
            case "COPY":
                copy(dockerfile.parent, root, expanded.split())
            case "RUN":
                environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
                subprocess.run(["chroot", root, "/bin/sh", "-c", expanded], check=True, env=environment)
            case "USER":
                name = rest.split(":")[0]
                passwd = root / "etc/passwd"
                known = passwd.exists() and any(line.startswith(f"{name}:") for line in passwd.read_text().splitlines())
                assert name.isdigit() or known, f"there is no user {name}"
            case "WORKDIR":
                assert (root / rest.lstrip("/")).is_dir(), f"there is no folder {rest}"
            case "ENTRYPOINT":
                program = root / json.loads(rest)[0].lstrip("/")
                assert os.access(program, os.X_OK), f"{program} is not executable"
            case "CMD":
                assert isinstance(json.loads(rest), list)
            case "EXPOSE" | "ENV":
                pass
            case _:
                sys.exit(f"run_steps: the step {instruction} is unknown")


main()
