#include "semihost.h"

enum { SYS_OPEN = 0x01, SYS_WRITE = 0x05, SYS_READ = 0x06, SYS_EXIT_EXTENDED = 0x20 };

static long call(long operation, const void *argument) {
  register long r0 __asm__("r0") = operation;
  register const void *r1 __asm__("r1") = argument;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}

long semihost_open(const char *name, size_t length, int mode) {
  const uintptr_t block[3] = {(uintptr_t)name, (uintptr_t)mode, length};
  return call(SYS_OPEN, block);
}

/* Both calls return how many bytes were not moved; a pipe moves fewer than asked. */
static int move(long operation, long file, uintptr_t at, size_t size) {
  while (size > 0) {
    const uintptr_t block[3] = {(uintptr_t)file, at, size};
    const long left = call(operation, block);
    if (left < 0 || (size_t)left >= size) return -1;
    at += size - (size_t)left;
    size = (size_t)left;
  }
  return 0;
}

int semihost_read(long file, void *bytes, size_t size) { return move(SYS_READ, file, (uintptr_t)bytes, size); }

int semihost_write(long file, const void *bytes, size_t size) { return move(SYS_WRITE, file, (uintptr_t)bytes, size); }

void semihost_exit(int code) {
  const uintptr_t block[2] = {0x20026, (uintptr_t)code}; /* ADP_Stopped_ApplicationExit */
  for (;;) call(SYS_EXIT_EXTENDED, block);
}
