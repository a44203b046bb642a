#!/usr/bin/env bash
# Installs, builds and runs every test. The last line counts passed, failed and skipped tests.
#   scripts/test.sh [--without NAME]…  [--long]
# --without torch     leaves out what compares with PyTorch (a download of some hundred MB)
# --without tmpfs     leaves out the test of a full disk (mounting needs root)
# --without sanitizers  leaves out the builds with ASan, UBSan and TSan
# --without fuzz      leaves out the fuzzing of configs, token files and checkpoints
# --without slurm     leaves out the tests on a two-node Slurm of their own (needs root)
# --without two_hosts leaves out the tests on two hosts in network namespaces (needs root)
# --long              longer campaigns of the random tests
set -euo pipefail
cd "$(dirname "$0")/.."

without=()
long=0
while [ $# -gt 0 ]; do
  case $1 in
    --without) without+=("$2"); shift 2 ;;
    --long) long=1; shift ;;
    *) echo "test.sh: unknown option $1 (--without NAME, --long)" >&2; exit 2 ;;
  esac
done
leave_out() { [[ " ${without[*]-} " == *" $1 "* ]]; }
for name in "${without[@]-}"; do
  case $name in
    "" | torch | tmpfs | sanitizers | fuzz | slurm | two_hosts) ;;
    *) echo "test.sh: --without $name: expected torch, tmpfs, sanitizers, fuzz, slurm or two_hosts" >&2; exit 2 ;;
  esac
done

scripts/install.sh --tests
skipped=()
if ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
  for source in tests/emulated_cuda/*_test.*; do
    skipped+=("$(basename "${source%.*}") (no CUDA toolkit)")
  done
fi

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export SPILLWAY_LONG=$long
labels=()  # of tests that are left out
if leave_out torch; then
  skipped+=("PyTorch comparisons")
  labels+=(torch)
else
  SPILLWAY_PYTHON=$(scripts/install_torch.sh)
  export SPILLWAY_PYTHON
fi
if leave_out tmpfs; then skipped+=("full disk"); export SPILLWAY_WITHOUT_TMPFS=1; fi
# Why this machine cannot have a cluster of its own, or nothing.
cluster_problem() {
  PYTHONPATH=tests python3 -B -c 'import sys, importlib
print(importlib.import_module("cluster." + sys.argv[1]).missing())' "$1"
}
for name in slurm two_hosts; do
  problem=$(cluster_problem $name)
  if leave_out $name; then problem="left out"; fi
  if [ -n "$problem" ]; then skipped+=("$name tests: $problem"); labels+=($name); fi
done
exclude=()
if [ ${#labels[@]} -gt 0 ]; then exclude=(-LE "^($(IFS='|'; echo "${labels[*]}"))$"); fi

# All that another script may have left out of this folder.
cmake --preset release -DSPILLWAY_TESTS=ON -DSPILLWAY_CUDA=AUTO "-DSPILLWAY_CUDA_ARCHITECTURES=80;90" |
  grep -E "CUDA backend|error" || true
cmake --build build
passed=0 failed=0
run_ctest() {  # folder, extra arguments
  local log status=0
  log=$(mktemp)
  ctest --test-dir "$1" --output-on-failure "${@:2}" 2>&1 | tee "$log" || status=$?
  local total bad
  total=$(sed -nE 's/.*tests passed, ([0-9]+) tests failed out of ([0-9]+).*/\2/p' "$log" | tail -n 1)
  bad=$(sed -nE 's/.*tests passed, ([0-9]+) tests failed out of ([0-9]+).*/\1/p' "$log" | tail -n 1)
  passed=$((passed + ${total:-0} - ${bad:-0}))
  failed=$((failed + ${bad:-1}))
  rm -f "$log"
}
run_ctest build "${exclude[@]}"

if leave_out sanitizers; then
  skipped+=("sanitizer builds")
else
  for preset in asan tsan; do
    if scripts/test_sanitizers.sh $preset; then
      passed=$((passed + 1))
    else
      echo "FAILED: scripts/test_sanitizers.sh $preset"
      failed=$((failed + 1))
    fi
  done
fi

if leave_out fuzz; then
  skipped+=("fuzzing")
elif scripts/test_fuzz.sh; then
  passed=$((passed + 1))
else
  echo "FAILED: scripts/test_fuzz.sh"
  failed=$((failed + 1))
fi

for name in "${skipped[@]-}"; do [ -z "$name" ] || echo "skipped: $name"; done
echo "$passed passed, $failed failed, ${#skipped[@]} skipped"
[ "$failed" = 0 ]
