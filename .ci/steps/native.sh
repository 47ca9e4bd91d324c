# The native core: its kernels on every platform at hand, fuzzing, and what only a special build shows.

# test_kernels COMMAND...: run that program. Its last line, a digest of all frames that it encoded
# and decoded, has to be the same every time.
test_kernels() {
  local output last
  output=$("$@") || { note "$output"; return 1; }
  output=${output//$'\r'/}  # which Windows writes
  last=${output##*$'\n'}
  note "${output//$'\n'/, }"
  [ "${digest:=$last}" = "$last" ] || { note "not the bytes of before: $digest"; return 1; }
}

fuzz_targets=(tests/native/fuzz/corpus/*)
fuzz_targets=("${fuzz_targets[@]##*/}")

# replay_corpora FOLDER [COMMAND...]: run what fuzzing found through every target, without a fuzzer.
replay_corpora() {
  local target
  for target in "${fuzz_targets[@]}"; do
    quietly "replay-$target.log" "${@:2}" "$scratch/$1/fuzz/fuzz_$target" \
      "tests/native/fuzz/corpus/$target"
  done
}

native_kernels() {
  build native tests/native "kernels_test pool_test block_bench best_bench delta_bench" \
    -DBF16CODECS_WERROR=ON
  test_kernels "$scratch/native/kernels_test"
  test_kernels env BF16CODECS_ISA=scalar "$scratch/native/kernels_test"
  quietly pool.log "$scratch/native/pool_test"
}

# fuzz_one TARGET: for ten seconds; shows what libFuzzer says only if it finds something.
fuzz_one() {
  local log=$scratch/fuzz-$1.log
  if ! tests/native/fuzz/run "$scratch/fuzz" "$1" 10 "$scratch/found" >"$log" 2>&1; then
    tail -n 100 "$log"
    for input in "$scratch/found/$1"-*; do note "$(basename "$input"): $(base64 -w 0 "$input")"; done
    return 1
  fi
  note "$1: $(awk '/number_of_executed_units/ {print $2}' "$log") inputs"
}

# The kernels for CUDA, with sanitizers; the goldens whole, of which a fuzzer takes no more than its
# limit.
kernels_in_lockstep() {
  quietly goldens.log "$scratch/fuzz/fuzz/fuzz_device" tests/goldens/*.frame
  quietly lockstep.log "$scratch/fuzz/lockstep_test"
  note "kernels for CUDA, in lockstep: $(cat "$scratch/lockstep.log")"
}

fuzz() {
  if ! has_libfuzzer; then
    note "NO clang with libFuzzer: the corpora are replayed alone"
    build fuzz tests/native "fuzz lockstep_test" "${quickly_built[@]}" -DBF16CODECS_SANITIZE=address
    replay_corpora fuzz
    kernels_in_lockstep
    return
  fi
  build fuzz tests/native "fuzz lockstep_test" -DCMAKE_CXX_COMPILER=clang++ "${quickly_built[@]}" \
    -DBF16CODECS_SANITIZE=address -DBF16CODECS_FUZZ=ON
  kernels_in_lockstep
  local target
  for target in "${fuzz_targets[@]}"; do fuzz_one "$target"; done
}

# What only programs of their own show: races between threads, and, when files are joined, that two of
# them mean different things by one name. In a Debug build, nothing has been optimised away before.
threads_and_names() {
  local sanitize=thread
  [ -e "$(c++ -print-file-name=libtsan.so)" ] || { note "NO libtsan: only names"; sanitize=OFF; }
  build debug tests/native "pool_test race_test filter_race_test h5bf16codecs" \
    -DCMAKE_BUILD_TYPE=Debug -DBF16CODECS_LTO=ON -DBF16CODECS_WERROR=ON \
    -DBF16CODECS_SANITIZE="$sanitize"
  quietly pool.log "$scratch/debug/pool_test"
  quietly races.log "$scratch/debug/race_test"
  quietly filter-races.log "$scratch/debug/filter_race_test"
}

# The vector kernels of x86-64 may not leak into other machines' builds. Warnings are not errors
# here: the cross compiler has false ones of its own.
cross_compile() {
  if ! command -v aarch64-linux-gnu-g++ >/dev/null; then
    note "NO cross compiler: left out"
    return
  fi
  local targets=kernels_test
  [ -z "${BF16CODECS_ALL_PLATFORMS:-}" ] || targets+=" fuzz"
  build aarch64 tests/native "$targets" -DCMAKE_SYSTEM_NAME=Linux \
    -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++
  if ! command -v qemu-aarch64 >/dev/null; then
    note "NO qemu-aarch64: built, not run"
    return
  fi
  local emulate=(qemu-aarch64 -L /usr/aarch64-linux-gnu)
  test_kernels "${emulate[@]}" "$scratch/aarch64/kernels_test"
  [ "$targets" = kernels_test ] || replay_corpora aarch64 "${emulate[@]}"
}
