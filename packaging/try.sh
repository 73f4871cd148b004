#!/usr/bin/env bash
# Installs each package as a user would, without Rust and with an empty home folder, and uses a terminal and an agent through it.
#
# usage: packaging/try.sh [KIND...]       KIND is archive, deb, wheel, npm or image; all of them by default
# env:   DIST=target/dist OUT=target/packages    as for packaging/build.sh
#
# deb and image need root, because they change into a folder (chroot) with a minimal Debian, which they make from Debian's packages.
set -euo pipefail
cd "$(dirname "$0")/.."
# In a namespace of its own, the mounts below end with the last process, whatever ends it.
if [ "$(id -u)" = 0 ] && [ -z "${TRY_IN_NAMESPACE:-}" ]; then TRY_IN_NAMESPACE=1 exec unshare --mount packaging/try.sh "$@"; fi
dist=$(realpath "${DIST:-target/dist}")
out=$(realpath "${OUT:-target/packages}")
here=$PWD
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
work=$(mktemp -d)
mounts=() servers=()
cleanup() {
  local mount server
  for server in "${servers[@]}"; do kill -KILL "$server" 2>/dev/null || true; done
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
    LICENSE-MIT LICENSE-APACHE docs/configuration.md; do
    [ -s "$content/$name" ] || { echo "try: $name is missing in $file" >&2; return 1; }
  done
  bare bash -n "$content/completions/outrigger.bash"
  talk --shell /bin/sh -- "$content/outrigger"
  # Names and users are looked up by the C library in the program.
  bare "$content/outrigger" echo --listen localhost:0 --check >/dev/null
  bare "$content/outrigger" terminal --user nobody --listen 127.0.0.1:0 --check -- sh >/dev/null
}

wheel() {
  bare python3 -m venv "$work/venv"
  bare "$work/venv/bin/pip" install --quiet --no-index --find-links "$out/python" outrigger
  talk --shell /bin/sh -- "$work/venv/bin/outrigger"
}

