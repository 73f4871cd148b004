#!/usr/bin/env bash
# Writes the bill of materials of the program, in the format CycloneDX 1.5: every crate that is compiled into it for a target.
#
# usage: packaging/sbom.sh OUTPUT [TARGET]      TARGET is by default the target of this machine
#
# Needs cargo-cyclonedx (cargo install --locked cargo-cyclonedx).
set -euo pipefail
[ $# -ge 1 ] || { sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2; }
output=$(realpath -m "$1")
cd "$(dirname "$0")/.."
target=${2:-$(rustc -vV | sed -n 's/^host: //p')}

# The tool writes beside Cargo.toml.
name=sbom-$$
trap 'rm -f "$name.json"' EXIT
# The same sources give the same file: its time is that of the commit, it has no random number, and no path of this machine.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
cargo cyclonedx --quiet --format json --spec-version 1.5 --no-build-deps --target "$target" --override-filename "$name"
mkdir -p "$(dirname "$output")"
sed "s,path+file://$PWD#,,g" "$name.json" >"$output"
