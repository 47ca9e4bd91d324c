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

# Each kind of GPU with one of the compilers, and H100 with both: a compilation takes seconds.
cuda_kernels() {
  install_locked nvidia-cuda-nvdisasm
  with_cuda cuda12 70 80 90
  with_cuda cuda13 75 86 89 90 100 120
  # The rest sees nothing of the compiler.
  "$bin/pytest" -q --all tests/cuda --ignore tests/cuda/test_device.py --ignore tests/cuda/test_compiling.py
}

# with_cuda EXTRA CAPABILITY...: compile for those GPUs, and test what uses the compiler.
with_cuda() {
  note "bf16codecs[$1]"
  install_cuda "$1"
  "$bin/python" .ci/steps/look_into_kernels.py "${@:2}"
  "$bin/pytest" -q --all tests/cuda/test_device.py tests/cuda/test_compiling.py
}
