/* A model behind two pipes of the host (README.md: on the emulated core). */
#include "edgekit_model.h"
#include "semihost.h"
#include "startup.h"
#include "tensors.h"

#if EDGEKIT_MODEL_INTERFACE != 1
#error "edgekit_model.h speaks another version of the interface"
#endif

enum { MAGIC = 0x454B4D31, RUN = 1, OK = 0, MODEL_ERROR = 1, FAULT = 2, STACK_OVERFLOW = 3 };

/* A model with an interpreter may tell what its arena took. */
__attribute__((weak)) uint32_t edgekit_model_arena_used(void);

static long request = -1, reply = -1;

static void answer(uint32_t status, uint32_t code, uint64_t ticks) {
  const uint32_t head[5] = {status, code, (uint32_t)ticks, (uint32_t)(ticks >> 32), edgekit_stack_bytes()};
  if (semihost_write(reply, head, sizeof head) != 0) semihost_exit(3);
}

void edgekit_fault(uint32_t cfsr, uint32_t program_counter) {
  if (reply >= 0) answer(edgekit_stack_overflowed() ? STACK_OVERFLOW : FAULT, cfsr, program_counter);
  semihost_exit(99);
}

void edgekit_exit(int code) { semihost_exit(code); }

static void *inputs[EDGEKIT_INPUTS], *outputs[EDGEKIT_OUTPUTS];

static void move(int (*one)(void *bytes, size_t size), void *const tensors[], const uint32_t sizes[], size_t count) {
  for (size_t i = 0; i < count; i++)
    if (one(tensors[i], sizes[i]) != 0) semihost_exit(3);
}

static int get(void *bytes, size_t size) { return semihost_read(request, bytes, size); }
static int put(void *bytes, size_t size) { return semihost_write(reply, bytes, size); }

static void run_once(void) {
  move(get, inputs, edgekit_input_sizes, EDGEKIT_INPUTS);
  const uint64_t start = edgekit_ticks();
  const int error = edgekit_model_run((const void *const *)inputs, outputs);
  const uint64_t ticks = edgekit_ticks() - start;
  const uint32_t status = edgekit_stack_overflowed() ? STACK_OVERFLOW : error ? MODEL_ERROR : OK;
  answer(status, (uint32_t)error, ticks);
  if (status == OK) move(put, outputs, edgekit_output_sizes, EDGEKIT_OUTPUTS);
}

int main(void) {
  edgekit_tensors(inputs, outputs);
  request = semihost_open("request", 7, SEMIHOST_READ);
  reply = semihost_open("reply", 5, SEMIHOST_WRITE);
  if (request < 0 || reply < 0) return 2;
  const uint32_t hello[5] = {MAGIC, EDGEKIT_MODEL_INTERFACE, EDGEKIT_INPUTS, EDGEKIT_OUTPUTS, edgekit_calibrate()};
  if (semihost_write(reply, hello, sizeof hello) != 0) return 3;
  const int error = edgekit_model_init();
  answer(error ? MODEL_ERROR : OK, (uint32_t)error, edgekit_model_arena_used && !error ? edgekit_model_arena_used() : 0);
  uint32_t command;
  while (semihost_read(request, &command, sizeof command) == 0 && command == RUN) run_once();
  return 0;
}
