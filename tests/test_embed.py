from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from edgekit import embed, packager
from edgekit.embed import c_interface, c_text
from edgekit.errors import UsageError
from edgekit.tensors import Signature, TensorSpec
from edgekit.virtual.cortex_m import build, process
from edgekit.virtual.cortex_m.boards import BOARDS
from tests import micro_nets

pytest.importorskip("bakenn")
pytest.importorskip("tflite_micro")
HOST = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), "cc")
ARM = "arm-none-eabi-gcc"
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
needs_cross = pytest.mark.skipif(shutil.which(ARM) is None and not os.environ.get("CI"), reason=f"{ARM} is not installed here")
pytestmark = pytest.mark.skipif(shutil.which(HOST) is None and not os.environ.get("CI"), reason="no C compiler here")


def packaged(folder: Path, target: str) -> Path:
    net = micro_nets.classifier(folder / "net.tflite", extra="LOGISTIC")
    made = packager.package(str(net), target, packager.Options(out=folder, rebuild=True)).bundle
    assert made
    return made


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packaged(tmp_path_factory.mktemp("generated"), "mcu-cortex-m4-c")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """C without CMSIS-NN, for a core without DSP instructions."""
    return packaged(tmp_path_factory.mktemp("plain"), "mcu-cortex-m0plus-c")


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packaged(tmp_path_factory.mktemp("interpreted"), "mcu-cortex-m4")


def self_test(library: Path, name: str) -> int:
    """Compile the library with every warning an error, under the sanitizers, and run its self-test."""
    sources = [str(library / "host" / "self_test.c"), *map(str, sorted((library / "src").rglob("*.c")))]
    checked = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    program = library.parent / f"{name}_test"
    subprocess.run([HOST, *STRICT, *checked, "-Ihost", "-Isrc", *sources, "-lm", "-o", str(program)], cwd=library, check=True)
    return subprocess.run([str(program)], capture_output=True, timeout=60, check=False).returncode


@pytest.mark.slow
def test_the_library_is_typed_and_its_self_test_passes_under_sanitizers(tmp_path: Path, generated: Path) -> None:
    written = embed.write(generated, tmp_path / "library", "gesture")
    header = (tmp_path / "library/src/gesture.h").read_text()
    assert "int gesture_run(const int8_t image[GESTURE_IMAGE_ELEMENTS], int8_t scores[GESTURE_SCORES_ELEMENTS]);" in header
    assert "#define GESTURE_IMAGE_SCALE 0.0199999996f\n#define GESTURE_IMAGE_ZERO_POINT (3)" in header
    assert self_test(tmp_path / "library", "gesture") == 0
    kinds = {"CMakeLists.txt", "zephyr/module.yml", "zephyr/CMakeLists.txt", "library.properties", "LICENSE-cmsis_nn.txt"}
    assert kinds <= set(written.files)


@pytest.mark.slow
def test_the_self_test_fails_when_a_golden_byte_differs(tmp_path: Path, generated: Path) -> None:
    embed.write(generated, tmp_path / "library")
    test = tmp_path / "library/src/model/model_self_test.c"
    before, mark, wanted = test.read_text().partition("wanted_0[SAMPLES][10] = {\n  {")
    first, rest = wanted.split(",", 1)
    test.write_text(f"{before}{mark}{int(first) ^ 1},{rest}")
    assert self_test(tmp_path / "library", "model") == 1


@pytest.mark.slow
@needs_cross
@pytest.mark.parametrize("core", ["cortex-m0", "cortex-m4", "cortex-m55"])
def test_the_library_compiles_for_a_core_without_a_warning(tmp_path: Path, generated: Path, plain: Path, core: str) -> None:
    embed.write(plain if core == "cortex-m0" else generated, tmp_path / "library")
    source = tmp_path / "library/src/model"
    command = [ARM, *BOARDS[core].flags, "-mthumb", *STRICT, "-O2", "-c", *sorted(path.name for path in source.glob("*.c"))]
    subprocess.run(command, cwd=source, check=True)


ON_BOARD = """#include "edgekit_model.h"
#include "model.h"
int edgekit_model_init(void) { return 0; }
int edgekit_model_run(const void *const inputs[], void *const outputs[]) {
  (void)inputs;
  *(int32_t *)outputs[0] = model_self_test();
  return 0;
}
"""


