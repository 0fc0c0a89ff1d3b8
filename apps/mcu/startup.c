/* Reset, vectors, painted stack and the tick count of ARMv6-M, ARMv7-M and ARMv8-M cores. */
#include "startup.h"

#define SYST_CSR (*(volatile uint32_t *)0xE000E010u)
#define SYST_RVR (*(volatile uint32_t *)0xE000E014u)
#define SYST_CVR (*(volatile uint32_t *)0xE000E018u)
#define SCB_ICSR (*(volatile uint32_t *)0xE000ED04u)
#if __ARM_ARCH > 6 /* ARMv6-M tells no cause of a fault, and has no coprocessors to enable */
#define SCB_CFSR (*(volatile uint32_t *)0xE000ED28u)
#define SCB_CPACR (*(volatile uint32_t *)0xE000ED88u)
#else
#define SCB_CFSR 0u
#endif
#define PENDSTSET (1u << 26)

enum { PAINT = 0xA5C3A5C3 };

extern uint32_t _data_load, _data_start, _data_end, _bss_start, _bss_end, _stack_start, _stack_end;
static volatile uint32_t wraps;

int main(void);

static void systick(void) { wraps++; }

__attribute__((used)) static void fault_at(const uint32_t *frame) {
  const uintptr_t low = (uintptr_t)&_stack_start, high = (uintptr_t)&_stack_end - 32;
  const uintptr_t at = (uintptr_t)frame;
  edgekit_fault(SCB_CFSR, at >= low && at <= high ? frame[6] : 0); /* the stacked program counter */
}

/* The stack may be what broke: the handler starts on a fresh one. */
__attribute__((naked)) static void fault(void) { __asm__ volatile("mrs r0, msp\n ldr r1, =_stack_end\n msr msp, r1\n b fault_at\n"); }

__attribute__((noreturn, used)) static void begin(void) {
  for (uint32_t *from = &_data_load, *to = &_data_start; to < &_data_end;) *to++ = *from++;
  for (uint32_t *to = &_bss_start; to < &_bss_end;) *to++ = 0;
#ifdef SCB_CPACR
  SCB_CPACR |= 0xFu << 20; /* FPU, MVE */
#endif
  __asm__ volatile("dsb\n isb");
  SYST_RVR = 0xFFFFFF;
  SYST_CVR = 0;
  SYST_CSR = 7; /* processor clock, interrupt on wrap */
  edgekit_exit(main());
}

__attribute__((naked, used)) static void reset(void) {
  __asm__ volatile(
      ".syntax unified\n ldr r0, =_stack_start\n ldr r1, =_stack_end\n ldr r2, =0xA5C3A5C3\n"
      "1: str r2, [r0]\n adds r0, #4\n cmp r0, r1\n blo 1b\n"
      "b begin\n");
}

__attribute__((section(".vectors"), used)) static void *const vectors[16] = {
    &_stack_end, (void *)reset, (void *)fault, (void *)fault, (void *)fault, (void *)fault, (void *)fault, (void *)fault, 0, 0, 0,
    (void *)fault, (void *)fault, 0, (void *)fault, (void *)systick};

uint64_t edgekit_ticks(void) {
  for (;;) {
    const uint32_t before = wraps, count = SYST_CVR;
    if (before == wraps && !(SCB_ICSR & PENDSTSET)) return ((uint64_t)before << 24) + (0xFFFFFF - count);
  }
}

uint32_t edgekit_stack_bytes(void) {
  const uint32_t *at = &_stack_start;
  while (at < &_stack_end && *at == (uint32_t)PAINT) at++;
  return (uint32_t)((uintptr_t)&_stack_end - (uintptr_t)at);
}

int edgekit_stack_overflowed(void) { return _stack_start != (uint32_t)PAINT; }

/* Two instructions a turn. */
__attribute__((noinline)) static void spin(uint32_t turns) { __asm__ volatile(".syntax unified\n1: subs %0, #1\n bne 1b" : "+r"(turns) : : "cc"); }

uint32_t edgekit_calibrate(void) {
  const uint64_t start = edgekit_ticks();
  spin(1000000);
  return (uint32_t)(edgekit_ticks() - start);
}
