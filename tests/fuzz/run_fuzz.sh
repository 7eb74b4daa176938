#!/usr/bin/env bash
# Runs every fuzz target for some seconds, from its stored corpus.
# usage: tests/fuzz/run_fuzz.sh TARGETS SECONDS
# TARGETS: a file with a line for each target: the program and the folders of its corpus. What the
# fuzzer finds new goes to a temporary folder; an input that fails is kept in build/fuzz/failures.
set -euo pipefail
if [[ $# -ne 2 ]]; then
  echo "usage: $0 TARGETS SECONDS" >&2
  exit 2
fi
found="$(mktemp -d)"
trap 'rm -rf "$found"' EXIT
failures="$(dirname "$1")/../../failures"
mkdir -p "$failures"

while read -r -a line; do
  [[ ${#line[@]} -gt 0 ]] || continue
  name="$(basename "${line[0]}")"
  mkdir "$found/$name"
  echo "== $name: $2 s"
  # The options after the folders: the first folder is the one that is written to.
  if ! "${line[0]}" "$found/$name" "${line[@]:1}" -max_total_time="$2" -print_final_stats=1 \
    -artifact_prefix="$failures/$name-" -rss_limit_mb=4096 -verbosity=0 </dev/null; then
    echo "run_fuzz.sh: $name failed; the input is in $failures" >&2
    exit 1
  fi
done <"$1"
