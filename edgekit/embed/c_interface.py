"""The typed C interface of a model: a header with a function of its arrays, the wrapper behind it, a self-test with golden vectors."""

from __future__ import annotations

import re
from collections.abc import Sequence

from edgekit.embed import c_text
from edgekit.manifest import Manifest
from edgekit.tensors import Array, Arrays, Signature, TensorSpec

KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        "alignas alignof asm auto bool break case catch char class const continue default delete do double else enum extern float for friend goto "
        "if inline int long namespace new operator private protected public register restrict return short signed sizeof static struct switch "
        "template this throw try typedef union unsigned virtual void volatile while",
    )
)
_COLUMNS = 24


def is_identifier(name: str) -> bool:
    """Whether C and C++ take `name`."""
    return re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) is not None and name not in KEYWORDS


def names(signature: Signature) -> dict[tuple[str, int], str]:
    """(side, index) -> the C name of a tensor, all different; side is `input` or `output`."""
    found: dict[tuple[str, int], str] = {}
    for side, specs in (("input", signature.inputs), ("output", signature.outputs)):
        for index, spec in enumerate(specs):
            plain = re.sub(r"\W+", "_", spec.name, flags=re.ASCII).strip("_").lower() or side
            plain = plain if is_identifier(plain) and plain not in c_text.C_TYPES.values() else f"{side}_{plain}"
            taken = {other.upper() for other in found.values()}
            found[side, index] = plain if plain.upper() not in taken else f"{plain}_{side}_{index}"
    return found


def header(name: str, manifest: Manifest) -> str:
    """`NAME.h`."""
    signature, called = manifest.signature, names(manifest.signature)
    guard = name.upper()
    lines = [f"/* {_comment(manifest.name)} for {manifest.target.name}. */"]
    lines += [f"#ifndef {guard}_H", f"#define {guard}_H", "", "#include <stdint.h>", ""]
    for (side, index), plain in called.items():
        spec = (signature.inputs if side == "input" else signature.outputs)[index]
        lines += [_described(spec, f"{guard}_{plain.upper()}"), *c_text.constants(f"{guard}_{plain.upper()}", spec), ""]
    lines += [*(f"#define {guard}_ERROR_{error} (-{number})" for number, error in enumerate(c_text.ERRORS, 1)), ""]
    lines += ["#ifdef __cplusplus", 'extern "C" {', "#endif", ""]
    lines += ["/* Once before the first run, and to reset a model with state. 0 or an error. */", f"int {name}_init(void);", ""]
    lines += ["/* One inference on stored values. 0 or an error. */", f"{_prototype(name, signature, called)};", ""]
    lines += ["/* Runs golden inputs from the initial state and compares every byte. 0 or an error; the state is the initial one after it. */"]
    lines += [f"int {name}_self_test(void);", "", "#ifdef __cplusplus", "}", "#endif", "#endif", ""]
    return "\n".join(lines)


def wrapper(name: str, signature: Signature, called: dict[tuple[str, int], str]) -> str:
    """`NAME.c`: the typed function on top of the untyped interface. No tensor's name ends with _, so that none hides the two arrays."""
    sides = {side: ", ".join(plain for (which, _), plain in called.items() if which == side) for side in ("input", "output")}
    return "\n".join(
        [
            f'#include "../{name}.h"',
            "",
            f'#include "{name}_core.h"',
            "",
            f"int {name}_init(void) {{ return {name}_core_init(); }}",
            "",
            f"{_prototype(name, signature, called)} {{",
            f"  const void *const given_[] = {{{sides['input']}}};",
            f"  void *const made_[] = {{{sides['output']}}};",
            f"  return {name}_core_run(given_, made_);",
            "}",
            "",
        ]
    )


def self_test(name: str, signature: Signature, golden: Sequence[tuple[Arrays, Arrays]]) -> str:
    """`NAME_self_test.c`: golden inputs and outputs in flash, run in order. The linker drops it where it is not called."""
    lines = [f'#include "../{name}.h"', "", "#include <stdint.h>", "#include <string.h>", "", f"#define SAMPLES {len(golden)}", ""]
    for side, specs, rows in (("given", signature.inputs, [g for g, _ in golden]), ("wanted", signature.outputs, [w for _, w in golden])):
        for index, spec in enumerate(specs):
            values = ",\n".join(f"  {{{_values(row[spec.name])}}}" for row in rows)
            lines += [f"static const {c_text.C_TYPES[spec.dtype]} {side}_{index}[SAMPLES][{spec.elements}] = {{", f"{values}", "};"]
    lines += [f"static {c_text.C_TYPES[spec.dtype]} made_{index}[{spec.elements}];" for index, spec in enumerate(signature.outputs)]
    arguments = [f"given_{i}[sample]" for i in range(len(signature.inputs))] + [f"made_{i}" for i in range(len(signature.outputs))]
    same = [f"memcmp(made_{i}, wanted_{i}[sample], sizeof made_{i}) != 0" for i in range(len(signature.outputs))]
    lines += ["", f"int {name}_self_test(void) {{", f"  int error = {name}_init();"]
    lines += ["  for (int sample = 0; error == 0 && sample < SAMPLES; sample++) {"]
    lines += [f"    error = {name}_run({', '.join(arguments)});"]
    lines += [f"    if (error == 0 && ({' || '.join(same)})) error = {name.upper()}_ERROR_SELF_TEST;", "  }"]
    lines += [f"  const int reset = {name}_init();", "  return error != 0 ? error : reset;", "}", ""]
    return "\n".join(lines)


def _prototype(name: str, signature: Signature, called: dict[tuple[str, int], str]) -> str:
    parts = []
    for (side, index), plain in called.items():
        spec = (signature.inputs if side == "input" else signature.outputs)[index]
        constant = "const " if side == "input" else ""
        parts.append(f"{constant}{c_text.C_TYPES[spec.dtype]} {plain}[{name.upper()}_{plain.upper()}_ELEMENTS]")
    return f"int {name}_run({', '.join(parts)})"


def _described(spec: TensorSpec, prefix: str) -> str:
    real = f"; real = ({prefix}_SCALE * (stored - {prefix}_ZERO_POINT))" if spec.scale is not None else ""
    return f"/* {_comment(spec.name)}: {spec.dtype} {list(spec.shape)}{real} */"


def _comment(text: str) -> str:
    """Text that cannot end a comment or a line."""
    return re.sub(r"[^ -~]|\*/|/\*", "_", text)


def _values(array: Array) -> str:
    flat = [str(int(value) if isinstance(value, bool) else value) for value in array.reshape(-1).tolist()]
    return ",\n   ".join(", ".join(flat[at : at + _COLUMNS]) for at in range(0, len(flat), _COLUMNS))
