#!/usr/bin/env bash
# Publishes files to the default branch of a git repository, such as a Homebrew tap or the AUR: clones it, replaces the files,
# commits and pushes. Does nothing if nothing has changed.
#
# usage: packaging/publish_to_git.sh REPOSITORY MESSAGE FILE=PATH...
#        FILE is the new file, and PATH is its place in the repository
# env:   SSH_KEY           a private key for the repository
#        SSH_KNOWN_HOSTS   the lines of known_hosts for its server; without them, the connection fails
set -euo pipefail
[ $# -ge 3 ] || { sed -n '/^# usage:/,/^#  *FILE/s/^# //p' "$0" >&2; exit 2; }
repository=$1
message=$2
shift 2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -n "${SSH_KEY:-}" ]; then
  # Only this user may read the key, or ssh refuses it.
  (umask 077 && printf '%s\n' "$SSH_KEY" >"$work/key")
  printf '%s\n' "${SSH_KNOWN_HOSTS:-}" >"$work/known_hosts"
  export GIT_SSH_COMMAND="ssh -i $work/key -o IdentitiesOnly=yes -o StrictHostKeyChecking=yes -o UserKnownHostsFile=$work/known_hosts"
fi
git clone --quiet "$repository" "$work/clone"
for pair in "$@"; do
  path=$work/clone/${pair#*=}
  mkdir -p "$(dirname "$path")"
  cp "${pair%%=*}" "$path"
  git -C "$work/clone" add -- "${pair#*=}"
done
if git -C "$work/clone" diff --cached --quiet; then
  echo "publish_to_git: nothing has changed"
  exit 0
fi
git -C "$work/clone" -c user.name="${GIT_NAME:-Outrigger release}" -c user.email="${GIT_EMAIL:-noreply@localhost}" commit --quiet -m "$message"
git -C "$work/clone" push --quiet
echo "publish_to_git: pushed: $message"
