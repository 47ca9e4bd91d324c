# The C library and the HDF5 plugin, as somebody without Python builds and installs them.

# install_alone: into $scratch/prefix, once; the Rust crate is built on it, too.
install_alone() {
  [ ! -e "$scratch/prefix" ] || return 0
  build native-alone bf16codecs/_native all -DBF16CODECS_WERROR=ON \
    -DCMAKE_INSTALL_PREFIX="$scratch/prefix" -DBF16CODECS_HDF5_FILTER_ID=511
  PATH=$bin:$PATH quietly install.log cmake --install "$scratch/native-alone"
}

without_python() {
  install_alone
  HDF5_PLUGIN_PATH=$scratch/prefix/lib/plugin "$bin/pytest" -q --all tests/hdf5/test_tools.py \
    tests/hdf5/test_filter_numbers.py tests/hdf5/test_fuzz.py
  PATH=$bin:$PATH BF16CODECS_C_PREFIX=$scratch/prefix "$bin/pytest" -q --all tests/c_api
}
