from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgekit import bundle, device, packager
from edgekit.backends.litert_micro import resolver
from edgekit.budget import Limits, boards, memory, tflm_scratch
from edgekit.embed import tflm as firmware
from edgekit.errors import ConversionError, UsageError
from edgekit.formats import tflite, tflm, tflm_arena
from edgekit.target import load
from tests import micro_nets
from tests.micro_nets import before_the_sigmoid
from tests.tflite_build import Net

pytest.importorskip("tflite_micro")
TARGET = "mcu-cortex-m4"


def package(model: Path, tmp_path: Path, **fields: object) -> packager.Outcome:
    return packager.package(str(model), TARGET, packager.Options(out=tmp_path / "out", rebuild=True, **fields))  # type: ignore[arg-type]


def test_an_integer_net_becomes_a_bundle_with_resolver_arena_and_aligned_array(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    outcome = package(micro_nets.classifier(tmp_path / "net.tflite"), tmp_path, board="nrf52840")
    assert outcome.passed and outcome.bundle
    parts = {part.name: part for part in outcome.manifest.usage.parts}
    assert parts["arena"].kind == "measured" and parts["arena"].installed_bytes >= memory_need(tmp_path / "net.tflite")
    with bundle.open(outcome.bundle) as opened:
        code, data = (opened.read(f"trim/src/{name}").decode() for name in ("edgekit_model.cpp", "edgekit_model_data.c"))
    kinds = ("AddAveragePool2D", "AddConv2D", "AddDepthwiseConv2D", "AddFullyConnected", "AddReshape", "AddSoftmax")
    assert "MicroMutableOpResolver<6>" in code and all(f"resolver.{kind}()" in code for kind in kinds)
    assert "alignas(16) const unsigned char" in data and "% 16 != 0" in code, "aligned, and checked at run time"


def memory_need(path: Path) -> int:
    peak = memory.peak(tflite.graph(path))
    assert peak is not None
    return peak.live_bytes


def test_the_peak_is_the_operator_with_most_bytes_alive(tmp_path: Path) -> None:
    peak = memory.peak(tflite.graph(micro_nets.classifier(tmp_path / "net.tflite")))
    # the depthwise layer reads and writes 8x8x8 bytes each
    assert peak is not None and (peak.type, peak.live_bytes) == ("DEPTHWISE_CONV_2D", 2 * 512)


MEASURED_BYTES = {"tflm": 3088, "cmsis_nn_mve": 6692}
"""The arena that TFLM took for the classifier: plain kernels on this machine, and CMSIS-NN's in firmware on an emulated Cortex-M55."""


def test_what_cmsis_nn_asks_of_the_arena_is_added(tmp_path: Path) -> None:
    graph = tflite.graph(micro_nets.classifier(tmp_path / "net.tflite"))
    added = {name: tflm_scratch.extra_bytes(graph, (name,)) for name in ("tflm", "cmsis_nn_dsp", "cmsis_nn_mve")}
    by_type = {operator.type: operator for operator in graph.operators}
    # columns of 3 x 3 x 3 values: two of 16 bits, padded to 28; four of 8 bits, padded to 32; 4 x 124 channels under each of 3 x 3 places
    conv, depthwise = by_type["CONV_2D"], by_type["DEPTHWISE_CONV_2D"]
    assert [tflm_scratch.scratch_bytes(graph, conv, name) for name in ("cmsis_nn_dsp", "cmsis_nn_mve")] == [112, 128]
    assert [tflm_scratch.scratch_bytes(graph, depthwise, name) for name in ("cmsis_nn_dsp", "cmsis_nn_mve")] == [0, 4464]
    assert added["tflm"] == 0 and added["cmsis_nn_dsp"] < 200
    assert MEASURED_BYTES["cmsis_nn_mve"] <= MEASURED_BYTES["tflm"] + added["cmsis_nn_mve"] <= MEASURED_BYTES["cmsis_nn_mve"] + 1024


def test_scratch_of_mve_is_added_wherever_it_is_asked_for(tmp_path: Path) -> None:
    """As in a residual block, where most is alive behind the depthwise layer: sharing its place was not what firmware did."""
    net, size = Net(), (1, 8, 8, 16)
    x, a, b, c = (net.tensor(name, size, "int8", scale=0.05) for name in "xabc")
    weights = net.constant("w", np.ones((1, 3, 3, 16), np.int8), scale=np.full(16, 0.01), axis=3)
    bias = net.constant("b", np.zeros(16, np.int32), scale=np.full(16, 0.0005))
    conv = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1, "depthMultiplier": 1}
    net.add("DEPTHWISE_CONV_2D", [x, weights, bias], [a], version=3, table="DepthwiseConv2DOptions", fusedActivationFunction=0, **conv)
    net.add("ABS", [a], [b])
    net.add("ADD", [x, b], [c], version=2, table="AddOptions")
    graph = tflite.graph(net.write(tmp_path / "net.tflite", [x], [c]))
    assert tflm_scratch.extra_bytes(graph, ("cmsis_nn_mve",)) >= 4 * 124 * 9


