#!/usr/bin/env bash
# Uses the .deb as the administrator of a fresh Debian or Ubuntu does, with apt and systemd: installs it, serves with its units, upgrades it
# while a client is connected, and purges it, after which nothing may be left.
#
# usage: packaging/try_deb.sh [SUITE...]      by default bookworm and trixie, or on Ubuntu jammy and noble
# env:   OUT=target/packages                  as for packaging/build.sh
#
# Each suite is installed into a folder with mmdebstrap, from the package archive of this machine. Its systemd runs as the first
# process of namespaces of its own, and its network is a loopback alone. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath "${OUT:-target/packages}")
deb=$(find "$out" -name "outrigger_*_$(dpkg --print-architecture).deb" | sort | tail -n 1)
[ -n "$deb" ] || { echo "try_deb: there is no .deb in $out" >&2; exit 1; }
# shellcheck source=packaging/names
. packaging/names
work=$(mktemp -d)
init=
# What the cleanup is after the boot: the end of the first process ends all others, and with the last one the mounts.
cleanup() {
  [ -z "$init" ] || kill -KILL "$init" 2>/dev/null || true
  wait 2>/dev/null || true
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT
fail() { echo "try_deb: $suite: $*" >&2; exit 1; }

# Runs in the namespaces of the new system, as their first process.
boot() { # ROOT
  mount --make-rprivate /
  mount --bind "$1" "$1"
  mount -t proc proc "$1/proc"
  mount -t tmpfs tmpfs "$1/sys"
  mkdir -p "$1/sys/fs/cgroup"
  mount --rbind /sys/fs/cgroup "$1/sys/fs/cgroup"
  mount -t tmpfs -o mode=755 tmpfs "$1/run"
  mount -t tmpfs -o mode=755 tmpfs "$1/dev"
  mkdir -p "$1/dev/pts" "$1/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$1/dev/pts"
  local number
  for number in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0; do
    mknod -m 666 "$1/dev/${number%%:*}" c "$(cut -d: -f2 <<<"$number")" "$(cut -d: -f3 <<<"$number")"
  done
  ln -s pts/ptmx "$1/dev/ptmx"
  ip link set lo up
  # In a folder that is not the root of its namespace, the kernel permits no user namespaces, which the unit needs.
  mkdir -p "$1/host"
  cd "$1"
  pivot_root . host
  umount --lazy /host
  rmdir /host
  exec env -i container=lxc PATH=/usr/sbin:/usr/bin:/sbin:/bin /sbin/init --log-target=journal
}
export -f boot

inside() { timeout 120 nsenter --target "$init" --mount --pid --net --uts --ipc env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }
talk() { timeout 60 nsenter --target "$init" --net /usr/bin/python3 packaging/talk.py "$@"; }
# Waits until a command of the new system succeeds.
until_ok() {
  local deadline=$((SECONDS + 60))
  until inside "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$deadline" ] || fail "'$*' does not succeed"
    sleep 0.2
  done
}
journal() { inside journalctl --no-pager --quiet --unit "$PROGRAM.service" --unit "$PROGRAM.socket" "$@"; }

