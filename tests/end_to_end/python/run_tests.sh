#!/usr/bin/env bash
# Runs one file of Python tests; 77 (skipped) where the clients are not installed.
set -euo pipefail
folder="$(cd "$(dirname "$0")" && pwd)"
python="$folder/../../../build/venv/bin/python"
if [[ ! -x "$python" ]]; then
  echo "no Python clients: deploy/install_dependencies.sh installs them" >&2
  exit 77
fi
exec "$python" -m pytest -q -rs --tb=short --durations=5 -p no:cacheprovider -o addopts= --rootdir "$folder" "$folder/$1"
