#!/usr/bin/env bash
# Builds the program for a target, with the pages for browsers, and packs it into an archive with its licences and documentation.
#
# usage: packaging/binary.sh TARGET [FOLDER]     FOLDER is by default target/dist
#
# Prints the name of the archive: FOLDER/outrigger-VERSION-TARGET.tar.gz. The same sources and tools give the same archive.
#
# Targets of Linux need cargo-zigbuild (pip install cargo-zigbuild ziglang): it links for any processor, with musl or with an old
# version of glibc. Targets of macOS need a Mac. The standard library of the target has to be there (rustup target add TARGET).
set -euo pipefail
[ $# -ge 1 ] || { sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2; }
target=$1
mkdir -p "${2:-$(dirname "$0")/../target/dist}"
folder=$(cd "${2:-$(dirname "$0")/../target/dist}" && pwd)
cd "$(dirname "$0")/.."
# The oldest version of glibc that the program runs with: that of Debian 10 and RHEL 8.
glibc=2.28

web/build.sh
case $target in
  *-linux-gnu) build=(cargo zigbuild --target "$target.$glibc") ;;
  *-linux-*) build=(cargo zigbuild --target "$target") ;;
  *) build=(cargo build --target "$target") ;;
esac
# The paths of this machine do not belong into the program.
RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$PWD=/outrigger --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo" \
  "${build[@]}" --release --locked --features web --bin outrigger >&2

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
name=outrigger-$version-$target
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/$name"
cp "${CARGO_TARGET_DIR:-target}/$target/release/outrigger" LICENSE-APACHE LICENSE-MIT README.md CHANGELOG.md "$work/$name"
cp -R docs "$work/$name/docs"
# BSD's tar, that of macOS, has other names for these options.
owner=(--owner=0 --group=0 --numeric-owner --sort=name)
tar --version | grep -q GNU || owner=(--uid=0 --gid=0)
find "$work/$name" -exec touch -h -t 202001010000 {} +
TZ=UTC tar -c "${owner[@]}" -C "$work" "$name" | gzip -n -9 >"$folder/$name.tar.gz"
echo "$folder/$name.tar.gz"
