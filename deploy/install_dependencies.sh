#!/usr/bin/env bash
# Installs the packages that building and testing Switchyard needs (Debian 12 or newer, Ubuntu).
# Only what is missing is installed; if nothing is missing, nothing is done.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: deploy/install_dependencies.sh [--fuzz] [--list]
  --fuzz   also what the fuzz targets need (clang with libFuzzer)
  --list   print the missing packages, install nothing
EOF
}

build_packages=(
  g++ cmake ninja-build ccache make pkg-config git ca-certificates
  libabsl-dev libprotobuf-dev protobuf-compiler nlohmann-json3-dev libspdlog-dev libfmt-dev
  libcli11-dev libtomlplusplus-dev libhwloc-dev libucx-dev libgrpc++-dev protobuf-compiler-grpc libssl-dev libboost1.81-dev
  prometheus-cpp-dev
  libssl-dev
)
test_packages=(
  libgtest-dev libgmock-dev libpcre2-dev zlib1g-dev python3 python3-jinja2 python3-yaml python3-venv
  python3-grpcio python3-protobuf grpc-proto curl
)
fuzz_packages=(clang-14 libclang-rt-14-dev)
# Releases without version 14 lack only the format check, so this one is no must.
format_packages=(clang-format-14)

packages=("${build_packages[@]}" "${test_packages[@]}" "${format_packages[@]}")
list_only=false
for argument in "$@"; do
  case "$argument" in
    --fuzz) packages+=("${fuzz_packages[@]}") ;;
    --list) list_only=true ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      usage >&2
      exit 2
      ;;
  esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  {
    echo "install_dependencies.sh: this system has no apt-get; it knows Debian and Ubuntu only."
    echo "Install the equivalents of these Debian packages, then build with cmake --preset cpu:"
    printf '  %s\n' "${packages[@]}"
  } >&2
  exit 1
fi

is_installed() {
  [[ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]
}

# Python packages that the tests use as clients live in an environment of their own.
source_folder="$(cd "$(dirname "$0")/.." && pwd)"
venv="$source_folder/build/venv"
requirements="$source_folder/tests/end_to_end/python/requirements.txt"

# Without a package index the tests with these clients are skipped, and say so.
install_clients() {
  if cmp -s "$requirements" "$venv/requirements.txt"; then return; fi
  echo "installing Python clients for the tests into build/venv"
  # Debian's interpreter, and its packages: grpcio comes from there.
  if /usr/bin/python3 -m venv --system-site-packages "$venv" &&
    "$venv/bin/pip" install -q --disable-pip-version-check -r "$requirements"; then
    cp "$requirements" "$venv/requirements.txt"
  else
    echo "install_dependencies.sh: no Python clients; tests that use them will be skipped" >&2
  fi
}

missing=()
for package in "${packages[@]}"; do
  is_installed "$package" || missing+=("$package")
done
if "$list_only"; then
  if [[ ${#missing[@]} -gt 0 ]]; then printf '%s\n' "${missing[@]}"; fi
  exit 0
fi
if [[ ${#missing[@]} -eq 0 ]]; then
  install_clients
  exit 0
fi

as_root=()
if [[ "$(id -u)" -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "install_dependencies.sh: not root and no sudo; run as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
apt_get() {
  # The assignment goes through env, since sudo drops the caller's environment.
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 "$@" </dev/null
}

echo "installing: ${missing[*]}"
apt_get update -q
installable=()
for package in "${missing[@]}"; do
  if [[ " ${format_packages[*]} " == *" $package "* ]] && ! apt-cache show "$package" >/dev/null 2>&1; then
    echo "install_dependencies.sh: this release has no $package; 'make format' will not work" >&2
  else
    installable+=("$package")
  fi
done
if [[ ${#installable[@]} -gt 0 ]]; then
  apt_get install -q -y --no-install-recommends "${installable[@]}"
fi
install_clients
