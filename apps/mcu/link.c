#include "link.h"

#include <string.h>

#include "frame.h"
#include "edgekit_model.h"
#include "tensors.h"

#ifndef EDGEKIT_TICKS
#define EDGEKIT_TICKS() 0u
#endif

enum { HELLO = 1, INPUT = 2, RUN = 3, OUTPUT = 4, ANSWER = 128, ERROR = 255 };
enum { MALFORMED = 1, SESSION = 2, RANGE = 3, MODEL = 4, TURN = 5 };

static void *inputs[EDGEKIT_INPUTS], *outputs[EDGEKIT_OUTPUTS];
static struct edgekit_receiver receiver;
static struct edgekit_frame asked, answer;
static uint8_t wire[EDGEKIT_FRAME_MAX + 2];
static size_t wire_size;
static uint16_t last_sequence;
static uint32_t last_crc, session, next_session, runs;
static uint64_t last_ticks;
static void (*send_bytes)(const uint8_t *bytes, size_t size);

static void refuse(uint32_t code) {
  answer.kind = ERROR;
  answer.size = 4;
  edgekit_put32(answer.payload, code);
}

static void put(uint32_t value) {
  edgekit_put32(answer.payload + answer.size, value);
  answer.size = (uint16_t)(answer.size + 4);
}

static void hello(void) {
  if (asked.size != 4) return refuse(MALFORMED);
  if (edgekit_model_init() != 0) return refuse(MODEL);
  if (++next_session == 0) next_session = 1;
  session = next_session;
  runs = 0;
  put(edgekit_get32(asked.payload));
  put(session);
  put(EDGEKIT_MODEL_INTERFACE);
  put(EDGEKIT_INPUTS);
  put(EDGEKIT_OUTPUTS);
  for (size_t i = 0; i < EDGEKIT_INPUTS; i++) put(edgekit_input_sizes[i]);
  for (size_t i = 0; i < EDGEKIT_OUTPUTS; i++) put(edgekit_output_sizes[i]);
}

static void take_input(void) {
  if (asked.size < 9) return refuse(MALFORMED);
  const uint8_t index = asked.payload[4];
  const uint32_t offset = edgekit_get32(asked.payload + 5), count = asked.size - 9u;
  if (index >= EDGEKIT_INPUTS || offset > edgekit_input_sizes[index] || count > edgekit_input_sizes[index] - offset) return refuse(RANGE);
  memcpy((uint8_t *)inputs[index] + offset, asked.payload + 9, count);
  put(offset + count);
}

static void run(void) {
  if (asked.size != 8) return refuse(MALFORMED);
  const uint32_t number = edgekit_get32(asked.payload + 4);
  if (number == runs) {
    const uint64_t start = EDGEKIT_TICKS();
    if (edgekit_model_run((const void *const *)inputs, outputs) != 0) return refuse(MODEL);
    last_ticks = EDGEKIT_TICKS() - start;
    runs++;
  } else if (number + 1 != runs) {
    return refuse(TURN);
  }
  put((uint32_t)last_ticks);
  put((uint32_t)(last_ticks >> 32));
  put(0);
}

static void give_output(void) {
  if (asked.size != 11) return refuse(MALFORMED);
  const uint8_t index = asked.payload[4];
  const uint32_t offset = edgekit_get32(asked.payload + 5), count = asked.payload[9] | (uint32_t)asked.payload[10] << 8;
  if (index >= EDGEKIT_OUTPUTS || count > EDGEKIT_PAYLOAD_MAX || offset > edgekit_output_sizes[index] || count > edgekit_output_sizes[index] - offset)
    return refuse(RANGE);
  memcpy(answer.payload, (const uint8_t *)outputs[index] + offset, count);
  answer.size = (uint16_t)count;
}

static void work(void) {
  answer.sequence = asked.sequence;
  answer.kind = asked.kind | ANSWER;
  answer.size = 0;
  if (asked.kind == HELLO) return hello();
  if (asked.size < 4) return refuse(MALFORMED);
  if (session == 0 || edgekit_get32(asked.payload) != session) return refuse(SESSION);
  switch (asked.kind) {
    case INPUT: return take_input();
    case RUN: return run();
    case OUTPUT: return give_output();
    default: refuse(MALFORMED);
  }
}

void edgekit_link_start(uint32_t boot, void (*send)(const uint8_t *bytes, size_t size)) {
  edgekit_tensors(inputs, outputs);
  receiver.size = 0;
  wire_size = 0;
  session = 0;
  next_session = boot;
  send_bytes = send;
}

void edgekit_link_byte(uint8_t byte) {
  if (!edgekit_frame_byte(&receiver, byte, &asked)) return;
  if (asked.kind >= ANSWER) return;
  if (wire_size == 0 || asked.sequence != last_sequence || asked.crc != last_crc) {
    work();
    wire_size = edgekit_frame_encode(&answer, wire);
    last_sequence = asked.sequence;
    last_crc = asked.crc;
  }
  send_bytes(wire, wire_size);
}
