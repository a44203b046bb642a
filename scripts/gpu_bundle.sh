#!/usr/bin/env bash
# Packs a build for scripts/gpu_check.sh --prebuilt on a machine that has a driver and the CUDA
# toolkit's libraries, but not what else the build needs.
#   scripts/gpu_bundle.sh BUILD DIR
# BUILD holds `train` and `ops_cuda_test`. DIR gets them stripped, lib/ with the
# shared libraries they need (Open MPI, oneDNN and the rest; neither the C library nor NVIDIA's),
# openmpi/ with Open MPI's components, configs/, data/ and scripts/. At most 60 MiB, or it fails.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
if [ $# -ne 2 ]; then
  echo "gpu_bundle.sh: two folders are needed: gpu_bundle.sh BUILD DIR" >&2
  exit 2
fi
build=$1 dir=$2
for program in train ops_cuda_test; do
  [ -x "$build/$program" ] || { echo "gpu_bundle.sh: $build/$program is missing; build it first (cmake --build $build --target train ops_cuda_test)" >&2; exit 2; }
done
if [ -e "$dir" ]; then
  echo "gpu_bundle.sh: $dir exists already; name a folder that does not" >&2
  exit 2
fi

mkdir -p "$dir/lib" "$dir/openmpi" "$dir/data"
for program in train ops_cuda_test; do
  cp -L "$build/$program" "$dir/$program"
  strip "$dir/$program" 2>/dev/null || true
done
components=$(dirname "$(find -L /usr/lib /usr/lib64 /usr/local/lib -name 'mca_btl_self.so' 2>/dev/null | head -n 1)")
[ "$components" != . ] || { echo "gpu_bundle.sh: Open MPI's components (mca_btl_self.so) are not found" >&2; exit 1; }
for part in btl_self btl_vader btl_tcp pml_ob1 ess_singleton ess_env ess_pmi schizo_ompi schizo_orte \
            mpool_hugepage allocator_basic allocator_bucket rcache_grdma bml_r2 coll_basic coll_tuned \
            coll_self coll_inter coll_libnbc coll_sync pmix_ext3x pmix_isolated pmix_pmix3x \
            reachable_weighted shmem_mmap shmem_posix shmem_sysv state_app state_novm errmgr_default_app \
            grpcomm_direct oob_tcp rml_oob routed_direct routed_radix dfs_app filem_raw io_ompio osc_sm \
            osc_pt2pt osc_rdma topo_basic vprotocol_pessimist common_sm; do
  for file in "$components/mca_$part.so"; do [ ! -e "$file" ] || cp -L "$file" "$dir/openmpi/"; done
done

# What they load, but for the C library (the other machine's own) and NVIDIA's (the toolkit's).
ldd "$dir/train" "$dir/ops_cuda_test" "$dir"/openmpi/*.so 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' |
  sort -u | grep -Ev '/(ld-linux|libc\.so|libm\.so|libpthread|libdl\.so|librt\.so|libcuda|libcu[a-z]+|libnv|libnccl)' |
  while read -r library; do cp -L "$library" "$dir/lib/"; done
strip --strip-unneeded "$dir"/lib/*.so* "$dir"/openmpi/*.so 2>/dev/null || true
cp -r "$root/configs" "$dir/configs"
head -c 1000000 "$root/data/austen.txt" >"$dir/data/austen.txt"  # plenty for a few steps
mkdir "$dir/scripts"
cp "$root"/scripts/gpu_*.sh "$root"/scripts/gpu_*.py "$dir/scripts/"

# Large files travel packed; scripts/gpu_unpack.sh, which gpu_check.sh calls, unpacks them.
find "$dir" -maxdepth 2 -type f -size +8M -print0 | while IFS= read -r -d '' file; do gzip -6 "$file"; done

bytes=$(du -sb "$dir" | cut -f1)
echo "$dir: $((bytes >> 20)) MiB"
if [ "$bytes" -gt $((60 << 20)) ]; then
  echo "gpu_bundle.sh: that is more than 60 MiB" >&2
  exit 1
fi
