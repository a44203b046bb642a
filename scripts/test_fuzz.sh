#!/usr/bin/env bash
# Builds the libFuzzer targets with clang and runs each on its kept corpus and on from there.
#   scripts/test_fuzz.sh [SECONDS]      (a minute each)
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
if ! command -v clang++ >/dev/null || ! ls /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-x86_64.a >/dev/null 2>&1; then
  $sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends clang \
    libclang-rt-14-dev >/dev/null
fi
cmake -G Ninja -B build-fuzz -DSPILLWAY_CUDA=OFF -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ \
  -DSPILLWAY_FUZZ=ON -DSPILLWAY_OWN_THREADS=ON >/dev/null
targets=(config_fuzz tokens_fuzz manifest_fuzz safetensors_fuzz)
cmake --build build-fuzz --target "${targets[@]}"
for target in "${targets[@]}"; do
  corpus=tests/fuzz/corpus/${target%_fuzz}
  found=build-fuzz/found-$target
  mkdir -p "$found"
  build-fuzz/"$target" -max_total_time="$seconds" -max_len=16384 -rss_limit_mb=4096 -print_final_stats=0 \
    -verbosity=0 "$found" "$corpus"
  echo "fuzz: $target ran for $seconds s on $(ls "$corpus" | wc -l) kept inputs, nothing found"
done
