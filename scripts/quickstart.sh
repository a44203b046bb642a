#!/usr/bin/env bash
# Installs, builds `train`, measures the machine, trains a small real model on the shipped text under
# mpirun with offload on, stops and resumes it on the way, and shows loss, memory, a sample and a
# report.
#   scripts/quickstart.sh [OUTPUT]      (default runs/quickstart; an earlier run there is replaced)
set -euo pipefail
cd "$(dirname "$0")/.."
output=${1:-runs/quickstart}
config=configs/runs/quickstart.json

scripts/install.sh
# The CUDA backend only where a GPU is, and for that GPU alone.
cuda=(-DSPILLWAY_CUDA=OFF)
if capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1) &&
  [ -n "$capability" ]; then
  echo "GPU of compute capability $capability found"
  cuda=(-DSPILLWAY_CUDA=AUTO "-DSPILLWAY_CUDA_ARCHITECTURES=${capability/./}")
else
  echo "no GPU found: the CPU backend alone is built"
fi
cmake --preset release -DSPILLWAY_TESTS=OFF "${cuda[@]}" >/dev/null
cmake --build build --target train

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
ranks=2
[ "$(nproc)" -ge 2 ] || ranks=1
launch=(mpirun -np $ranks --oversubscribe --bind-to none build/train)
machine=$output/machine.json
run=("${launch[@]}" --config $config --set "output=$output" --set "hardware.profile=$machine")

rm -rf "$output"
mkdir -p "$output"
echo
echo "== measuring this machine"
"${launch[@]}" calibrate --config $config --out "$machine"
echo
echo "== the plan"
build/train plan --config $config --ranks $ranks --set "hardware.profile=$machine"
echo
echo "== training, stopped on the way"
code=0
"${run[@]}" --stop-at 150 || code=$?
[ $code = 75 ] || { echo "expected exit code 75 (stopped at a checkpoint), got $code" >&2; exit 1; }
echo
echo "== resuming where it stopped"
"${run[@]}" --resume latest
echo
echo "== a sample"
last=$(ls -d "$output"/checkpoints/step_* | tail -n 1)
build/train sample --checkpoint "$last" --prompt "It is a truth" --tokens 300 --temperature 0.7 --seed 1
python3 scripts/report.py "$output"
