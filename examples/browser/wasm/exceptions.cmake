# What C++ exceptions need at run time, linked to every program: Zig builds its libraries without
# them, but has the sources, LLVM's libc++abi and libunwind.
if(TARGET wasm_exceptions OR PROJECT_NAME STREQUAL "CMAKE_TRY_COMPILE")
  return()
endif()
enable_language(C)
# A module is not position-independent: data would be found by way of tables.
foreach(language C CXX)
  set(CMAKE_${language}_COMPILE_OPTIONS_PIC "")
endforeach()

get_filename_component(zig_lib "${ZIG}" DIRECTORY)
set(zig_lib "${zig_lib}/lib")
if(NOT EXISTS "${zig_lib}/libcxxabi")
  message(FATAL_ERROR "${ZIG} has no folder lib beside it: set ZIG to the program itself")
endif()

add_library(wasm_exceptions STATIC
  "${CMAKE_CURRENT_LIST_DIR}/exception_tag.c"
  "${zig_lib}/libcxxabi/src/cxa_exception.cpp"
  "${zig_lib}/libcxxabi/src/cxa_personality.cpp"
  "${zig_lib}/libunwind/src/Unwind-wasm.c")
target_compile_features(wasm_exceptions PRIVATE cxx_std_23 c_std_11)
target_compile_definitions(wasm_exceptions PRIVATE
  _LIBCPP_BUILDING_LIBRARY LIBCXX_BUILDING_LIBCXXABI _LIBCXXABI_BUILDING_LIBRARY
  _LIBCXXABI_HAS_NO_THREADS _LIBUNWIND_HIDE_SYMBOLS)
target_include_directories(wasm_exceptions PRIVATE
  $<$<COMPILE_LANGUAGE:CXX>:${zig_lib}/libcxxabi/include>
  $<$<COMPILE_LANGUAGE:CXX>:${zig_lib}/libcxx/src>
  "${zig_lib}/libunwind/include")
target_compile_options(wasm_exceptions PRIVATE -w -O2)
link_libraries(wasm_exceptions)
