/* The peer on a computer, behind a file descriptor: its own model in a process, for tests of a line. Usage: PROGRAM PORT */
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "link.h"

static int port;

static void send(const uint8_t *bytes, size_t size) {
  while (size > 0) {
    const ssize_t sent = write(port, bytes, size);
    if (sent <= 0) exit(1);
    bytes += sent;
    size -= (size_t)sent;
  }
}

int main(int count, char **arguments) {
  uint8_t bytes[256];
  if (count != 2 || (port = open(arguments[1], O_RDWR | O_NOCTTY)) < 0) return 2;
  edgekit_link_start((uint32_t)time(NULL), send);
  for (;;) {
    const ssize_t got = read(port, bytes, sizeof bytes);
    if (got <= 0) return 1;
    for (ssize_t i = 0; i < got; i++) edgekit_link_byte(bytes[i]);
  }
}
