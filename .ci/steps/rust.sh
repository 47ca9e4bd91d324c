# The Rust crate on the C library that install_alone installs. It has no dependencies; the one for zarrs has
# some, which cannot be had here: docs/howto/rust.md says how it was tested.

links_zstd() { echo 'int main(void) { return 0; }' | cc -x c - -lzstd -o "$scratch/links_zstd"; } 2>/dev/null

rust() {
  local crate=examples/zarrs/bf16codecs features=zstd
  if ! command -v cargo >/dev/null; then
    note "NO cargo: the Rust crate is not built"
    return
  fi
  note "$(cargo --version); NO zarrs: its codecs are not built"
  links_zstd || install_package libzstd-dev
  links_zstd || { note "NO libzstd: frames of Zstandard are left out"; features=""; }
  if cargo fmt --version >/dev/null 2>&1; then
    cargo fmt --check --manifest-path "$crate/Cargo.toml"
  fi
  install_alone
  export BF16CODECS_C_PREFIX=$scratch/prefix
  if cargo clippy --version >/dev/null 2>&1; then
    CARGO_TARGET_DIR=$scratch/clippy quietly clippy.log cargo clippy --offline --locked --all-targets \
      --features "$features" --manifest-path "$crate/Cargo.toml" -- -D warnings
  fi
  BF16CODECS_RUST_FEATURES=$features "$bin/pytest" -q --all tests/rust
  unset BF16CODECS_C_PREFIX
}
