/* Frames on a byte stream (SERIAL.md). No heap, no state but the caller's. */
#ifndef EDGEKIT_FRAME_H
#define EDGEKIT_FRAME_H
#include <stddef.h>
#include <stdint.h>

enum {
  EDGEKIT_PAYLOAD_MAX = 256,
  EDGEKIT_BODY_MAX = 3 + EDGEKIT_PAYLOAD_MAX + 4,
  EDGEKIT_FRAME_MAX = EDGEKIT_BODY_MAX + EDGEKIT_BODY_MAX / 254 + 1
};

struct edgekit_frame {
  uint16_t sequence;
  uint8_t kind;
  uint16_t size;
  uint32_t crc;
  uint8_t payload[EDGEKIT_PAYLOAD_MAX];
};

struct edgekit_receiver {
  uint16_t size; /* EDGEKIT_FRAME_MAX + 1: too long */
  uint8_t bytes[EDGEKIT_FRAME_MAX];
};

uint32_t edgekit_crc32(const uint8_t *bytes, size_t size);
/* Writes a frame with its zeros into `out` (EDGEKIT_FRAME_MAX + 2 bytes); returns its size. Sets frame->crc. */
size_t edgekit_frame_encode(struct edgekit_frame *frame, uint8_t *out);
/* Takes one byte; 1 when it completed a sound frame. */
int edgekit_frame_byte(struct edgekit_receiver *receiver, uint8_t byte, struct edgekit_frame *frame);
uint32_t edgekit_get32(const uint8_t *at);
void edgekit_put32(uint8_t *at, uint32_t value);
#endif
