# WebAssembly, with the clang of Zig: `pip install ziglang` brings it for every platform, and beside
# it the C and C++ libraries, as sources of which it compiles what is needed.
set(CMAKE_SYSTEM_NAME WASI)
set(CMAKE_SYSTEM_PROCESSOR wasm32)
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ZIG)

find_program(ZIG zig)
if(NOT ZIG)
  # A script of the package starts Python each time; it knows where the program is.
  find_program(PYTHON_ZIG python-zig REQUIRED)
  execute_process(COMMAND "${PYTHON_ZIG}" env OUTPUT_VARIABLE zig_env COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCH "zig_exe\"?[ =:]+\"([^\"]+)\"" zig_env "${zig_env}")
  set(ZIG "${CMAKE_MATCH_1}" CACHE FILEPATH "The program zig" FORCE)
endif()

foreach(language C CXX)
  set(CMAKE_${language}_COMPILER_TARGET wasm32-wasi)
  set(CMAKE_${language}_ARCHIVE_CREATE "\"${ZIG}\" ar qc <TARGET> <OBJECTS>")
  set(CMAKE_${language}_ARCHIVE_APPEND "\"${ZIG}\" ar q <TARGET> <OBJECTS>")
  set(CMAKE_${language}_ARCHIVE_FINISH "\"${ZIG}\" ranlib <TARGET>")
  # WebAssembly's own exceptions, in the form that every browser since 2022 has.
  set(CMAKE_${language}_FLAGS_INIT
    "-fwasm-exceptions -mexception-handling -mllvm -wasm-use-legacy-eh=true")
  set(CMAKE_EXECUTABLE_SUFFIX_${language} .wasm)
endforeach()
set(CMAKE_C_COMPILER "${ZIG}" cc)
set(CMAKE_CXX_COMPILER "${ZIG}" c++)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)
set(CMAKE_PROJECT_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/exceptions.cmake")
