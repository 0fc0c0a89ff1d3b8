#ifndef EDGEKIT_STARTUP_H
#define EDGEKIT_STARTUP_H
#include <stdint.h>

uint64_t edgekit_ticks(void);          /* SysTick since reset, wraps counted */
uint32_t edgekit_calibrate(void);      /* ticks of 2 000 000 instructions */
uint32_t edgekit_stack_bytes(void);    /* the deepest the stack has been since reset */
int edgekit_stack_overflowed(void);

/* The application gives these. */
_Noreturn void edgekit_fault(uint32_t cfsr, uint32_t program_counter);
_Noreturn void edgekit_exit(int code);
#endif
