#!/usr/bin/env bash
# Installs PyTorch, safetensors and tokenizers into a private environment, for the comparisons of
# tests and benchmarks, and prints the command that runs its Python. Does nothing where it is already there.
# Folder: ${SPILLWAY_CACHE:-$HOME/.cache/spillway}/venv
set -euo pipefail

cache=${SPILLWAY_CACHE:-$HOME/.cache/spillway}
venv=$cache/venv
python=$cache/torch-python
version=2.15.0

# The wheel links CUDA libraries even when it computes on the CPU. Where the toolkit is installed
# they come from there, and the 3 GB of wheels are left out.
toolkit=$(ls -d /usr/local/cuda*/lib64 /usr/local/cuda*/lib 2>/dev/null | while read -r folder; do
  if [ -e "$folder/libcublas.so.13" ] && [ -e "$folder/libcudnn.so.9" ]; then
    echo "$folder"
    break
  fi
done)

if ! { [ -x "$python" ] && "$python" -c "import torch, numpy, safetensors, tokenizers; assert torch.__version__.startswith('$version')"; } 2>/dev/null; then
  mkdir -p "$cache"
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv" >&2
  pip=("$venv/bin/pip" install --quiet --disable-pip-version-check)
  small=(numpy safetensors tokenizers sympy networkx jinja2 filelock typing_extensions fsspec mpmath markupsafe
    "setuptools>=77.0.3")
  "${pip[@]}" "${small[@]}" >&2
  if [ -n "$toolkit" ]; then
    "${pip[@]}" --no-deps "torch==$version" nvidia-nccl-cu13 nvidia-cusparselt-cu13 \
      nvidia-nvshmem-cu13 nvidia-cufile >&2
  else
    "${pip[@]}" "torch==$version" >&2
  fi
  cat > "$python" <<WRAPPER
#!/usr/bin/env bash
# Python with PyTorch.
venv=$venv
export LD_LIBRARY_PATH=\$(ls -d "\$venv"/lib/python3*/site-packages/nvidia/*/lib 2>/dev/null | paste -sd:)${toolkit:+:$toolkit}\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
exec "\$venv/bin/python" "\$@"
WRAPPER
  chmod +x "$python"
  "$python" -c "import torch" >&2
fi
echo "$python"
