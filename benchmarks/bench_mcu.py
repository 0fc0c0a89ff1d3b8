"""What nets take of flash, SRAM and instructions on microcontrollers, both ways, and which boards they fit: the figures of docs/mcu.md.

python -m benchmarks.bench_mcu [docs/mcu.md [MODEL ...]]

TensorFlow Lite Micro runs on the emulated cores where EDGEKIT_TFLM names its source tree; else its flash is estimated and it counts nothing.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any

from edgekit import bundle, device, packager, tester
from edgekit.backends.micro_c import weigh
from edgekit.budget import runtime_parts, tflm_kernels, tflm_scratch
from edgekit.errors import EdgekitError
from edgekit.formats import tflite
from edgekit.target import load
from tests.zoo import fetch

MODELS = {
    "wake-word-alexa": ("zoo", None),
    "wake-word-hey-jarvis": ("zoo", None),
    "mobilenet-v2-035-96": ("tests.zoo.models:mobilenet_v2", "tests.zoo.micro:mobilenet_data"),
    "person (depthwise 96x96)": ("tests.zoo.micro:person", "tests.zoo.micro:person_data"),
    "keywords (torch)": ("tests.zoo.micro:keywords", "tests.zoo.micro:keywords_data"),
}
BOARDS = ("stm32f446", "nrf52840", "stm32h743", "rp2040", "rp2350", "esp32-s3")
MIN_SQNR_DB = 3.0
"""Weights of the zoo's MobileNet are random, and 8 bits keep little of what it says: here bytes and equality count."""
CORES = ("cortex-m4", "cortex-m55")
WITH_DSP = ("cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55")
"""The cores that one and the same generated C is for; Cortex-M0+ has other code."""
BEGIN, END = "<!-- figures: python -m benchmarks.bench_mcu docs/mcu.md -->", "<!-- end of figures -->"


@dataclasses.dataclass(frozen=True)
class Way:
    """One model one way: bytes by core, memory at run time (on ESP32-S3 `esp_sram_bytes`: its kernels ask for more), instructions by core.

    `refused` says why there is none.
    """

    model: str
    name: str
    flash_bytes: dict[str, int] = dataclasses.field(default_factory=dict)
    sram_bytes: int = 0
    esp_sram_bytes: int = 0
    counted: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    identical: bool = False
    refused: str = ""


def measure(model: str, folder: Path, suffix: str) -> Way:
    """Package a model one way (`suffix` of the target) and run it on the emulated cores."""
    reference, data = MODELS[model]
    name, source = "generated C" if suffix else "TFLM", str(fetch.path(model)) if reference == "zoo" else reference
    options = packager.Options(out=folder, name=model.split()[0], rebuild=True, calibration=data, min_sqnr_db=MIN_SQNR_DB)
    try:
        outcome = packager.package(source, f"mcu-cortex-m4{suffix}", options)
        small = packager.package(source, "mcu-cortex-m0plus-c", options) if suffix else None
    except EdgekitError as error:
        return Way(model, name, refused=error.message)
    assert outcome.bundle, outcome.findings
    runs = {core: tester.test(outcome.bundle, [device.parse(f"virtual:{core}")]).reports[0] for core in CORES}
    exact = all(o.max_abs == 0 for r in runs.values() for c in r.comparisons if c.against == "host" for o in c.outputs)
    counted = {core: dict(run.conditions.counters) for core, run in runs.items() if run.conditions}
    flash = generated_flash(outcome.bundle, folder, WITH_DSP) if suffix else interpreted_flash(outcome.bundle, folder)
    if small and small.bundle:
        flash |= generated_flash(small.bundle, folder / "m0plus", ("cortex-m0plus",))
    sram, more = outcome.manifest.usage.sram_bytes, 0 if suffix else esp_scratch_bytes(outcome.bundle, folder)
    return Way(model, name, flash, sram, sram + more, counted, exact and all(not run.failure for run in runs.values()))


def generated_flash(path: Path, folder: Path, cores: tuple[str, ...]) -> dict[str, int]:
    """Code and weights, linked for each core."""
    with bundle.open(path) as opened:
        opened.extract(opened.manifest.artifact.main, folder / "sources")
        sources = folder / "sources" / Path(opened.manifest.artifact.main).name
    return {core: weigh.measure(sources, core).flash_bytes for core in cores}


