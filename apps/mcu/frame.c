#include "frame.h"

#include <string.h>

uint32_t edgekit_get32(const uint8_t *at) { return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24; }

void edgekit_put32(uint8_t *at, uint32_t value) {
  for (int i = 0; i < 4; i++) at[i] = (uint8_t)(value >> 8 * i);
}

uint32_t edgekit_crc32(const uint8_t *bytes, size_t size) {
  uint32_t crc = 0xFFFFFFFFu;
  for (size_t i = 0; i < size; i++) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0xEDB88320u & (0u - (crc & 1u)));
  }
  return ~crc;
}

static size_t stuff(const uint8_t *body, size_t size, uint8_t *out) {
  size_t code_at = 0, at = 1;
  for (size_t i = 0; i < size; i++) {
    if (body[i] != 0) out[at++] = body[i];
    if (body[i] == 0 || at - code_at == 255) {
      out[code_at] = (uint8_t)(at - code_at);
      code_at = at++;
    }
  }
  out[code_at] = (uint8_t)(at - code_at);
  return at;
}

/* The size of the body, or 0 when it is malformed. */
static size_t unstuff(const uint8_t *bytes, size_t size, uint8_t *body) {
  size_t made = 0;
  for (size_t at = 0; at < size;) {
    const size_t code = bytes[at++];
    if (code == 0 || at + code - 1 > size || made + code > EDGEKIT_BODY_MAX + 1) return 0;
    memcpy(body + made, bytes + at, code - 1);
    made += code - 1;
    at += code - 1;
    if (code < 255 && at < size) body[made++] = 0;
  }
  return made <= EDGEKIT_BODY_MAX ? made : 0;
}

size_t edgekit_frame_encode(struct edgekit_frame *frame, uint8_t *out) {
  uint8_t body[EDGEKIT_BODY_MAX];
  body[0] = (uint8_t)frame->sequence;
  body[1] = (uint8_t)(frame->sequence >> 8);
  body[2] = frame->kind;
  memcpy(body + 3, frame->payload, frame->size);
  frame->crc = edgekit_crc32(body, 3u + frame->size);
  edgekit_put32(body + 3 + frame->size, frame->crc);
  out[0] = 0;
  const size_t size = stuff(body, 7u + frame->size, out + 1);
  out[1 + size] = 0;
  return size + 2;
}

static int decode(const struct edgekit_receiver *receiver, struct edgekit_frame *frame) {
  uint8_t body[EDGEKIT_BODY_MAX + 1];
  const size_t size = unstuff(receiver->bytes, receiver->size, body);
  if (size < 7 || edgekit_crc32(body, size - 4) != edgekit_get32(body + size - 4)) return 0;
  frame->sequence = (uint16_t)(body[0] | body[1] << 8);
  frame->kind = body[2];
  frame->size = (uint16_t)(size - 7);
  frame->crc = edgekit_get32(body + size - 4);
  memcpy(frame->payload, body + 3, frame->size);
  return 1;
}

int edgekit_frame_byte(struct edgekit_receiver *receiver, uint8_t byte, struct edgekit_frame *frame) {
  if (byte == 0) {
    const int sound = receiver->size > 0 && receiver->size <= EDGEKIT_FRAME_MAX && decode(receiver, frame);
    receiver->size = 0;
    return sound;
  }
  if (receiver->size < EDGEKIT_FRAME_MAX) receiver->bytes[receiver->size] = byte;
  if (receiver->size <= EDGEKIT_FRAME_MAX) receiver->size++;
  return 0;
}
