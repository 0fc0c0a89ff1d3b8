/* A model behind TensorFlow Lite Micro that is already in memory (edgekit.virtual.cortex_m.tflm_image): no headers of it, its functions by address.
   Layouts are those of its sources of 2025, with TF_LITE_STATIC_MEMORY and short enums. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "edgekit_model.h"
#include "edgekit_model_data.h"
#include "tflm_image.h"

#define CALL(type, name) ((type)TFLM_##name)

enum { RESOLVER_BYTES = 16 << 10, INTERPRETER_BYTES = 512, VARIABLE_WORDS = 5 };

typedef uint8_t Status;
typedef struct {
  uint32_t quantization[2], parameters[2];
  void *data, *shape;
  size_t bytes;
} Tensor;
typedef struct { /* MicroResourceVariables */
  void *list;
  int32_t most, count;
} Variables;

static uint8_t arena[EDGEKIT_ARENA_BYTES] __attribute__((aligned(16)));
static uint8_t resolver[RESOLVER_BYTES] __attribute__((aligned(16)));
static uint8_t interpreter[INTERPRETER_BYTES] __attribute__((aligned(16)));
static uint32_t list[TFLM_VARIABLES * VARIABLE_WORDS + 1];
static Variables variables;
static void *allocator;
static int ready;

static int resolve(void) {
  static const uint16_t operators[] = TFLM_OPERATORS;
  CALL(void (*)(void *), RESOLVER)(resolver);
  for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++)
    if (CALL(const void *(*)(const void *, uint32_t), FIND)(resolver, operators[i]) == NULL) return EDGEKIT_ERROR_RESOLVER;
  return 0;
}

int edgekit_model_init(void) {
  if ((uintptr_t)edgekit_model_data % 16 != 0) return EDGEKIT_ERROR_ALIGNMENT;
  const int failed = resolve();
  if (failed) return failed;
  allocator = CALL(void *(*)(uint8_t *, size_t, int), ALLOCATOR)(arena, sizeof arena, 0);
  if (allocator == NULL) return EDGEKIT_ERROR_ARENA;
  variables = (Variables){list, TFLM_VARIABLES, 0};
  const uint8_t *model = edgekit_model_data + *(const uint32_t *)edgekit_model_data; /* the root of the flatbuffer */
  CALL(void *(*)(void *, const void *, void *, void *, Variables *, void *), INTERPRETER)(interpreter, model, resolver, allocator, &variables, NULL);
  ready = CALL(Status (*)(void *), ALLOCATE)(interpreter) == 0;
  return ready ? 0 : EDGEKIT_ERROR_ARENA;
}

uint32_t edgekit_model_arena_used(void);
uint32_t edgekit_model_arena_used(void) { return CALL(size_t (*)(const void *), USED)(allocator); }

int edgekit_model_run(const void *const inputs[], void *const outputs[]) {
  if (!ready) return EDGEKIT_ERROR_NOT_READY;
  for (size_t i = 0; i < EDGEKIT_INPUTS; i++) {
    const Tensor *tensor = CALL(const Tensor *(*)(void *, size_t), INPUT)(interpreter, i);
    memcpy(tensor->data, inputs[i], tensor->bytes);
  }
  if (CALL(Status (*)(void *), INVOKE)(interpreter) != 0) return EDGEKIT_ERROR_INVOKE;
  for (size_t i = 0; i < EDGEKIT_OUTPUTS; i++) {
    const Tensor *tensor = CALL(const Tensor *(*)(void *, size_t), OUTPUT)(interpreter, i);
    memcpy(outputs[i], tensor->data, tensor->bytes);
  }
  return 0;
}
