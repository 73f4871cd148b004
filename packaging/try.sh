#!/usr/bin/env bash
# Installs each package as a user would, without Rust and with an empty home folder, and uses a terminal and an agent through it.
#
# usage: packaging/try.sh [KIND...]       KIND is archive, deb, wheel, npm or image; all of them by default
# env:   DIST=target/dist OUT=target/packages    as for packaging/build.sh
#
# deb and image need root and mmdebstrap, because they run a minimal Debian in a folder. On Ubuntu, they run Ubuntu.
set -euo pipefail
cd "$(dirname "$0")/.."
# In a namespace of its own, the mounts below end with the last process, whatever ends it.
if [ "$(id -u)" = 0 ] && [ -z "${TRY_IN_NAMESPACE:-}" ]; then TRY_IN_NAMESPACE=1 exec unshare --mount packaging/try.sh "$@"; fi
dist=$(realpath "${DIST:-target/dist}")
out=$(realpath "${OUT:-target/packages}")
here=$PWD
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
# shellcheck source=packaging/names
. packaging/names
work=$(mktemp -d)
mounts=()
cleanup() {
  local mount
  for mount in "${mounts[@]}"; do umount -l "$mount" 2>/dev/null || true; done
  # Do not delete through what is still mounted.
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT
# The newest archive or package whose name matches.
only() { # PATTERN
  local found
  found=$(find "$dist" "$out" -name "$1" | sort | tail -n 1)
  [ -n "$found" ] || { echo "try: there is no $1 in $dist or $out" >&2; exit 1; }
  echo "$found"
}
# Runs a command without the environment of this shell: an empty home folder, and the system's programs alone.
bare() {
  mkdir -p "$work/home"
  env -i HOME="$work/home" PATH="${BARE_PATH:-/usr/bin:/bin}" LANG=C.UTF-8 "$@"
}
if bare sh -c 'command -v cargo || command -v rustc'; then
  echo "try: Rust is installed among the programs of the system" >&2
  exit 1
fi
talk() { bare /usr/bin/python3 "$here/packaging/talk.py" "$@"; }

archive() {
  local file
  file=$(only "outrigger-$version-$(uname -m)-unknown-linux-*.tar.gz")
  tar -xzf "$file" -C "$work"
  local content=$work/${file##*/}
  content=${content%.tar.gz}
  # ldd reports a static program with one of two texts, and with different exit statuses.
  ldd "$content/outrigger" >"$work/ldd" 2>&1 || true
  grep -q "statically linked\|not a dynamic executable" "$work/ldd" || {
    echo "try: the program is not static:" >&2
    cat "$work/ldd" >&2
    return 1
  }
  local name
  for name in completions/outrigger.bash completions/_outrigger completions/outrigger.fish man/outrigger.1 THIRD-PARTY-LICENSES \
    LICENSE-MIT LICENSE-APACHE docs/configuration.md examples/chat.py; do
    [ -s "$content/$name" ] || { echo "try: $name is missing in $file" >&2; return 1; }
  done
  packaging/links.py "$content" --check
  bare bash -n "$content/completions/outrigger.bash"
  talk --shell /bin/sh -- "$content/outrigger"
  # Names and users are looked up by the C library in the program.
  bare "$content/outrigger" echo --listen localhost:0 --check >/dev/null
  bare "$content/outrigger" terminal --user nobody --listen 127.0.0.1:0 --check -- sh >/dev/null
}

wheel() {
  bare python3 -m venv "$work/venv"
  bare "$work/venv/bin/pip" install --quiet --no-index --find-links "$out/python" "$PYPI"
  talk --shell /bin/sh -- "$work/venv/bin/$PROGRAM"
  # The second name, as a link in another folder.
  ln -s "$work/venv/bin/$PYPI" "$work/second"
  talk --shell /bin/sh --in-place "$work/second" -- "$work/second"
}

npm() {
  local node
  # The folder of node has no Rust.
  node=$(dirname "$(readlink -f "$(type -P node)")")
  mkdir "$work/node" "$work/project"
  ln -s "$node/node" "$work/node/node"
  ln -s "$(readlink -f "$(type -P npm)")" "$work/node/npm"
  ln -s "$(readlink -f "$(type -P npx)")" "$work/node/npx"
  local main platform suite client
  main=$(only "outrigger-$version.tgz")
  platform=$(only "outrigger-linux-$(uname -m | sed 's/x86_64/x64/; s/aarch64/arm64/')-$version.tgz")
  suite=$(only "outrigger-acp-conformance-$version.tgz")
  client=$(only "outrigger-client-$version.tgz")
  echo '{"private": true}' >"$work/project/package.json"
  (
    cd "$work/project"
    export BARE_PATH=$work/node:/usr/bin:/bin
    bare npm install --silent --no-audit --no-fund --offline --omit=optional "$main" "$platform" "$suite" "$client"
    bare npx --offline outrigger-acp-conformance --list >"$work/cases"
    grep -q '^MUST ' "$work/cases"
    bare node --input-type=module --eval 'import { ResumableWebSocket } from "outrigger-client"; if (ResumableWebSocket.OPEN !== 1) process.exit(1);'
    talk --shell /bin/sh --in-place "$PWD/node_modules/.bin/outrigger" -- npx --offline outrigger
    # A signal to the command alone ends the program, too, and its exit status is the command's.
    local command program status=0
    env -i PATH="$BARE_PATH" node node_modules/.bin/outrigger echo --listen 127.0.0.1:0 --no-auth >"$work/echo" 2>&1 &
    command=$!
    until grep -q "listening on" "$work/echo"; do
      kill -0 "$command" || { cat "$work/echo" >&2; exit 1; }
      sleep 0.1
    done
    # With a recent Node.js, the program has taken the place of the command.
    program=$(pgrep -P "$command" || echo "$command")
    kill -TERM "$command"
    wait "$command" || status=$?
    if kill -0 "$program" 2>/dev/null; then
      kill -KILL "$program"
      echo "try: the program did not end with npm's command" >&2
      exit 1
    elif [ "$status" != 0 ]; then
      echo "try: after SIGTERM, npm's command ended with $status: $(cat "$work/echo")" >&2
      exit 1
    fi
  )
}

# A minimal Debian, or what this machine runs, below $work/root.
make_root() {
  # shellcheck disable=SC2016
  mmdebstrap --quiet --variant=minbase "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$work/root" \
    "$(apt-get indextargets --format '$(SITE)' | head -n 1)"
}
mount_devices() { # ROOT
  mkdir -p "$1/dev/pts" "$1/proc" "$1/tmp"
  chmod 1777 "$1/tmp"
  mount -t proc proc "$1/proc"
  mounts+=("$1/proc")
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$1/dev/pts"
  mounts+=("$1/dev/pts")
  local name number
  for number in null:1:3 zero:1:5 random:1:8 urandom:1:9 tty:5:0; do
    name=${number%%:*}
    [ -e "$1/dev/$name" ] || mknod -m 666 "$1/dev/$name" c "$(cut -d: -f2 <<<"$number")" "$(cut -d: -f3 <<<"$number")"
  done
  ln -sf pts/ptmx "$1/dev/ptmx"
}

deb() {
  local file root=$work/deb
  file=$(only "${DEB}_*_$(dpkg --print-architecture).deb")
  dpkg-deb --extract "$file" "$root"
  packaging/links.py "$root/usr/share/doc/$DEB" --check
  # The units are valid, and the service is confined: 0 is the best, and 10 the worst exposure.
  SYSTEMD_UNIT_PATH=$root/lib/systemd/system: systemd-analyze verify --man=no --root="$root" "$PROGRAM.service" 2>"$work/verify" || true
  if grep -v "is not executable\|Unit .* not found" "$work/verify" | grep "$PROGRAM"; then return 1; fi
  systemd-analyze security --offline=yes --root="$root" --threshold=25 "$PROGRAM.service" | tail -n 1
  packaging/try_deb.sh
}

image() {
  local arch
  arch=$(dpkg --print-architecture)
  python3 packaging/container/run_steps.py "$out/image/scratch.Dockerfile" "$work/scratch" "$arch"
  mount_devices "$work/scratch"
  talk -- "$(type -P chroot)" --userspec=65534:65534 "$work/scratch" /outrigger
  make_root
  python3 packaging/container/run_steps.py "$out/image/debian.Dockerfile" "$work/root" "$arch"
  mount_devices "$work/root"
  talk --shell /bin/bash -- "$(type -P chroot)" --userspec=10000:10000 "$work/root" /usr/local/bin/outrigger
  local kind
  for kind in scratch root; do
    echo "  $kind: $(du -sb --exclude=dev --exclude=proc "$work/$kind" | cut -f1) bytes"
  done
}

for kind in "${@:-archive wheel npm deb image}"; do
  for one in $kind; do
    case $one in
      archive | deb | wheel | npm | image) ;;
      *) echo "try: there is no kind of package '$one'" >&2; exit 2 ;;
    esac
    begin=$SECONDS
    "$one"
    echo "try: $one ok in $((SECONDS - begin)) s"
  done
done
