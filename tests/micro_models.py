"""Small generated models in C, as folders behind the interface of `apps/mcu`, written by hand so that every value is known."""

from __future__ import annotations

import json
from pathlib import Path

HEADER = """#define EDGEKIT_MODEL_INTERFACE 1
#define EDGEKIT_INPUTS 2
#define EDGEKIT_OUTPUTS 2
#define EDGEKIT_INPUT_BYTES {3, 8}
#define EDGEKIT_OUTPUT_BYTES {3, 4}
#define EDGEKIT_ARENA_BYTES 4
int edgekit_model_init(void);
int edgekit_model_run(const void *const inputs[], void *const outputs[]);
"""
BODY = """#include "edgekit_model.h"
#include <stdint.h>
static int32_t total;
int edgekit_model_init(void) { total = 0; return 0; }
int edgekit_model_run(const void *const inputs[], void *const outputs[]) {
  const int8_t *a = inputs[0];
  const int32_t *b = inputs[1];
  int8_t *y = outputs[0];
  for (int i = 0; i < 3; i++) y[i] = (int8_t)-a[i];
  total += b[0] * b[1];
  *(int32_t *)outputs[1] = total;
  @MORE@
  return 0;
}
"""


def accumulator(folder: Path, more: str = "") -> Path:
    """y = -a, and a running total of b[0] * b[1], kept from run to run; `more` is further C in the run."""
    folder.mkdir(parents=True)
    (folder / "edgekit_model.h").write_text(HEADER)
    (folder / "edgekit_model.c").write_text(BODY.replace("@MORE@", more))
    description = {
        "interface": 1,
        "inputs": [{"name": "a", "shape": [3], "dtype": "int8"}, {"name": "b", "shape": [1, 2], "dtype": "int32"}],
        "outputs": [{"name": "y", "shape": [3], "dtype": "int8"}, {"name": "total", "shape": [1], "dtype": "int32"}],
        "arena_bytes": 4,
    }
    (folder / "edgekit_model.json").write_text(json.dumps(description))
    return folder
