/* The peer on bare metal: the CMSDK UART of Arm's MPS2 boards. For another chip replace the three functions of the port. */
#include "link.h"
#include "startup.h"

#ifndef EDGEKIT_UART
#define EDGEKIT_UART 0x40004000u
#endif
#ifndef EDGEKIT_UART_DIVISOR
#define EDGEKIT_UART_DIVISOR 217u /* 25 MHz to 115200 baud */
#endif

struct uart {
  volatile uint32_t data, state, control, interrupts, divisor;
};

static struct uart *const uart = (struct uart *)EDGEKIT_UART;

static void port_open(void) {
  uart->divisor = EDGEKIT_UART_DIVISOR;
  uart->control = 3; /* send and receive */
}

static uint8_t port_get(void) {
  while (!(uart->state & 2)) {}
  return (uint8_t)uart->data;
}

static void port_put(const uint8_t *bytes, size_t size) {
  for (size_t i = 0; i < size; i++) {
    while (uart->state & 1) {}
    uart->data = bytes[i];
  }
}

void edgekit_fault(uint32_t cfsr, uint32_t program_counter) {
  (void)cfsr, (void)program_counter;
  for (;;) {}
}

void edgekit_exit(int code) {
  (void)code;
  for (;;) {}
}

int main(void) {
  port_open();
  edgekit_link_start((uint32_t)edgekit_ticks(), port_put);
  for (;;) edgekit_link_byte(port_get());
}