def test_the_arena_declared_for_mve_holds_its_scratch(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    net = micro_nets.classifier(tmp_path / "net.tflite")
    made = packager.package(str(net), "mcu-cortex-m55", packager.Options(out=tmp_path / "out", rebuild=True))
    assert made.bundle
    with bundle.open(made.bundle) as opened:
        header = opened.read("trim/src/edgekit_model.h").decode()
    declared = int(next(line for line in header.splitlines() if "EDGEKIT_ARENA_BYTES" in line).split()[-1])
    assert declared >= MEASURED_BYTES["cmsis_nn_mve"]


def test_the_interpreter_equals_the_reference_kernels(tmp_path: Path) -> None:
    path = micro_nets.classifier(tmp_path / "net.tflite")
    signature = tflite.open(str(path), {}).signature
    inputs = np.random.default_rng(0).integers(-128, 128, (8, 1, 8, 8, 3)).astype(np.int8)
    wanted = micro_nets.reference(path, inputs)
    assert len(np.unique(wanted)) > 8
    session = tflm.Interpreter(path, signature)
    np.testing.assert_array_equal([session.run({signature.inputs[0].name: x})[signature.outputs[0].name] for x in inputs], wanted)


def test_too_small_an_arena_is_said_to_be_so(tmp_path: Path) -> None:
    path = micro_nets.classifier(tmp_path / "net.tflite")
    with pytest.raises(ConversionError, match="arena is too small"):
        tflm.Interpreter(path, tflite.open(str(path), {}).signature, arena_bytes=1500)


def test_the_arena_holds_what_planning_takes_of_many_small_tensors(tmp_path: Path) -> None:
    """An unrolled loop is such a net: what its allocator says it used is too little to start with."""
    net = Net()
    tensors = [net.tensor(f"t{i}", (1, 4), "int8", scale=0.1) for i in range(60)]
    for before, behind in itertools.pairwise(tensors):
        net.add("RELU", [before], [behind], version=2)
    path = tmp_path / "net.tflite"
    path.write_bytes(net.pack(tensors[:1], tensors[-1:]))
    signature = tflite.open(str(path), {}).signature
    used, needed = tflm.Interpreter(path, signature).arena_bytes(), tflm.arena_bytes(path, signature)
    assert needed > used
    tflm.Interpreter(path, signature, arena_bytes=needed)
    for less in (used, needed - tflm_arena.STEP_BYTES):
        with pytest.raises(ConversionError):
            tflm.Interpreter(path, signature, arena_bytes=less)


def test_an_arena_that_ends_the_process_is_too_small_and_no_more(tmp_path: Path) -> None:
    """Dense layers with a scale for each channel write multipliers into what the allocator gives, also where that is nothing."""
    rng, net, depth = np.random.default_rng(2), Net(), 96
    tensors = [net.tensor(f"t{i}", (1, depth), "int8", scale=0.05) for i in range(5)]
    for number, (before, behind) in enumerate(itertools.pairwise(tensors)):
        weights = net.constant(f"w{number}", rng.integers(-127, 128, (depth, depth)).astype(np.int8), scale=np.linspace(0.004, 0.02, depth))
        net.add("FULLY_CONNECTED", [before, weights], [behind], version=4, table="FullyConnectedOptions")
    path = tmp_path / "net.tflite"
    path.write_bytes(net.pack(tensors[:1], tensors[-1:]))
    signature = tflite.open(str(path), {}).signature
    needed = tflm.arena_bytes(path, signature)
    multipliers_and_shifts = 4 * 8 * depth
    assert multipliers_and_shifts < tflm.Interpreter(path, signature).arena_bytes() <= needed < 4 * multipliers_and_shifts
    tflm.Interpreter(path, signature, arena_bytes=needed)
    code = "import sys; from tflite_micro.python.tflite_micro import runtime; runtime.Interpreter.from_file(sys.argv[1], arena_size=int(sys.argv[2]))"
    ended = [
        subprocess.run([sys.executable, "-c", code, str(path), str(size)], capture_output=True, check=False).returncode
        for size in range(needed - 32 * tflm_arena.STEP_BYTES, needed, 8 * tflm_arena.STEP_BYTES)
    ]
    assert any(code < 0 for code in ended) and 0 not in ended, "this net would have ended the search"


@pytest.mark.parametrize("limit", ["max_sram_bytes", "max_flash_bytes"])
def test_a_limit_below_the_need_is_out_of_bounds_and_names_the_peak(tmp_path: Path, limit: str) -> None:
    (tmp_path / "out").mkdir()
    outcome = package(micro_nets.classifier(tmp_path / "net.tflite"), tmp_path, limits=Limits(**{limit: 3000}))  # type: ignore[arg-type]
    assert not outcome.passed and not list((tmp_path / "out").iterdir())
    (finding,) = (f for f in outcome.findings if f.code == "over-budget")
    assert ("DEPTHWISE_CONV_2D" in finding.message) == (limit == "max_sram_bytes")
    assert f"--{limit.removesuffix('_bytes').replace('_', '-')} " in (finding.hint or "")


def test_a_dynamic_range_model_is_refused_by_operator(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"FULLY_CONNECTED .* int8 weights beside float activations") as caught:
        package(micro_nets.dynamic_range(tmp_path / "dyn.tflite"), tmp_path)
    assert "--calibration" in (caught.value.hint or "")


def test_an_unknown_board_or_one_of_another_core_is_refused(tmp_path: Path) -> None:
    path = micro_nets.classifier(tmp_path / "net.tflite")
    with pytest.raises(UsageError, match="no board") as caught:
        package(path, tmp_path, board="nrf52804")
    assert "nrf52840" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="is no board for mcu-cortex-m4"):
        package(path, tmp_path, board="rp2040")


