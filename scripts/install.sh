#!/usr/bin/env bash
# Installs what the build and the tests need from Debian, if it is missing. Idempotent.
#   scripts/install.sh [--tests]
set -euo pipefail

packages=(g++ cmake ninja-build ccache pkg-config libopenmpi-dev openmpi-bin nlohmann-json3-dev
  libspdlog-dev libfmt-dev libcli11-dev libxxhash-dev libdnnl-dev libgomp1 libhwloc-dev libgtest-dev
  coinor-libclp-dev libbenchmark-dev python3)
[ "${1:-}" = --tests ] && packages+=(python3-venv util-linux procps
  slurm-wlm munge iproute2 openssh-server openssh-client)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
    missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  sudo=
  [ "$(id -u)" = 0 ] || sudo=sudo
  echo "installing: ${missing[*]}"
  $sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends \
    "${missing[@]}" >/dev/null
fi
