#!/usr/bin/env bash
# Unpacks the large files of a folder made by scripts/gpu_bundle.sh, where they stand. Does nothing
# where that has been done.
#   scripts/gpu_unpack.sh DIR
set -euo pipefail
[ $# -eq 1 ] || { echo "gpu_unpack.sh: one folder is needed: gpu_unpack.sh DIR" >&2; exit 2; }
find "$1" -maxdepth 2 -name '*.gz' -print0 | while IFS= read -r -d '' file; do gunzip -f "$file"; done
