# netCDF-C reads and writes stores with our codecs. Debian's is built without filters for Zarr, so
# its source package is built with them, which takes half a minute.

# fetch_netcdf_source FOLDER: unpack the source package into a folder.
fetch_netcdf_source() {
  local apt=$1/apt options tarball
  command -v apt-get >/dev/null || return 1
  mkdir -p "$apt/sources" "$apt/lists/partial" "$1/source"
  sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >"$apt/sources.list" 2>/dev/null || true
  for file in /etc/apt/sources.list.d/*.sources; do
    [ ! -e "$file" ] || sed 's/^Types:.*/Types: deb-src/' "$file" >"$apt/sources/${file##*/}"
  done
  options=(-o "Dir::Etc::SourceList=$apt/sources.list" -o "Dir::Etc::SourceParts=$apt/sources"
    -o "Dir::State::Lists=$apt/lists" -o "Dir::Cache=$apt" -o "APT::Sandbox::User=$(id -un)")
  apt-get "${options[@]}" update -qq || return 1
  (cd "$1" && apt-get "${options[@]}" source -qq --download-only netcdf) || return 1
  tarball=$(find "$1" -maxdepth 1 -name 'netcdf_*.orig.tar.*' ! -name '*.asc')
  [ -n "$tarball" ] && tar xf "$tarball" -C "$1/source" --strip-components 1
}

# build_netcdf FOLDER: into FOLDER/prefix. Options are called NETCDF_ENABLE_... from 4.9.3 on.
build_netcdf() {
  local options=(-DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_LIBDIR=lib
    "-DCMAKE_INSTALL_PREFIX=$1/prefix" "-DCMAKE_INSTALL_RPATH=$1/prefix/lib")
  local name
  for name in PLUGINS NCZARR_FILTERS; do
    options+=("-DENABLE_$name=ON" "-DNETCDF_ENABLE_$name=ON")
  done
  for name in DAP BYTERANGE LIBXML2 TESTS EXAMPLES FILTER_TESTING; do
    options+=("-DENABLE_$name=OFF" "-DNETCDF_ENABLE_$name=OFF")
  done
  PATH=$bin:$PATH cmake -S "$1/source" -B "$1/build" -G Ninja "${options[@]}" &&
    PATH=$bin:$PATH cmake --build "$1/build" &&
    PATH=$bin:$PATH cmake --install "$1/build"
}

netcdf() {
  local folder=$scratch/netcdf
  mkdir "$folder"
  if ! fetch_netcdf_source "$folder" >"$scratch/netcdf-source.log" 2>&1; then
    note "NO source package of netCDF: only Python's netCDF4 is tested"
  else
    quietly netcdf.log build_netcdf "$folder"
    note "$("$folder/prefix/bin/nc-config" --version)"
  fi
  PATH=$folder/prefix/bin:$PATH "$bin/pytest" -q --all tests/netcdf
}
