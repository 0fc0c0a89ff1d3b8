/* The peer on Zephyr: the console UART, polled. Add the sources of apps/mcu (frame.c, link.c) and the generated model to the application. */
#include <zephyr/device.h>
#include <zephyr/drivers/uart.h>
#include <zephyr/kernel.h>

#include "link.h"

static const struct device *const uart = DEVICE_DT_GET(DT_CHOSEN(zephyr_console));

static void send(const uint8_t *bytes, size_t size) {
  for (size_t i = 0; i < size; i++) uart_poll_out(uart, bytes[i]);
}

int main(void) {
  unsigned char byte;
  if (!device_is_ready(uart)) return 0;
  edgekit_link_start(k_cycle_get_32(), send);
  for (;;)
    if (uart_poll_in(uart, &byte) == 0) edgekit_link_byte(byte);
}