def test_limits_beside_a_board_are_its_own_where_none_is_given() -> None:
    target, board = load("mcu-cortex-m4"), device.models()["nrf52840"]
    assert boards.within(Limits(), board.name, target) == Limits(max_flash_bytes=board.flash_bytes, max_sram_bytes=board.sram_bytes)
    assert boards.within(Limits(max_sram_bytes=0), board.name, target).max_sram_bytes == 0


@pytest.mark.parametrize(("limits", "board", "option"), [(Limits(max_sram_bytes=9), "", "--max-sram"), (Limits(), "nrf52840", "--board")])
def test_flash_and_sram_bound_microcontrollers_alone(limits: Limits, board: str, option: str) -> None:
    with pytest.raises(UsageError, match=f"android-arm64 is no microcontroller: {option}"):
        boards.within(limits, board, load("android-arm64"))


def test_every_operator_of_the_file_is_registered_with_its_versions(tmp_path: Path) -> None:
    graph = tflite.graph(micro_nets.classifier(tmp_path / "net.tflite", extra="LOGISTIC"))
    found = resolver.needed(graph)
    assert {row.type for row in found} == {operator.type for operator in graph.operators} == set(firmware.registrations(graph))
    assert next(row for row in found if row.type == "CONV_2D").versions == (3,)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wake-word-alexa", "wake-word-hey-jarvis"])
