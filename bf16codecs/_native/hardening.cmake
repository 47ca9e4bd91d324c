# What compiler and linker offer against the consequences of a bug, where they have it: decoders read
# what strangers wrote. It costs 0.2 % more instructions. The assertions of the standard library are
# not among them: they made level "best" 11 % slower.
include_guard(DIRECTORY)
include(CheckCXXCompilerFlag)
include(CheckCXXSourceCompiles)
include(CheckLinkerFlag)

if(MSVC)
  add_compile_options(/guard:cf)  # a checked stack (/GS) is the default
  add_link_options(/guard:cf)
  return()
endif()

# Stack: canaries, no jump over its guard page. Branches: CET of x86-64, BTI and PAC of AArch64.
set(CMAKE_REQUIRED_FLAGS -Werror)  # Clang only warns of what is not for this processor
foreach(option -fstack-protector-strong -fstack-clash-protection
    -fcf-protection=full -mbranch-protection=standard)
  string(MAKE_C_IDENTIFIER "BF16CODECS_HAS${option}" has_option)
  check_cxx_compiler_flag(${option} ${has_option})
  if(${has_option})
    add_compile_options(${option})
  endif()
endforeach()
unset(CMAKE_REQUIRED_FLAGS)

# Checked calls of the C library. They need optimization, and get in the way of the sanitizers.
if(NOT BF16CODECS_SANITIZE)
  set(CMAKE_REQUIRED_FLAGS "-O2 -Werror -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3")
  check_cxx_source_compiles("#include <cstring>\nint main() {}" BF16CODECS_HAS_FORTIFY_3)
  unset(CMAKE_REQUIRED_FLAGS)
  set(fortify -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=$<IF:$<BOOL:${BF16CODECS_HAS_FORTIFY_3}>,3,2>)
  add_compile_options("$<$<NOT:$<CONFIG:Debug>>:${fortify}>")
endif()

if(APPLE OR WIN32)
  return()  # their formats have no such options
endif()

# Tables of addresses that are read-only once they are filled, at once; a stack without code.
set(options relro now noexecstack)
if(BF16CODECS_HAS_fcf_protection_full)
  list(APPEND options shstk)  # said here, since Debian's start files do not say it of themselves
endif()
foreach(option ${options})
  check_linker_flag(CXX "LINKER:-z,${option}" BF16CODECS_HAS_Z_${option})
  if(BF16CODECS_HAS_Z_${option})
    add_link_options("LINKER:-z,${option}")
  endif()
endforeach()
