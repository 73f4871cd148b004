#!/usr/bin/env bash
# Builds the Python wheel for a target. After packaging/binary.sh for the same target, little has to be compiled.
#
# usage: packaging/wheel.sh TARGET [FOLDER]      the targets of binary.sh; FOLDER is by default target/packages/python
#
# Needs maturin (pip install maturin). A wheel for musl has the tag musllinux, one for glibc the tag manylinux.
set -euo pipefail
[ $# -ge 1 ] || { sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2; }
folder=${2:-$(dirname "$0")/../target/packages/python}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$(dirname "$0")/.."
# shellcheck source=packaging/flags.sh
. packaging/flags.sh "$1"
options=()
case $1 in
  *-static) options=(--compatibility manylinux2014) ;;
  *-musl) options=(--zig --compatibility musllinux_1_1) ;;
  *-linux-*) options=(--zig --compatibility manylinux_2_28) ;;
esac
# The second name of the program is a script, because a wheel cannot contain links.
work=target/python
rm -rf "$work"
for file in pyproject.toml README.md; do packaging/fill.sh "packaging/python/$file" "$work/$file"; done
# shellcheck source=packaging/names
. packaging/names
packaging/fill.sh packaging/python/second-name.sh "$work/data/scripts/$PYPI"
chmod 755 "$work/data/scripts/$PYPI"
cd "$work"
# Bash 3.2, which macOS has, treats an empty array as an unbound variable.
maturin build --release --target "$triple" ${options[@]+"${options[@]}"} --out "$folder"