try_suite() {
  local mirror root=$work/root token pid left
  # shellcheck disable=SC2016
  mirror=$(apt-get indextargets --format '$(SITE)' | head -n 1)
  rm -rf --one-file-system "$root"
  mmdebstrap --quiet --variant=minbase --include=systemd-sysv,dbus "$suite" "$root" "$mirror"
  inside_files() { (cd "$root" && find . -xdev -not -path './proc/*' -not -path './root/*' -not -path './tmp/*' -not -path './var/log/*' -not -path './var/cache/*' | sort); }
  inside_files >"$work/before"
  # shellcheck disable=SC2016
  unshare --mount --pid --fork --kill-child --net --uts --ipc bash -euc 'boot "$1"' boot "$root" >"$work/init.log" 2>&1 &
  local deadline=$((SECONDS + 60))
  # The child of unshare is the first process of the new system.
  until init=$(pgrep -P $!) && [ -S "$root/run/dbus/system_bus_socket" ] || [ -S "/proc/${init:-0}/root/run/dbus/system_bus_socket" ]; do
    [ "$SECONDS" -lt "$deadline" ] || fail "systemd does not start: $(cat "$work/init.log")"
    sleep 0.2
  done
  until_ok systemctl show --property=SystemState

  # Installation. apt checks that the dependencies are there, and starts nothing.
  cp "$deb" "$root/root/first.deb"
  inside apt-get install --quiet --quiet --yes /root/first.deb >"$work/apt.log" 2>&1 || { cat "$work/apt.log" >&2; fail "apt cannot install it"; }
  inside systemctl is-active --quiet "$PROGRAM.service" && fail "the service runs before it was enabled"
  # What the comment in the unit says.
  sed -i 's|"/echo": {"echo": {}}|"/echo": {"echo": {}}, "/terminal": {"terminal": {"command": ["bash"]}}|' "$root/etc/outrigger/outrigger.json"
  token=$(inside "$PROGRAM" token add me --token-file /etc/outrigger/tokens)
  [ "$(inside stat -c %U:%G:%a /etc/outrigger/tokens)" = root:outrigger:640 ] || fail "the token file has another owner or mode"
  inside systemctl enable --now --quiet "$PROGRAM.socket"
  talk --connect 7070 /echo "$token" || { journal >&2; fail "the first connection does not start the service"; }
  inside systemctl is-active --quiet "$PROGRAM.service" || { journal >&2; fail "the service does not run"; }
  # The confinement of the unit leaves what a terminal needs.
  inside bash -c "echo 'id -un; exit 7' | $PROGRAM attach 'ws://127.0.0.1:7070/terminal?token=$token'" >"$work/terminal" && fail "the exit code is lost"
  grep -q "${PROGRAM}[[:space:]]*$" "$work/terminal" || { cat "$work/terminal" >&2; fail "the terminal does not run as the user of the unit"; }
  inside systemctl reload "$PROGRAM.service"
  talk --connect 7070 /echo "$token" || fail "the service does not survive a reload"

  # An upgrade to a second version: the server replaces its program, under a terminal that somebody uses.
  pid=$(inside systemctl show --property=MainPID --value "$PROGRAM.service")
  rm -rf "$work/repack"
  dpkg-deb --raw-extract "$deb" "$work/repack"
  sed -i 's/^Version: .*/&+upgrade/' "$work/repack/DEBIAN/control"
  dpkg-deb --root-owner-group --build "$work/repack" "$root/root/second.deb" >/dev/null
  # shellcheck disable=SC2016
  inside bash -c "(echo 'touch /var/lib/outrigger/begun'; until [ -e /root/upgraded ]; do sleep 0.2; done; echo 'echo still-\$((40 + 2)); exit 7') |
    $PROGRAM attach 'ws://127.0.0.1:7070/terminal?token=$token'" >"$work/kept" 2>&1 &
  local user=$!
  until_ok test -e /var/lib/outrigger/begun
  inside apt-get install --quiet --quiet --yes /root/second.deb >"$work/apt.log" 2>&1 || { cat "$work/apt.log" >&2; fail "apt cannot upgrade it"; }
  inside touch /root/upgraded
  wait "$user" && fail "the terminal has lost its exit code in the upgrade"
  grep -q still-42 "$work/kept" || { cat "$work/kept" >&2; journal >&2; fail "the terminal does not survive the upgrade"; }
  talk --connect 7070 /echo "$token" || { journal >&2; fail "no connection after the upgrade"; }
  [ "$(inside systemctl show --property=MainPID --value "$PROGRAM.service")" = "$pid" ] || fail "the upgrade has restarted the service"
  journal --grep "upgraded from" >/dev/null || { journal >&2; fail "the upgrade did not replace the program of the service"; }
  grep -q terminal "$root/etc/outrigger/outrigger.json" || fail "the upgrade replaced the configuration"
  journal --priority=err --grep "[a-z]" >"$work/errors" && { cat "$work/errors" >&2; fail "the journal has errors"; }

  # Removal keeps the configuration, and purging leaves nothing.
  inside apt-get remove --quiet --quiet --yes "$DEB" >/dev/null 2>&1
  inside systemctl is-active --quiet "$PROGRAM.socket" && fail "the socket is still there"
  [ -e "$root/etc/outrigger/tokens" ] || fail "removing the package deleted its tokens"
  inside apt-get purge --quiet --quiet --yes "$DEB" >/dev/null 2>&1
  inside getent passwd outrigger && fail "the user is still there"
  inside_files >"$work/after"
  left=$(comm -13 "$work/before" "$work/after" | grep -i "$PROGRAM" || true)
  [ -z "$left" ] || fail "purging leaves $left"
  kill -KILL "$init"
  wait 2>/dev/null || true
  init=
  echo "try_deb: $suite: installed, served, upgraded and purged; nothing is left"
}

suites=("$@")
if [ $# -eq 0 ]; then
  # The archive of this machine's packages has no others.
  case $(. /etc/os-release && echo "$ID") in
    ubuntu) suites=(jammy noble) ;;
    *) suites=(bookworm trixie) ;;
  esac
fi
for suite in "${suites[@]}"; do try_suite; done
