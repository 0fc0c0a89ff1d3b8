"""What microcontroller runtimes compute for one operator, beside LiteRT's reference kernels: for a test, and for docs/mcu-conformance.md.

python -m tests.micro_conformance docs/mcu-conformance.md
"""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit.backends.micro_c import build
from edgekit.embed import c_text
from edgekit.errors import ConversionError
from edgekit.formats import Model, tflite, tflm
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.job import Job, TensorFile, read_result
from edgekit.legalize import tflite_bakenn
from edgekit.tensors import Signature, write_raw
from edgekit.transports import virtual
from edgekit.virtual.cortex_m import tflm as tree
from edgekit.virtual.cortex_m import tflm_image
from tests import jobs, micro_ops
from tests.micro_ops import Case

_NO_IMAGE = importlib.util.find_spec(tflm_image.PACKAGE) is None and not os.environ.get("CI")
needs_ready_made = pytest.mark.skipif(_NO_IMAGE, reason=f"no TFLM for {tflm_image.CORE}: {tflm_image.INSTALL}")
SAMPLES = 3
CORES = ("cortex-m0", "cortex-m4", "cortex-m55")
MOST_TENSORS = 16
SUMS = "packaging makes it MEAN and MUL, or MEAN on a smaller scale, which are equal"
NO_REFERENCE = {
    "SUM int8": "TFLM is within one step of the real sum; LiteRT's reference kernel saturates, its default one does not; " + SUMS,
    "SUM int16": "TFLM is within one step of the real sum; LiteRT's reference kernel wraps, its default one does not; " + SUMS,
}
FAULTS = {"TRANSPOSE_CONV int16": "TFLM with CMSIS-NN reads a bias that is absent: refused when packaging"}
ROUNDED = "LiteRT's reference kernel multiplies in double, all others in fixed point of {0} bits; packaging {1}"
ONE_STEP = {
    "FULLY_CONNECTED int16": ROUNDED.format(16, "makes it CONV_2D of the same integers, which is equal"),
    f"{micro_ops.GIVEN} int8": ROUNDED.format(32, "chooses other scales (above), or makes it CONV_2D where that costs little"),
}
"""With `NO_REFERENCE`, what packaging makes of no float model."""


