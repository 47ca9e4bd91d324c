/* The tag by which WebAssembly tells C++ exceptions, and that their value is an address: the
   compiler refers to it, and no library of Zig's defines it. */
__asm__(
    ".globl __cpp_exception\n"
    ".tagtype __cpp_exception i32\n"
    "__cpp_exception:\n");
