#!/usr/bin/env bash
# Uses vim and htop behind Outrigger through `outrigger attach` in tmux: a new size, a cut in the middle, an upgrade of the server, and
# the screen after each.
# Then kills attach with -9: the process runs on, and `stty sane` repairs the screen.
#
# usage: tests/interop/attach.sh
# env:   OUTRIGGER=target/release/outrigger
set -euo pipefail
cd "$(dirname "$0")/../.."
outrigger=${OUTRIGGER:-$PWD/target/release/outrigger}
work=$(mktemp -d)
tmux=(tmux -f /dev/null -L "outrigger-attach-$$")
pids=()
cleanup() {
  "${tmux[@]}" kill-server 2>/dev/null || true
  for pid in "${pids[@]}"; do
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  rm -rf "$work"
}
trap cleanup EXIT

fail() {
  echo "$1" >&2
  "${tmux[@]}" capture-pane -p >&2 || true
  exit 1
}
# Waits until a command succeeds.
eventually() {
  local deadline=$((SECONDS + 30))
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$deadline" ] || fail "not in time: $*"
    sleep 0.05
  done
}
screen() { "${tmux[@]}" capture-pane -p; }
has() { screen | grep -qP -- "$1"; }
has_not() { ! has "$1"; }
shown() { eventually has "$1"; }
hidden() { eventually has_not "$1"; }
keys() { "${tmux[@]}" send-keys "$@"; }
cut_off() { kill -USR1 "$cutter"; }
reconnect() { kill -USR2 "$cutter"; }
upgrades() { grep -c 'upgraded from version' "$work/log" || true; }
# Replaces the program of the server by itself.
upgrade() {
  local before
  before=$(upgrades)
  kill -USR2 "${pids[0]}"
  is_upgraded() { [ "$(upgrades)" -gt "$before" ]; }
  eventually is_upgraded
}

"$outrigger" processes --no-auth --listen 127.0.0.1:0 --log info >"$work/out" 2>"$work/log" &
pids+=($!)
eventually grep -q ws:// "$work/out"
port=$(sed -n 's/.*ws:..127.0.0.1:\([0-9]*\).*/\1/p' "$work/out")
python3 tests/interop/cutter.py "$port" >"$work/cutter" &
cutter=$!
pids+=("$cutter")
eventually grep -q . "$work/cutter"
proxy=$(cat "$work/cutter")

body="{\"command\":\"bash\",\"args\":[\"--norc\"],\"cwd\":\"$work\",\"allocate_tty\":true,\"env\":{\"PS1\":\"remote\$ \",\"TERM\":\"screen-256color\"}}"
id=$(curl -sS --json "$body" "http://127.0.0.1:$port/process/spawn" | sed 's/.*"process_id":"\([^"]*\)".*/\1/')
state() { curl -sS "http://127.0.0.1:$port/process/$id/status"; }
url="ws://127.0.0.1:$proxy/process/$id/attach"

"${tmux[@]}" new-session -d -x 100 -y 30 -e OUTRIGGER="$outrigger" "exec env PS1='local\$ ' bash --norc"
shown '^local\$'
keys "\$OUTRIGGER attach $url" Enter
shown '^remote\$'

# vim: a new size, and a cut in the middle of typing.
keys 'vim -N -u NONE hello.txt' Enter
shown '^~'
keys i 'one two three'
shown 'one two three'
"${tmux[@]}" resize-window -x 80 -y 20
keys Escape
# Drawing the screen for the new size may erase the answer.
has_size() {
  keys ':echo &lines "by" &columns' Enter
  sleep 0.3
  has '20 by 80'
}
eventually has_size
keys ':echo' Enter
hidden '20 by 80'
before=$(screen)
cut_off
shown 'outrigger: connection lost; trying again'
reconnect
# The program draws its screen again, as it was.
is_as_before() { [ "$before" = "$(screen)" ]; }
eventually is_as_before
upgrade
[ "$before" = "$(screen)" ] || fail "vim has changed with an upgrade"
cut_off
shown 'outrigger: connection lost; trying again'
keys 'A four' Escape ':wq' Enter
reconnect
shown '^remote\$'
keys 'cat hello.txt' Enter
shown '^one two three four$'
echo "  vim is the same after a new size, two cuts and an upgrade"

# htop redraws by itself, in colors and with the new size. The file of its settings is that of this test alone.
keys "clear; HTOPRC=$work/htoprc htop -d 5" Enter
shown 'PID.*USER'
shown 'F10'
cut_off
shown 'outrigger: connection lost; trying again'
reconnect
hidden 'outrigger:'
shown 'F10'
upgrade
shown 'F5Tree'
keys t
shown 'F5List'
if has 'outrigger:'; then fail "an upgrade has cut the connection"; fi
"${tmux[@]}" resize-window -x 110 -y 32
shown 'PID.*USER'
[ "$(screen | grep -c 'F10')" = 1 ] || fail "htop has drawn its last row twice"
keys q
shown '^remote\$'
echo "  htop is redrawn after a cut and a new size, and takes keys after an upgrade"

# A killed client: the process runs on.
keys 'clear; echo $$ is here' Enter
shown '^[0-9]+ is here'
pane=$("${tmux[@]}" display-message -p '#{pane_pid}')
pkill -KILL -P "$pane" -x outrigger
shown '^local\$|local\$'
state | grep -q '"state":"running"' || fail "the process has ended: $(state)"
# The terminal is in raw mode, so the shell is asked blindly.
keys "stty sane; clear; stty -a | tr ' ;' '\\n\\n' | grep -x -e echo -e icanon -e opost | sort | tr '\\n' ' '" C-j
shown '^echo icanon opost'
keys "clear; \$OUTRIGGER attach --takeover $url" Enter
shown 'is here'
keys Enter '~.'
shown 'outrigger: detached; the process goes on'
state | grep -q '"state":"running"' || fail "the process has ended: $(state)"

keys "clear; \$OUTRIGGER attach $url; echo left with \$?" Enter
shown '^remote\$'
# The screen is sent in the place of old output, so the terminal has not answered vim's queries again, and the line is empty.
keys 'exit 5' Enter
shown '^left with 5'
echo "  attach can be killed, left and used again, and ends with the exit code of the program"