@pytest.mark.slow
@needs_cross
def test_the_self_test_passes_on_an_emulated_core(tmp_path: Path, generated: Path) -> None:
    """Firmware that does nothing but call the library's self-test, as a board would."""
    embed.write(generated, tmp_path / "library")
    source, signature = tmp_path / "library/src", Signature((TensorSpec("go", (1,), "int8"),), (TensorSpec("failed", (1,), "int32"),))
    (source / "edgekit_model.c").write_text(ON_BOARD)
    (source / "edgekit_model.h").write_text(c_text.header(signature, 0))
    (source / "edgekit_model.json").write_bytes(c_text.description(signature, 0))
    firmware = build.build(source, BOARDS["cortex-m4"], tmp_path)
    running = process.Running(firmware, BOARDS["cortex-m4"])
    try:
        assert running.run([b"\0"]).outputs == b"\0\0\0\0"
    finally:
        running.close()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None and not os.environ.get("CI"), reason="no cmake here")
def test_cmake_builds_the_library_and_ctest_runs_its_self_test(tmp_path: Path, generated: Path) -> None:
    embed.write(generated, tmp_path / "library")
    for command in (["cmake", "-S", "library", "-B", "build"], ["cmake", "--build", "build"], ["ctest", "--test-dir", "build", "--no-tests=error"]):
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)


