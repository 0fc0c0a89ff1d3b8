"""The generated C on this machine: compiled by the C compiler at hand, run in a process of its own, held to LiteRT's reference kernels."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from edgekit.backends import Artifact
from edgekit.embed import c_text
from edgekit.errors import ConversionError, MissingPackageError
from edgekit.formats import tflite, tflm
from edgekit.tensors import Array, Arrays, Signature, quantize, raw_bytes
from edgekit.virtual.cortex_m.build import read_model

COMPILERS = ("cc", "gcc", "clang")
_TIMEOUT_S = 300


class Compiled:
    """A generated folder as a program that reads inputs and writes outputs, without end. Raises `MissingPackageError` without a compiler."""

    def __init__(self, folder: Path, signature: Signature, flags: tuple[str, ...] = ("-O2",)) -> None:
        self.signature = signature
        self._folder = tempfile.TemporaryDirectory(prefix="edgekit-c-")
        self._program = _compile(folder, Path(self._folder.name), flags)

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Outputs by name for one sample; the program starts afresh. Raises `ConversionError` when it fails."""
        import numpy as np

        given = b"".join(raw_bytes(inputs[spec.name]) for spec in self.signature.inputs)
        done = subprocess.run([str(self._program)], input=given, capture_output=True, timeout=_TIMEOUT_S, check=False)
        wanted = sum(c_text.size(spec) for spec in self.signature.outputs)
        if done.returncode != 0 or len(done.stdout) != wanted:
            said = done.stderr.decode("utf-8", "replace").strip()[-400:]
            raise ConversionError(f"the generated C fails here (exit code {done.returncode}): {said or 'no output'}")
        outputs, at = {}, 0
        for spec in self.signature.outputs:
            outputs[spec.name] = np.frombuffer(done.stdout, np.dtype(spec.dtype), spec.elements, at).reshape(spec.shape)
            at += c_text.size(spec)
        return outputs


def prove(artifact: Artifact, integers: Path, samples: Sequence[Arrays], random: int) -> str:
    """Hold the C to the reference kernels on samples and random inputs; what was shown.

    Where TFLM itself differs from LiteRT's reference kernels (FULLY_CONNECTED of given scales may, by one step) TFLM decides: it is what runs on the
    same cores.
    Raises `ConversionError` at the first byte that neither gives.
    """
    import numpy as np

    compiled = Compiled(artifact.path, artifact.signature)
    opened = tflite.open(str(integers), {})
    reference = tflite.session(opened, reference_kernels=True)
    (spec,), (made,) = artifact.signature.inputs, artifact.signature.outputs
    rng = np.random.default_rng(1)
    inputs = [quantize(sample[spec.name], spec) for sample in samples]
    limits = np.iinfo(spec.dtype)
    inputs += [rng.integers(limits.min, limits.max + 1, spec.shape).astype(spec.dtype) for _ in range(random)]
    micro = tflm.Interpreter(integers, artifact.signature)
    apart = 0
    for number, array in enumerate(inputs):
        (expected,) = reference.run({opened.signature.inputs[0].name: array}).values()
        found = compiled.run({spec.name: array})[made.name]
        if np.array_equal(found.reshape(-1), expected.reshape(-1)):
            continue
        count = int((found.reshape(-1) != expected.reshape(-1)).sum())
        if not np.array_equal(found, micro.run({spec.name: array})[made.name].reshape(found.shape)):
            what = f"the generated C differs from LiteRT's reference kernels and from TFLM in {count} of {found.size} values"
            raise ConversionError(f"{what} (input {number})")
        apart += count
    shown = f"on {len(inputs)} inputs, {random} of them random (its plain form, compiled for this machine)"
    if apart:
        return f"the generated C equals TFLM to the byte {shown}; LiteRT's reference kernels differ from both in {apart} values"
    return f"the generated C equals LiteRT's reference kernels to the byte {shown}"


@functools.cache
def compiler() -> str:
    """The C compiler of this machine. Raises `MissingPackageError`."""
    found = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if found is None:
        raise MissingPackageError(f"no C compiler ({', '.join(COMPILERS)}) was found on PATH", "apt install gcc")
    return found


def _compile(folder: Path, scratch: Path, flags: tuple[str, ...]) -> Path:
    model = read_model(folder)
    (scratch / "main.c").write_text(_MAIN, "ascii")
    sources = [str(scratch / "main.c"), *map(str, sorted(folder.rglob("*.c")))]
    includes = [f"-I{path}" for path in sorted({path.parent for path in folder.rglob("*.h")})]
    defines = [f"-D{name}" for name in model.defines]
    program = scratch / "program"
    command = [compiler(), "-std=gnu11", *flags, *defines, *includes, *sources, "-lm", "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False)
    if done.returncode != 0:
        wrong = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr.strip()]
        raise ConversionError(f"the generated C does not compile here: {wrong[0][-400:]}")
    return program


_MAIN = """#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "edgekit_model.h"

static _Alignas(16) uint8_t buffers[EDGEKIT_BUFFER_BYTES];

int main(void) {
  static const size_t input_bytes[] = EDGEKIT_INPUT_BYTES, output_bytes[] = EDGEKIT_OUTPUT_BYTES;
  void *inputs[EDGEKIT_INPUTS], *outputs[EDGEKIT_OUTPUTS];
  size_t at = 0;
  for (int i = 0; i < EDGEKIT_INPUTS; at += (input_bytes[i++] + 15) / 16 * 16) inputs[i] = buffers + at;
  for (int i = 0; i < EDGEKIT_OUTPUTS; at += (output_bytes[i++] + 15) / 16 * 16) outputs[i] = buffers + at;
  if (edgekit_model_init() != 0) return 3;
  for (int i = 0; i < EDGEKIT_INPUTS; i++)
    if (fread(inputs[i], 1, input_bytes[i], stdin) != input_bytes[i]) return 4;
  if (edgekit_model_run((const void *const *)inputs, outputs) != 0) return 5;
  for (int i = 0; i < EDGEKIT_OUTPUTS; i++) fwrite(outputs[i], 1, output_bytes[i], stdout);
  return 0;
}
"""
