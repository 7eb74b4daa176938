#!/usr/bin/env bash
# Serves a model, asks it one question over HTTP as any client would, and stops the server.
# usage: deploy/demo/run_demo.sh SWITCHYARD MODEL PROMPT NUM_TOKENS
set -euo pipefail
if [[ $# -ne 4 ]]; then
  echo "usage: $0 SWITCHYARD MODEL PROMPT NUM_TOKENS" >&2
  exit 2
fi
program="$1" model="$2" prompt="$3" num_tokens="$4"

# What the server prints on stdout: its addresses, then that it is ready.
coproc server { exec "$program" serve "$model" --http 127.0.0.1:0 --grpc 127.0.0.1:0; }
server_pid="$server_PID"
trap 'kill "$server_pid" 2>/dev/null || true' EXIT

url=""
while read -r line; do
  echo "$line"
  case "$line" in
    "http: "*) url="${line#http: }" ;;
    "ready: "*) break ;;
  esac
done <&"${server[0]}"
if [[ -z "$url" ]] || ! kill -0 "$server_pid" 2>/dev/null; then
  wait "$server_pid"
  exit 1
fi

python3 "$(dirname "$0")/ask.py" "$url" "$prompt" "$num_tokens"

kill -TERM "$server_pid"
wait "$server_pid"
trap - EXIT
