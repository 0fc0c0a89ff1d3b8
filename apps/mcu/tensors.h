/* Memory of a model's inputs and outputs, each aligned to 16 bytes. Included once. */
#ifndef EDGEKIT_TENSORS_H
#define EDGEKIT_TENSORS_H
#include <stddef.h>
#include <stdint.h>
#include "edgekit_model.h"

#define EDGEKIT_ALIGN(n) (((n) + 15u) & ~(size_t)15)

static const uint32_t edgekit_input_sizes[EDGEKIT_INPUTS] = EDGEKIT_INPUT_BYTES;
static const uint32_t edgekit_output_sizes[EDGEKIT_OUTPUTS] = EDGEKIT_OUTPUT_BYTES;
static uint8_t edgekit_buffer[EDGEKIT_BUFFER_BYTES] __attribute__((aligned(16)));

static inline void edgekit_tensors(void *inputs[EDGEKIT_INPUTS], void *outputs[EDGEKIT_OUTPUTS]) {
  size_t at = 0;
  for (size_t i = 0; i < EDGEKIT_INPUTS; at += EDGEKIT_ALIGN(edgekit_input_sizes[i]), i++) inputs[i] = edgekit_buffer + at;
  for (size_t i = 0; i < EDGEKIT_OUTPUTS; at += EDGEKIT_ALIGN(edgekit_output_sizes[i]), i++) outputs[i] = edgekit_buffer + at;
}
#endif