SYSTEMS = {
    "zephyr": """function(zephyr_library_named name)
  add_library(${name} STATIC)
  set(stand_in ${name} PARENT_SCOPE)
endfunction()
function(zephyr_library_sources)
  target_sources(${stand_in} PRIVATE ${ARGN})
endfunction()
function(zephyr_include_directories)
  target_include_directories(${stand_in} PUBLIC ${ARGN})
endfunction()
add_subdirectory(library/zephyr)
""",
    "esp-idf": """set(ESP_PLATFORM 1)
function(idf_component_register)
  cmake_parse_arguments(GIVEN "" "" "SRCS;INCLUDE_DIRS;REQUIRES" ${ARGN})
  add_library(model STATIC ${GIVEN_SRCS})
  target_include_directories(model PUBLIC ${GIVEN_INCLUDE_DIRS})
endfunction()
add_subdirectory(library)
""",
}
"""The functions of two build systems that the library's files call, as their references describe them."""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None and not os.environ.get("CI"), reason="no cmake here")
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_build_files_of_a_system_build_a_library_that_passes_its_self_test(tmp_path: Path, plain: Path, system: str) -> None:
    embed.write(plain, tmp_path / "library")
    test = "add_executable(test library/host/self_test.c)\ntarget_link_libraries(test model m)\n"
    (tmp_path / "CMakeLists.txt").write_text(f"cmake_minimum_required(VERSION 3.16)\nproject(firmware C)\n{SYSTEMS[system]}{test}")
    for command in (["cmake", "-S", ".", "-B", "build"], ["cmake", "--build", "build"], ["build/test"]):
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["interpreted", "plain"])
def test_the_sources_are_of_kinds_that_every_build_system_compiles(tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    """Arduino's builder takes `.c`, `.cpp` and `.S` below `src/`, and silently nothing else."""
    embed.write(request.getfixturevalue(kind), tmp_path / "library")
    public, private = tmp_path / "library/src/model.h", tmp_path / "library/src/model"
    assert sorted(public.parent.iterdir()) == [private, public]
    found = {path.suffix for path in private.iterdir()}
    assert found == ({".c", ".cpp", ".h"} if kind == "interpreted" else {".c", ".h"})


def test_the_model_of_an_interpreter_is_aligned_wherever_the_linker_puts_it(tmp_path: Path, interpreted: Path) -> None:
    embed.write(interpreted, tmp_path / "library")
    (tmp_path / "odd.c").write_text("const char odd[3] = {1, 2, 3};\n")
    (tmp_path / "main.c").write_text(
        '#include <stdint.h>\n#include "model_core_data.h"\nint main(void) { return (int)((uintptr_t)model_core_data % 16); }\n'
    )
    files = ["main.c", "odd.c", "library/src/model/model_core_data.c"]
    for order in (files, [*reversed(files)]):
        subprocess.run([HOST, *STRICT, "-Ilibrary/src/model", *order, "-o", "aligned"], cwd=tmp_path, check=True)
        assert subprocess.run([str(tmp_path / "aligned")], check=False).returncode == 0


def test_two_models_of_one_firmware_share_no_symbol_of_ours(tmp_path: Path, interpreted: Path) -> None:
    for name in ("one", "two"):
        embed.write(interpreted, tmp_path / name, name)
        source = "".join(path.read_text() for path in (tmp_path / name / "src" / name).iterdir())
        assert f"{name}_core_run" in source and "edgekit_model_run" not in source


BOTH = """#include "one.h"
#include "two.h"
int main() { return one_self_test() || two_self_test(); }
"""


@pytest.mark.slow
@needs_cross
def test_two_models_link_into_one_firmware_of_c_or_cpp_object_by_object(tmp_path: Path, generated: Path) -> None:
    """Zephyr and Arduino link every object of a library, so that a function of CMSIS-NN in both would be one too many."""
    for name in ("one", "two"):
        embed.write(generated, tmp_path / name, name)
    sources = sorted(str(path) for name in ("one", "two") for path in (tmp_path / name / "src").rglob("*.c"))
    assert any("arm_convolve" in path for path in sources)
    (tmp_path / "main.cpp").write_text(BOTH)
    core, headers = [*BOARDS["cortex-m4"].flags, "-mthumb"], ["-Ione/src", "-Itwo/src"]
    for number, source in enumerate([*sources, "main.cpp"]):
        compiler = [ARM, "-std=c11"] if source.endswith(".c") else [ARM.replace("gcc", "g++"), "-std=c++17"]
        subprocess.run([*compiler, *core, "-O1", *STRICT[1:], *headers, "-c", source, "-o", f"{number}.o"], cwd=tmp_path, check=True)
    objects = [f"{number}.o" for number in range(len(sources) + 1)]
    subprocess.run([ARM, *core, "-specs=nosys.specs", *objects, "-lm", "-o", "firmware.elf"], cwd=tmp_path, check=True, capture_output=True)
    host = [HOST, *STRICT, "-O1", "-Ione/host", *headers, *sources, "-x", "c", "main.cpp", "-lm", "-o", "both"]
    subprocess.run(host, cwd=tmp_path, check=True, capture_output=True)
    assert subprocess.run([str(tmp_path / "both")], check=False).returncode == 0


def test_what_was_written_here_is_replaced_and_nothing_else(tmp_path: Path, interpreted: Path) -> None:
    library = tmp_path / "library"
    first = embed.write(interpreted, library)
    (library / "src/stale.c").write_text("")
    assert embed.write(interpreted, library) == first
    assert not (library / "src/stale.c").exists()
    (tmp_path / "own").mkdir()
    (tmp_path / "own/main.c").write_text("")
    with pytest.raises(UsageError, match="did not write"):
        embed.write(interpreted, tmp_path / "own")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["library", "own"]


@pytest.mark.parametrize("name", ["1st", "a-b", "while", "a b", "../x"])
def test_a_name_that_c_does_not_take_is_refused(tmp_path: Path, interpreted: Path, name: str) -> None:
    with pytest.raises(UsageError, match="not a name in C"):
        embed.write(interpreted, tmp_path / "library", name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["string", "math", "Float", "test", "self_test"])
def test_a_name_that_a_header_or_a_target_has_is_refused(tmp_path: Path, interpreted: Path, name: str) -> None:
    with pytest.raises(UsageError, match="a header of C or a target of CMake"):
        embed.write(interpreted, tmp_path / "library", name)
    assert not list(tmp_path.iterdir())


def test_tensors_get_different_names_that_c_takes() -> None:
    specs = [TensorSpec(name, (1,), "int8") for name in ("serving_default_x:0", "for", "a b", "a.b", "3d")]
    found = list(c_interface.names(Signature((*specs[:2],), (*specs[2:],))).values())
    assert found == ["serving_default_x_0", "input_for", "a_b", "a_b_output_1", "output_3d"]
    assert all(map(c_interface.is_identifier, found))


def test_no_name_of_a_tensor_breaks_the_wrapper(tmp_path: Path) -> None:
    signature = Signature(tuple(TensorSpec(n, (2,), "int8") for n in ("given", "int8_t")), (TensorSpec("made_", (1,), "bool"),))
    (tmp_path / "net_core.h").write_text("int net_core_init(void);\nint net_core_run(const void *const given[], void *const made[]);\n")
    called = c_interface.names(signature)
    (tmp_path / "net.h").write_text(_DECLARED)
    (tmp_path / "src").mkdir()
    (tmp_path / "src/net.c").write_text(c_interface.wrapper("net", signature, called))
    values = ({"given": np.zeros(2, np.int8), "int8_t": np.zeros(2, np.int8)}, {"made_": np.ones(1, np.bool_)})
    (tmp_path / "src/net_self_test.c").write_text(c_interface.self_test("net", signature, [values]))
    subprocess.run([HOST, *STRICT, "-I.", "-c", "src/net.c", "src/net_self_test.c"], cwd=tmp_path, check=True)


_DECLARED = """#include <stdint.h>
#define NET_GIVEN_ELEMENTS 2
#define NET_INPUT_INT8_T_ELEMENTS 2
#define NET_MADE_ELEMENTS 1
#define NET_ERROR_SELF_TEST (-7)
int net_init(void);
int net_run(const int8_t given[2], const int8_t input_int8_t[2], uint8_t made[1]);
int net_self_test(void);
"""
