/* Arm semihosting: files of the host that runs the emulator or the debugger. */
#ifndef EDGEKIT_SEMIHOST_H
#define EDGEKIT_SEMIHOST_H
#include <stddef.h>
#include <stdint.h>

enum { SEMIHOST_READ = 1, SEMIHOST_WRITE = 5 };

long semihost_open(const char *name, size_t length, int mode);
int semihost_read(long file, void *bytes, size_t size);   /* the whole size, or -1 */
int semihost_write(long file, const void *bytes, size_t size);
_Noreturn void semihost_exit(int code);
#endif