def test_wake_words_equal_litert_over_50_steps_of_a_stream(tmp_path: Path, name: str) -> None:
    fetch = pytest.importorskip("tests.zoo.fetch")
    path = before_the_sigmoid(Path(fetch.path(name)), tmp_path / "logit.tflite")
    model = tflite.open(str(path), {})
    spec, out = model.signature.inputs[0], model.signature.outputs[0]
    ours, theirs = tflm.Interpreter(path, model.signature), tflite.session(model, reference_kernels=True, keep_state=True)
    rng, answers = np.random.default_rng(3), []
    walk = np.clip(np.cumsum(rng.integers(-25, 26, (50, *spec.shape)), axis=0), -128, 127).astype(np.int8)
    for step, x in enumerate(walk):
        found, wanted = (session.run({spec.name: x})[out.name] for session in (ours, theirs))
        np.testing.assert_array_equal(found, wanted, err_msg=f"step {step}")
        answers.append(int(found.reshape(-1)[0]))
    assert len(set(answers)) > 5, "outputs that hardly move prove nothing"
    fresh = [int(tflm.Interpreter(path, model.signature).run({spec.name: x})[out.name].reshape(-1)[0]) for x in walk[-10:]]
    assert fresh != answers[-10:], "the state counts"
    assert {"VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE"} <= set(firmware.registrations(tflite.graph(path)))


@pytest.mark.slow
def test_an_npu_bundle_says_what_vela_estimates_and_what_stays_on_the_cpu(tmp_path: Path) -> None:
    pytest.importorskip("ethosu.vela")
    (tmp_path / "out").mkdir()
    path = micro_nets.classifier(tmp_path / "net.tflite", extra="LOGISTIC")
    outcome = packager.package(str(path), "mcu-ethos-u55", packager.Options(out=tmp_path / "out", rebuild=True))
    assert outcome.passed
    said = next(notice for notice in outcome.manifest.notices if "estimated by vela" in notice)
    assert "cycles" in said and " ms" not in said and "7 of 7 operators on the NPU" in said
    assert all(part.kind == "estimated" for part in outcome.manifest.usage.parts if part.category == "arena")
    assert [verdict.status for verdict in outcome.manifest.verdicts if verdict.delegate == "ethos_u55"] == ["accelerated"]
    with bundle.open(outcome.bundle) as opened:  # type: ignore[arg-type]  # it passed
        assert "resolver.AddEthosU()" in opened.read("trim/src/edgekit_model.cpp").decode()


@pytest.mark.slow
def test_state_stays_on_the_cpu_beside_an_npu(tmp_path: Path) -> None:
    pytest.importorskip("ethosu.vela")
    fetch = pytest.importorskip("tests.zoo.fetch")
    (tmp_path / "out").mkdir()
    outcome = packager.package(str(fetch.path("wake-word-alexa")), "mcu-ethos-u55", packager.Options(out=tmp_path / "out", rebuild=True))
    said = next(notice for notice in outcome.manifest.notices if "estimated by vela" in notice)
    assert outcome.passed and "12 VAR_HANDLE" in said and "12 ASSIGN_VARIABLE" in said
    records = next(part for part in outcome.manifest.usage.parts if part.name == "interpreter's records")
    state_bytes = 18_228 - 3_200  # of the whole model on an emulated Cortex-M4: its arena without activations
    assert records.installed_bytes >= state_bytes


@pytest.mark.slow
def test_an_unrolled_recurrent_layer_of_keras_becomes_integers(tmp_path: Path) -> None:
    keras = pytest.importorskip("tensorflow").keras
    keras.utils.set_random_seed(1)
    keras.Sequential([keras.Input((6, 4), name="x"), keras.layers.LSTM(5, unroll=True), keras.layers.Dense(3)]).save(tmp_path / "net.keras")
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(2).normal(size=(16, 6, 4)).astype(np.float32))
    (tmp_path / "out").mkdir()
    outcome = package(tmp_path / "net.keras", tmp_path, calibration=str(tmp_path / "data.npz"))
    assert outcome.passed and outcome.bundle
    with bundle.open(outcome.bundle) as opened:
        graph = tflite.graph(opened.extract(opened.manifest.artifact.main, tmp_path)[0])
    assert {t.dtype for t in graph.tensors if not t.constant} == {"int8"} and not {"WHILE", "DEQUANTIZE"} & {o.type for o in graph.operators}
