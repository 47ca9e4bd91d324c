# Decoding on GPUs, without one: with the compilers of both versions of CUDA that drivers are for,
# and what stands in for a driver.

# install_cuda EXTRA: what that extra of the package has, and nothing of the other.
install_cuda() {
  local wanted
  wanted=$("$bin/python" - "$1" <<'END'
import sys, tomllib
with open("pyproject.toml", "rb") as file:
    print(*(r.partition(";")[0] for r in tomllib.load(file)["project"]["optional-dependencies"][sys.argv[1]]))
END
  )
  "$bin/pip" uninstall -qy nvidia-cuda-nvrtc nvidia-cuda-nvrtc-cu12
  # shellcheck disable=SC2086
  install_locked $wanted
}

cuda_kernels() {
  local extra
  for extra in cuda12 cuda13; do
    note "bf16codecs[$extra]"
    install_cuda "$extra"
    "$bin/python" .ci/steps/look_into_kernels.py
    "$bin/pytest" -q tests/cuda
  done
}