def give_interpreter(core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """TFLM for an emulated core: compiled from the source tree, or else the ready-made one; a test that can have neither is skipped."""
    if tree.tree() is not None:
        return
    if core != tflm_image.CORE or _NO_IMAGE:
        pytest.skip(f"no TFLM for {core}: {tree.VARIABLE} names no source tree" + (f", {tflm_image.INSTALL}" if core == tflm_image.CORE else ""))
    monkeypatch.setenv(tree.VARIABLE, tflm_image.PACKAGE)


def opened(cases: Sequence[Case], path: Path) -> Model:
    path.write_bytes(micro_ops.pack(cases))
    return tflite.open(str(path), {})


def inputs(model: Model, seed: int) -> list[dict[str, Any]]:
    rng, specs = np.random.default_rng(seed), model.signature.inputs
    ranges = {spec.name: (np.iinfo(spec.dtype).min, np.iinfo(spec.dtype).max) for spec in specs}
    return [{s.name: rng.integers(*ranges[s.name], s.shape, endpoint=True).astype(s.dtype) for s in specs} for _ in range(SAMPLES)]


def reference(case: Case, model: Model, given: Sequence[Any]) -> list[dict[str, Any]]:
    session = tflite.session(model, reference_kernels=case.name not in NO_REFERENCE)
    return [session.run(sample) for sample in given]


def interpreted(model: Model, given: Sequence[Any]) -> list[dict[str, Any]]:
    assert model.path is not None
    session = tflm.Interpreter(model.path, model.signature)
    return [session.run(sample) for sample in given]


def steps_apart(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """The largest difference in stored values."""
    pairs = [(a[name].reshape(-1), b[name].reshape(-1)) for a, b in zip(found, wanted, strict=True) for name in b]
    return max(float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max()) for a, b in pairs)


def allowed(case: Case) -> int:
    return 1 if case.name in NO_REFERENCE or case.name in ONE_STEP else 0


def generated(core: str, cases: Sequence[Case], folder: Path) -> dict[Case, Model]:
    """One artifact of generated C that runs every case it takes: one after the other, each on its own inputs; the cases taken."""
    taken: dict[Case, Model] = {}
    calls, headers, arena = [], [], 0
    for case in cases:
        scratch = folder.parent / f"{folder.name}-{len(taken)}-{case.operator}"
        model = opened([case], scratch.with_suffix(".tflite"))
        name = f"op{len(taken)}"
        try:
            size = _generate(model, scratch, name, core)
        except ConversionError:
            continue
        for path in sorted(path for path in scratch.rglob("*") if path.suffix in (".c", ".h")):
            shutil.copyfile(path, folder / path.name)  # CMSIS-NN's own are the same for all
        calls.append(f"  bknn_{name}_infer(arena, inputs[{len(taken)}], outputs[{len(taken)}]);")
        headers.append(f'#include "bknn_{name}.h"')
        arena, taken[case] = max(arena, size), model
    signature = signature_of(list(taken.values()))
    (folder / "edgekit_model.h").write_text(c_text.header(signature, arena))
    (folder / "edgekit_model.json").write_bytes(c_text.description(signature, arena, ["BAKENN_CMSIS_NN_BUILTIN_MEMORY"]))
    body = [*headers, '#include "edgekit_model.h"', f"static uint8_t arena[{arena + 16}] __attribute__((aligned(16)));"]
    body += ["int edgekit_model_init(void) { return 0; }", "int edgekit_model_run(const void *const inputs[], void *const outputs[]) {"]
    (folder / "edgekit_model.c").write_text("\n".join([*body, *calls, "  return 0;", "}", ""]))
    return taken


def _generate(model: Model, folder: Path, name: str, core: str) -> int:
    assert model.path is not None
    if len(model.signature.inputs) != 1:
        raise ConversionError(f"{len(model.signature.inputs)} inputs")
    parsed = flatbuffer.load(model.path.read_bytes())
    if any(tflite_bakenn.prepare(parsed, model.name)):
        raise ConversionError("only at the end of a net")
    folder.mkdir()
    options = {"core": "cortex-m0plus"} if core == "cortex-m0" else {"cmsis_nn": True}
    return build.generate(tflite_bakenn.write(parsed, folder.with_name(f"{folder.name}-prepared.tflite")), folder, options, name)


def signature_of(models: Sequence[Model]) -> Signature:
    """All tensors in order, under names of their own."""
    import msgspec

    sides = [[spec for model in models for spec in getattr(model.signature, side)] for side in ("inputs", "outputs")]
    named = [tuple(msgspec.structs.replace(spec, name=f"{side}{i}") for i, spec in enumerate(s)) for side, s in zip("xy", sides, strict=True)]
    return Signature(*named)


def on_core(core: str, runtime: str, artifact: Path, signature: Signature, given: Sequence[Sequence[Any]], folder: Path) -> list[dict[str, Any]]:
    """Outputs of every sample by name, from an emulated core; `given` are arrays in the signature's order."""
    (folder / "job").mkdir(parents=True)
    (folder / "result").mkdir()
    (shutil.copytree if artifact.is_dir() else shutil.copy)(artifact, folder / "job" / artifact.name)
    samples = []
    for number, arrays in enumerate(given):
        for spec, array in zip(signature.inputs, arrays, strict=True):
            write_raw(folder / "job" / f"{number}-{spec.name}.raw", array)
        samples.append(tuple(TensorFile(spec.name, spec.dtype, spec.shape, f"{number}-{spec.name}.raw") for spec in signature.inputs))
    jobs.contract.write(folder / "job", Job(runtime, artifact.name, tuple(samples), signature.outputs, options={"match": "index"}))
    virtual.connect(core, {}).execute(folder / "job", folder / "result", 600)
    result = read_result(folder / "result")
    if result.status != "ok":
        raise RuntimeError(result.error)
    assert runtime != "tflm" or not tree.on_core(core) or "instructions" in result.counters, "it ran beside the core"
    return jobs.outputs(folder / "result", result)


def cores_apart(core: str, cases: Sequence[Case], folder: Path) -> dict[str, float]:
    """Generated C on a core: case -> steps from the reference, for the cases it takes."""
    folder.mkdir()
    (folder / "c").mkdir()
    taken = generated(core, cases, folder / "c")
    given = {case: inputs(model, seed) for seed, (case, model) in enumerate(taken.items())}
    arrays = [[array for case in taken for array in given[case][sample].values()] for sample in range(SAMPLES)]
    found = on_core(core, "micro-c", folder / "c", signature_of(list(taken.values())), arrays, folder / core)
    apart = {}
    for number, (case, model) in enumerate(taken.items()):
        wanted = reference(case, model, given[case])
        (name,) = wanted[0]
        apart[case.name] = steps_apart([{name: sample[f"y{number}"]} for sample in found], wanted)
    return apart


def interpreter_apart(core: str, cases: Sequence[Case], folder: Path) -> dict[str, float]:
    """TFLM's firmware on a core, several operators a firmware: case -> steps from the reference."""
    folder.mkdir()
    groups: list[list[Case]] = [[]]
    for case in cases:
        if max(len(ends) for ends in _ends([*groups[-1], case])) > MOST_TENSORS:
            groups.append([])
        groups[-1].append(case)
    apart: dict[str, float] = {}
    while groups:
        group = groups.pop(0)
        try:
            apart |= _group_apart(core, group, folder / f"{len(apart)}-{len(groups)}-{len(group)}")
        except RuntimeError:  # find the one that fails
            half = len(group) // 2
            groups[:0] = [group[:half], group[half:]] if half else []
            apart |= {} if half else {group[0].name: math.inf}
    return apart


def _group_apart(core: str, group: Sequence[Case], folder: Path) -> dict[str, float]:
    folder.mkdir()
    models = [opened([case], folder / f"{i}.tflite") for i, case in enumerate(group)]
    given = [inputs(model, seed) for seed, model in enumerate(models)]
    (folder / "group.tflite").write_bytes(micro_ops.pack(group))
    arrays = [[array for samples in given for array in samples[sample].values()] for sample in range(SAMPLES)]
    found = on_core(core, "tflm", folder / "group.tflite", signature_of(models), arrays, folder / "run")
    apart, at = {}, 0
    for case, model, samples in zip(group, models, given, strict=True):
        names = [spec.name for spec in model.signature.outputs]
        made = [{name: sample[f"y{at + i}"] for i, name in enumerate(names)} for sample in found]
        apart[case.name], at = steps_apart(made, reference(case, model, samples)), at + len(names)
    return apart


def _ends(cases: Sequence[Case]) -> tuple[list[int], list[int]]:
    net = micro_ops.Net()
    ends = [case.add(net) for case in cases]
    return [i for given, _ in ends for i in given], [i for _, made in ends for i in made]


def main() -> None:
    """Write the table."""
    cases = list(micro_ops.cases())
    with tempfile.TemporaryDirectory() as scratch:
        host = {}
        for seed, case in enumerate(cases):
            model = opened([case], Path(scratch, f"{seed}.tflite"))
            given = inputs(model, seed)
            host[case.name] = steps_apart(interpreted(model, given), reference(case, model, given))
        ran = [(f"generated C, {core}", cores_apart(core, cases, Path(scratch, core))) for core in CORES]
        for core in ("cortex-m55", "cortex-m4") if tree.tree() else ():
            ran.insert(0, (f"TFLM, {core}", interpreter_apart(core, cases, Path(scratch, f"tflm-{core}"))))
    columns = [("TFLM, this machine", host), *ran]
    others = [case for case in cases if case.name in NO_REFERENCE | ONE_STEP]
    written = _table([case for case in cases if case not in others], columns)
    Path(sys.argv[1]).write_text(f"{_TEXT}{written}\n{_OTHERS}{_table(others, columns)}", "utf-8")


def _table(cases: Sequence[Case], columns: Sequence[tuple[str, dict[str, float]]]) -> str:
    lines = ["| operator | type |" + "".join(f" {name} |" for name, _ in columns) + " note |", "| --- | --- |" + " --- |" * (len(columns) + 1)]
    for case in sorted(cases, key=lambda case: (case.operator, case.dtype)):
        cells = "".join(f" {_cell(found.get(case.name))} |" for _, found in columns)
        lines.append(f"| {case.operator} | {case.dtype} |{cells} {(NO_REFERENCE | ONE_STEP | FAULTS).get(case.name, '')} |")
    return "\n".join(lines) + "\n"


def _cell(steps: float | None) -> str:
    if steps == math.inf:
        return "fails"
    return "-" if steps is None else "equal" if steps == 0 else f"{steps:g} step{'s' if steps > 1 else ''}"


_TEXT = """# Conformance of microcontroller runtimes

Written by `python -m tests.micro_conformance docs/mcu-conformance.md`. Each row is one operator with integer tensors, on random inputs over the
whole range, held to LiteRT's reference kernels: *equal* is every byte, a number is the largest difference in stored values. `-`: generated C
does not take the operator by itself (SOFTMAX and functions of one value it takes at the end of a net). *This machine* is the interpreter of the
package tflite-micro; the cores run in QEMU, with CMSIS-NN where a core has DSP instructions (Cortex-M0 has none).

What runs on a core is held to TFLM's interpreter on this machine, or to generated C compiled for it, and equals that to the byte, also where LiteRT's
reference kernel is a step away (below). Packaging compares both on samples and random inputs, and says where a desktop's reference kernels differ.

Left out: what LiteRT has no integer kernel for (CUMSUM, ELU, DIV and ZEROS_LIKE in int8), state and control flow (tested on whole models), and
fused recurrent layers, which the converters write as loops or unrolled.

"""
_OTHERS = """## What packaging makes of no float model

They come in models that are quantized already. Of these, only a dense layer of int8 whose convolution would cost too much is packaged as it is.

"""

if __name__ == "__main__":
    main()