def interpreted_flash(path: Path, folder: Path) -> dict[str, int]:
    """Model, kernels and interpreter from the catalogue of sizes."""
    with bundle.open(path) as opened:
        (file,) = opened.extract(opened.manifest.artifact.main, folder)
    found, graph = {}, tflite.graph(file)
    for core in ("cortex-m0plus", "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55", "esp32s3"):
        target = load(f"mcu-{core}")
        parts = (*tflm_kernels.kernels(graph, core, target.delegates), *runtime_parts(target))
        found[core] = file.stat().st_size + sum(part.installed_bytes for part in parts)
    return found


def esp_scratch_bytes(path: Path, folder: Path) -> int:
    """How much more arena ESP-NN's kernels ask for than CMSIS-NN's."""
    with bundle.open(path) as opened:
        (file,) = opened.extract(opened.manifest.artifact.main, folder / "esp")
    esp, cmsis = (tflm_scratch.extra_bytes(tflite.graph(file), (name,)) for name in (tflm_scratch.ESP, tflm_scratch.DSP))
    return esp - cmsis


def tables(ways: list[Way]) -> str:
    """Both tables in Markdown."""
    head = "| net | way | flash (M4) | SRAM | arena on the core | stack | instructions M4 | instructions M55 | equal to the byte |"
    rows = [head, "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |", *map(figures, ways)]
    boards = [device.models()[name] for name in BOARDS]
    rows += ["", f"| net | way | {' | '.join(board.name for board in boards)} |", f"| --- | --- |{' --- |' * len(boards)}"]
    rows += [f"| {way.model} | {way.name} | {' | '.join(fits(way, board) for board in boards)} |" for way in ways if not way.refused]
    return "\n".join(rows)


def figures(way: Way) -> str:
    """A row of the first table."""
    if way.refused:
        return f"| {way.model} | {way.name} | not taken: {way.refused.rpartition(': ')[2]} | | | | | | |"
    m4 = way.counted.get("cortex-m4", {})
    counted = [f"{way.counted[core]['instructions']:,}" if "instructions" in way.counted.get(core, {}) else "-" for core in CORES]
    stack = f"{max(c.get('stack_bytes', 0) for c in way.counted.values()):,}" if "stack_bytes" in m4 else "-"
    sizes = f"{way.flash_bytes['cortex-m4']:,} | {way.sram_bytes:,} | {m4.get('arena_bytes', 0):,} | {stack}"
    return f"| {way.model} | {way.name} | {sizes} | {' | '.join(counted)} | {'yes' if way.identical else 'NO'} |"


def fits(way: Way, board: Any) -> str:
    """Whether a board holds it, and how much of it that takes."""
    core = next(name for name in board.targets if not name.endswith("-c")).removeprefix("mcu-")
    flash = way.flash_bytes.get(core)
    if flash is None:
        return "-"
    sram = way.esp_sram_bytes if core == "esp32s3" else way.sram_bytes
    shares = f"{flash / board.flash_bytes:.0%} flash, {sram / board.sram_bytes:.0%} SRAM"
    return shares if flash <= board.flash_bytes and sram <= board.sram_bytes else f"**does not fit**: {shares}"


def main() -> None:
    """Measure, and print the tables or write them into a document."""
    document, wanted = Path(sys.argv[1]) if len(sys.argv) > 1 else None, sys.argv[2:] or list(MODELS)
    ways = []
    for model in wanted:
        for suffix in ("", "-c"):
            with tempfile.TemporaryDirectory(prefix="bench-mcu-") as scratch:
                ways.append(measure(model, Path(scratch), suffix))
                print(figures(ways[-1]), file=sys.stderr, flush=True)
    if document is None:
        print(tables(ways))
        return
    before, _, rest = document.read_text("utf-8").partition(BEGIN)
    document.write_text(f"{before}{BEGIN}\n{tables(ways)}\n{END}{rest.partition(END)[2]}", "utf-8")


if __name__ == "__main__":
    main()
