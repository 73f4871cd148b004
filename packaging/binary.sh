#!/usr/bin/env bash
# Builds the program for a target, with the pages for browsers, and packs it into an archive with its completions, manual page,
# licenses and documentation.
#
# usage: packaging/binary.sh TARGET [FOLDER]     FOLDER is by default target/dist
#
# Prints the name of the archive: FOLDER/outrigger-VERSION-TARGET.tar.gz. The same sources and tools give the same archive.
#
# TARGET is a target of rustc whose programs this machine can run, or ARCH-unknown-linux-gnu-static: a program that contains glibc.
# Other targets of Linux need cargo-zigbuild (pip install cargo-zigbuild ziglang), which links with musl or with an old version of
# glibc. Targets of macOS need a Mac. The standard library of the target has to be there (rustup target add TARGET).
# Needs npm, and cargo-bundle-licenses (cargo install cargo-bundle-licenses).
set -euo pipefail
[ $# -ge 1 ] || { sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2; }
target=$1
# The archive records file modes, which must not depend on the umask of the caller.
umask 022
mkdir -p "${2:-$(dirname "$0")/../target/dist}"
folder=$(cd "${2:-$(dirname "$0")/../target/dist}" && pwd)
cd "$(dirname "$0")/.."
# The oldest version of glibc that the program runs with: that of Debian 10 and RHEL 8.
glibc=2.28

web/build.sh
# shellcheck source=packaging/flags.sh
. packaging/flags.sh "$target"
case $target in
  *-linux-gnu) build=(cargo zigbuild --target "$triple.$glibc") ;;
  *-linux-musl) build=(cargo zigbuild --target "$triple") ;;
  *) build=(cargo build --target "$triple") ;;
esac
"${build[@]}" --release --locked --features web --bin outrigger >&2

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
name=outrigger-$version-$target
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
content=$work/$name
mkdir -p "$content/completions" "$content/man"
cp "${CARGO_TARGET_DIR:-target}/$triple/release/outrigger" "$content"
# What is tracked of the documents and examples, so that no local file gets into the archive.
git ls-files LICENSE-APACHE LICENSE-MIT README.md CHANGELOG.md SECURITY.md docs examples | tar -c -T - | tar -x -C "$content"
packaging/links.py "$content" >&2
"$content/outrigger" completions bash >"$content/completions/outrigger.bash"
"$content/outrigger" completions zsh >"$content/completions/_outrigger"
"$content/outrigger" completions fish >"$content/completions/outrigger.fish"
"$content/outrigger" man >"$content/man/outrigger.1"
packaging/licences.py "$triple" >"$content/THIRD-PARTY-LICENSES"
# BSD's tar, that of macOS, has other names for these options.
owner=(--owner=0 --group=0 --numeric-owner --sort=name)
tar --version | grep -q GNU || owner=(--uid=0 --gid=0)
export TZ=UTC
find "$content" -exec touch -h -t 202001010000 {} +
tar -c "${owner[@]}" -C "$work" "$name" | gzip -n -9 >"$folder/$name.tar.gz"
echo "$folder/$name.tar.gz"
