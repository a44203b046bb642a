#!/usr/bin/env bash
# Builds with sanitizers and runs what they are for: ASan and UBSan over bad input and the parsers,
# TSan over a run whose program verified.
#   scripts/test_sanitizers.sh asan|tsan
set -euo pipefail
cd "$(dirname "$0")/.."
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

case ${1:-} in
  asan)
    cmake --preset asan >/dev/null
    tests=(config_bad_input_test config_schema_test data_files_test data_dataset_test
      checkpoint_roundtrip_test checkpoint_damage_test metrics_test lower_test verify_test)
    cmake --build build-asan --target train "${tests[@]}"
    pattern=$(IFS='|'; echo "${tests[*]}")
    ctest --test-dir build-asan --output-on-failure -R "^($pattern|bad_input_test)$"
    ;;
  tsan)
    cmake --preset tsan -DSPILLWAY_TESTS=OFF >/dev/null
    cmake --build build-tsan --target train
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    for precision in f32 bf16; do
      log=$folder/$precision.log
      TSAN_OPTIONS=halt_on_error=1 build-tsan/train --config tests/e2e/tsan.json \
        --set "output=$folder/$precision" --set train.precision=$precision --chaos-seed 1 \
        --chaos-us 200 >"$log" 2>&1 || { cat "$log"; exit 1; }
      ! grep -q "ThreadSanitizer" "$log" || { cat "$log"; exit 1; }
      echo "tsan: a streaming $precision run of $(grep -c '"step"' "$folder/$precision/metrics.jsonl") steps: nothing found"
    done
    ;;
  *)
    echo "test_sanitizers.sh: expected asan or tsan" >&2
    exit 2
    ;;
esac
