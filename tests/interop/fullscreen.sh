#!/usr/bin/env bash
# Uses vim, less and top on a terminal behind Outrigger through examples/attach.py in tmux: keys, colors, a new size.
#
# usage: tests/interop/fullscreen.sh
# env:   OUTRIGGER=target/release/outrigger, PYTHON=python3 (with the package websockets)
set -euo pipefail
cd "$(dirname "$0")/../.."
outrigger=${OUTRIGGER:-$PWD/target/release/outrigger}
work=$(mktemp -d)
tmux=(tmux -f /dev/null -L "outrigger-$$")
"$outrigger" terminal --listen 127.0.0.1:0 --log warn --env PS1='ready$ ' --cwd "$work" -- bash --norc >"$work/out" &
server=$!
cleanup() {
  "${tmux[@]}" kill-server 2>/dev/null || true
  kill "$server" 2>/dev/null || true
  wait "$server" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

# Waits until the screen, with its color codes, matches a pattern.
shown() {
  local deadline=$((SECONDS + 30))
  until "${tmux[@]}" capture-pane -pe | grep -qP -- "$1"; do
    if [ "$SECONDS" -ge "$deadline" ]; then
      echo "not shown: $1" >&2
      "${tmux[@]}" capture-pane -pe >&2
      exit 1
    fi
    sleep 0.05
  done
}
keys() { "${tmux[@]}" send-keys "$@"; }

deadline=$((SECONDS + 30))
until grep -q ws:// "$work/out"; do
  kill -0 "$server" && [ "$SECONDS" -lt "$deadline" ] || exit 1
  sleep 0.05
done
url=$(sed -n 's/.*\(ws:.*\)/\1/p' "$work/out")
"${tmux[@]}" new-session -d -x 100 -y 30 "${PYTHON:-python3} examples/attach.py $url; echo left with \$?; cat"
shown 'ready\$'

# vim: typing and saving, colors, a size that changes while it runs.
keys 'vim -N -u NONE -c "syntax on | set ft=c" hello.c' Enter
shown '~'
keys i 'int main(void) { return 42; }' Escape
shown '\e\[[0-9;]*m.*int'
"${tmux[@]}" resize-window -x 80 -y 20
keys ':echo &lines "by" &columns' Enter
shown '20 by 80'
keys ':wq' Enter
shown 'ready\$'
keys 'cat hello.c' Enter
shown '^int main\(void\) \{ return 42; \}'

# less: pages, a search, the end.
keys 'clear; seq 1000 >numbers; less numbers' Enter
shown '^1$'
keys /777 Enter
shown '777'
keys G
shown '^1000$'
keys q
shown 'ready\$'

# top: redrawing the screen, leaving at a key.
keys 'clear; top -d 0.3' Enter
shown 'load average'
shown '\e\[[0-9;]*7m.*PID'
keys q
shown 'ready\$'

keys 'exit 5' Enter
shown 'left with 5'
echo "  vim, less and top ok"
