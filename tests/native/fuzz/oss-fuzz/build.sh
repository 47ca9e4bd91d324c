#!/bin/bash -eu
# Builds the fuzz targets as OSS-Fuzz asks for it: with $CXX, $CXXFLAGS and $LIB_FUZZING_ENGINE, to
# $OUT, each with its options and its corpus.

fuzz=$SRC/bf16codecs/tests/native/fuzz

cmake -S "$fuzz/.." -B "$WORK/build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DBF16CODECS_FUZZ=ON -DBF16CODECS_FUZZ_ENGINE="$LIB_FUZZING_ENGINE"
cmake --build "$WORK/build" --target fuzz

for options in "$fuzz"/options/*.options; do
  name=$(basename "$options" .options)
  cp "$WORK/build/fuzz/$name" "$options" "$OUT"
  corpora=("$fuzz/corpus/${name#fuzz_}")
  case $name in
    fuzz_decode | fuzz_device | fuzz_index | fuzz_partial) corpora+=("$fuzz/../../goldens") ;;
  esac
  rm -f "$OUT/${name}_seed_corpus.zip"
  zip -qrj "$OUT/${name}_seed_corpus.zip" "${corpora[@]}"
done
