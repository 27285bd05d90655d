#!/usr/bin/env bash
# Runs the README's two commands literally, as a newcomer does: each in a fresh clone where nothing is built, with a PATH that has Node, npm, git and the
# basic tools of a shell, and none of the optional programs. Writes the specs with skipped tests to the file of the first argument.
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
skipped=$(realpath "${1:-/dev/null}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Python, openssl, ip, browsers and servers are not among these.
mkdir "$folder/bin"
for program in node npm npx git sh bash env cat cp mv rm ls ln mkdir mktemp mkfifo chmod chown dirname basename uname tr sed grep head tail sleep tar gzip; do
  ln -s "$(command -v "$program")" "$folder/bin/$program"
done

mapfile -t commands < <(grep -E '^npm ci .*&& npm ' "$source/README.md")
if [ "${#commands[@]}" -ne 2 ]; then
  echo "README.md has ${#commands[@]} lines that begin with \"npm ci\"; expected are the demo and the tests" >&2
  exit 1
fi
git clone --quiet "$source" "$folder/clone"
cd "$folder/clone"
for command in "${commands[@]}"; do
  git clean -ffdxq
  echo "In a fresh clone: $command"
  env -u CI -u INFERENCE_CLIENTS -u PYTHON PATH="$folder/bin" bash -c "$command"
done
cat test-results/skipped-specs.txt >"$skipped"
