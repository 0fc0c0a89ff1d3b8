/* The resident peer of a serial line (SERIAL.md). The port feeds bytes and gives a function that sends. */
#ifndef EDGEKIT_LINK_H
#define EDGEKIT_LINK_H
#include <stddef.h>
#include <stdint.h>

/* Numbers of sessions go on after `boot`; any number will do, best one that differs from start to start. */
void edgekit_link_start(uint32_t boot, void (*send)(const uint8_t *bytes, size_t size));
void edgekit_link_byte(uint8_t byte);
#endif
