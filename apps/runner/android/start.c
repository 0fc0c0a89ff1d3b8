/* Start of the program under Android's C library, for a build without the NDK. Compiled against musl's headers. */

int main(int argc, char **argv);

typedef void (*function)(void);
struct arrays { function *preinit, *init, *fini; }; /* bionic's structors_array_t; each begins with -1 and ends with 0 */

void __libc_init(void *raw, void (*unused)(void), int (*entry)(int, char **), const struct arrays *arrays) __attribute__((noreturn));
void start_c(void *stack) __attribute__((noreturn, used));
int *__errno(void);

int *__errno_location(void); /* what musl's errno calls */
int *__errno_location(void) { return __errno(); }

void start_c(void *stack) {
  static function none[] = {(function)-1, 0};
  struct arrays arrays = {none, none, none};
  __libc_init(stack, 0, main, &arrays);
}

#if defined(__aarch64__)
__asm__(".globl _start\n.type _start,%function\n_start:\n mov x29, xzr\n mov x30, xzr\n mov x0, sp\n b start_c\n");
#elif defined(__x86_64__)
__asm__(".globl _start\n.type _start,@function\n_start:\n xorl %ebp, %ebp\n movq %rsp, %rdi\n andq $-16, %rsp\n call start_c\n");
#else
#error "no entry point for this processor"
#endif