npm() {
  local node
  # The folder of node has no Rust.
  node=$(dirname "$(readlink -f "$(type -P node)")")
  mkdir "$work/node" "$work/project"
  ln -s "$node/node" "$work/node/node"
  ln -s "$(readlink -f "$(type -P npm)")" "$work/node/npm"
  ln -s "$(readlink -f "$(type -P npx)")" "$work/node/npx"
  local main platform
  main=$(only "outrigger-$version.tgz")
  platform=$(only "outrigger-linux-$(uname -m | sed 's/x86_64/x64/; s/aarch64/arm64/')-$version.tgz")
  echo '{"private": true}' >"$work/project/package.json"
  (
    cd "$work/project"
    export BARE_PATH=$work/node:/usr/bin:/bin
    bare npm install --silent --no-audit --no-fund --offline --omit=optional "$main" "$platform"
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

# A minimal Debian below $work/root: the packages, unpacked.
make_root() {
  local packages=(base-files base-passwd bash coreutils dash debianutils diffutils dpkg findutils grep gzip hostname libacl1 libattr1
    libaudit1 libbz2-1.0 libc6 libc-bin libcap-ng0 libcap2 libcrypt1 libgcc-s1 libgmp10 liblzma5 libmd0 libpam0g libpcre2-8-0 libselinux1 libsemanage2
    libsepol2 libtinfo6 libzstd1 login ncurses-base passwd perl-base sed systemd-standalone-sysusers tar zlib1g)
  [ ! -d "$work/root" ] || return 0
  mkdir -p "$work/debs" target/debs "$work/root/dev/pts" "$work/root/proc" "$work/root/tmp" "$work/root/var/lib/dpkg/info" \
    "$work/root/var/lib/dpkg/updates"
  for package in "${packages[@]}"; do
    compgen -G "target/debs/${package}_*.deb" >/dev/null || missing+=("$package")
  done
  [ -z "${missing[*]:-}" ] || (cd target/debs && apt-get -o APT::Sandbox::User=root download -qq "${missing[@]}")
  for package in target/debs/*.deb; do dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$work/root"; done
  : >"$work/root/var/lib/dpkg/status"
  cp "$work/root/usr/share/base-passwd/passwd.master" "$work/root/etc/passwd"
  cp "$work/root/usr/share/base-passwd/group.master" "$work/root/etc/group"
  chroot "$work/root" sh -c 'pwconv; ldconfig'
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
  local file root=$work/installed token port server
  file=$(only "outrigger_*_$(dpkg --print-architecture).deb")
  make_root
  cp -a "$work/root" "$root"
  mount_devices "$root"
  cp "$file" "$root/tmp/outrigger.deb"
  # The root has the packages, but dpkg's records of them are left out.
  bare "$(type -P chroot)" "$root" env PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive \
    dpkg --force-depends --install /tmp/outrigger.deb >"$work/dpkg" 2>&1 || { cat "$work/dpkg" >&2; return 1; }
  talk --shell /bin/sh --in-place /usr/bin/outrigger -- /usr/sbin/chroot --userspec=outrigger "$root" /usr/bin/outrigger
  # The units are valid, and the service is confined: 0 is the best, and 10 the worst exposure.
  SYSTEMD_UNIT_PATH=$root/lib/systemd/system: systemd-analyze verify --man=no --root="$root" outrigger.service 2>"$work/verify" || true
  if grep -v "is not executable\|Unit .* not found" "$work/verify" | grep outrigger; then return 1; fi
  systemd-analyze security --offline=yes --root="$root" --threshold=25 outrigger.service | tail -n 1
  # What systemd does: it holds the socket, and starts the program of ExecStart as the user of the unit.
  token=$(chroot "$root" /usr/bin/outrigger token add me --token-file /etc/outrigger/tokens)
  [ "$(chroot "$root" stat -c %U:%G:%a /etc/outrigger/tokens)" = root:outrigger:640 ] || {
    echo "try: the token file has another owner or mode" >&2
    return 1
  }
  local command
  command=$(sed -n 's/^ExecStart=//p' "$root/lib/systemd/system/outrigger.service")
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  # Not in a function, so that the process that is stopped below becomes the server.
  # shellcheck disable=SC2086
  env -i PATH=/usr/bin:/bin systemd-socket-activate --listen="127.0.0.1:$port" /usr/sbin/chroot --userspec=outrigger "$root" $command \
    >"$work/socket" 2>&1 &
  server=$!
  servers+=("$server")
  until grep -q "Listening on" "$work/socket"; do
    kill -0 "$server" || { cat "$work/socket" >&2; return 1; }
    sleep 0.1
  done
  if talk --connect "$port" /echo "$token"; then
    echo "  the socket-activated service works"
  else
    cat "$work/socket" >&2
    return 1
  fi
  kill "$server"
  wait "$server" || true
  servers=()
  bare "$(type -P chroot)" "$root" env PATH=/usr/sbin:/usr/bin:/sbin:/bin dpkg --purge outrigger >/dev/null
  if [ -e "$root/usr/bin/outrigger" ] || [ -e "$root/etc/outrigger" ]; then
    echo "try: purging left files" >&2
    return 1
  fi
}

image() {
  local arch
  arch=$(dpkg --print-architecture)
  python3 packaging/container/run_steps.py "$out/image/scratch.Dockerfile" "$work/scratch" "$arch"
  mount_devices "$work/scratch"
  talk -- "$(type -P chroot)" --userspec=65534:65534 "$work/scratch" /outrigger
  make_root
  cp -a "$work/root" "$work/debian"
  python3 packaging/container/run_steps.py "$out/image/debian.Dockerfile" "$work/debian" "$arch"
  mount_devices "$work/debian"
  talk --shell /bin/bash -- "$(type -P chroot)" --userspec=10000:10000 "$work/debian" /usr/local/bin/outrigger
  echo "  scratch: $(du -sb --exclude=dev --exclude=proc "$work/scratch" | cut -f1) bytes"
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
