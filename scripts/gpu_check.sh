#!/usr/bin/env bash
# Checks and measures the CUDA backend on this machine's first GPU, in under ten minutes.
#   [OUT=FOLDER] scripts/gpu_check.sh [--prebuilt DIR] [--only PART]…
# --prebuilt DIR   a bundle of scripts/gpu_bundle.sh instead of a build here
# --only PART      kernels, placement, resume, memcheck, racecheck, device, slice or slice-small;
#                  may be repeated
# Every part has a time box, and a part that fails does not stop the others. Writes report.md,
# report.json, hardware.json (a calibrated profile for configs/hardware) and build.log to $OUT
# (default: gpu_check). Exit code 0 if every part passed or was skipped for a stated reason.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
started=$(date +%s)
box=${GPU_CHECK_SECONDS:-590}  # all parts together, the build included

prebuilt= parts=()
while [ $# -gt 0 ]; do
  case $1 in
    --prebuilt | --only)
      [ $# -ge 2 ] || { echo "gpu_check.sh: $1 needs a value" >&2; exit 2; }
      if [ "$1" = --only ]; then parts+=(--only "$2"); else prebuilt=$2; fi
      shift 2 ;;
    *) echo "gpu_check.sh: unknown option $1 (--prebuilt DIR, --only PART)" >&2; exit 2 ;;
  esac
done
if [ -n "$prebuilt" ] && [ ! -x "$prebuilt/train" ] && [ ! -e "$prebuilt/train.gz" ]; then
  echo "gpu_check.sh: --prebuilt $prebuilt: no program 'train' in there; make one with scripts/gpu_bundle.sh" >&2
  exit 2
fi
python3 "$root/scripts/gpu_parts.py" --list "${parts[@]}" >/dev/null  # the names, before anything starts

gpus=$(nvidia-smi -L 2>/dev/null | grep '^GPU' || true)
if [ -z "$gpus" ]; then
  echo "no GPU found" >&2
  exit 1
fi
echo "$gpus"

out=${OUT:-gpu_check}
mkdir -p "$out"
out=$(cd "$out" && pwd)
if [ -n "$prebuilt" ]; then
  home=$(cd "$prebuilt" && pwd)
  "$root/scripts/gpu_unpack.sh" "$home"
  bin=$home
  export SPILLWAY_HOME=$home LD_LIBRARY_PATH="$home/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  export OMPI_MCA_mca_base_component_path=$home/openmpi OMPI_MCA_ess_singleton_isolated=1
else
  home=$root
  bin=$out.build
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d '. ')
  echo "building for sm_$capability in $bin"
  if ! { cmake -G Ninja -S "$root" -B "$bin" -DSPILLWAY_CUDA=ON \
           "-DSPILLWAY_CUDA_ARCHITECTURES=$capability" &&
         timeout "$((box - 180))" cmake --build "$bin" --target train ops_cuda_test; } \
         >"$out/build.log" 2>&1; then
    echo "gpu_check.sh: the build failed; the end of $out/build.log:" >&2
    tail -n 20 "$out/build.log" >&2
    exit 1
  fi
fi
exec python3 "$root/scripts/gpu_parts.py" --bin "$bin" --home "$home" --out "$out" \
  --seconds "$((box - ($(date +%s) - started)))" "${parts[@]}"
