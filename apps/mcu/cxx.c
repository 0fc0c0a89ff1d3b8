/* What C++ asks of a board without an operating system: an end for what must not happen, instead of newlib's, which bring printf and a heap. */
_Noreturn void abort(void);
_Noreturn void __assert_func(const char *file, int line, const char *function, const char *text);
_Noreturn void __cxa_pure_virtual(void);

_Noreturn void abort(void) { __builtin_trap(); }

_Noreturn void __assert_func(const char *file, int line, const char *function, const char *text) {
  (void)file, (void)line, (void)function, (void)text;
  __builtin_trap();
}

_Noreturn void __cxa_pure_virtual(void) { __builtin_trap(); }
