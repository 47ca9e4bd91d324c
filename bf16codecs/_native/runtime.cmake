# The C++ runtime. Programs that load the HDF5 plugin need not have one that is new enough, or any.
include_guard(DIRECTORY)

if(MSVC)
  # Its own, but the C library of Windows: what libhdf5 allocates, the filter frees.
  set(CMAKE_MSVC_RUNTIME_LIBRARY "MultiThreaded$<$<CONFIG:Debug>:Debug>")
  add_link_options(
    $<IF:$<CONFIG:Debug>,/NODEFAULTLIB:libucrtd.lib,/NODEFAULTLIB:libucrt.lib>
    $<IF:$<CONFIG:Debug>,/DEFAULTLIB:ucrtd.lib,/DEFAULTLIB:ucrt.lib>)
elseif("$ENV{AUDITWHEEL_PLAT}" MATCHES "musllinux")
  # A wheel for musl has to bring one; nanobind links its own in such a build.
  add_link_options(-static-libstdc++ -static-libgcc)
endif()
