"""Build files around a folder of C sources, for CMake, Zephyr, Arduino and ESP-IDF: all four read the same `src/`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def write(folder: Path, name: str, sources: Sequence[str], *, tflm: bool = False, main: bool = False) -> None:
    """Write them into `folder`, whose `src/` holds `sources`; with `tflm` the library needs TensorFlow Lite Micro's headers and C++.

    With `main`, `host/self_test.c` runs the library's self-test on the machine that builds it (`ctest`).
    """
    values = {
        "@NAME@": name,
        "@SOURCES@": "\n".join(f"  ${{CMAKE_CURRENT_LIST_DIR}}/src/{source}" for source in sources),
        "@ZEPHYR_SOURCES@": "\n".join(f"  ${{CMAKE_CURRENT_LIST_DIR}}/../src/{source}" for source in sources),
        "@REQUIRES@": " REQUIRES esp-tflite-micro" if tflm else "",
        "@LANGUAGES@": "C CXX" if tflm else "C",
        "@FEATURES@": "c_std_11 cxx_std_17" if tflm else "c_std_11",
        "@TFLM@": _TFLM.replace("@NAME@", name) if tflm else "",
        "@HOST@": _HOST.replace("@NAME@", name) if main else "",
    }
    files = FILES | ({COMPONENT: _COMPONENT} if tflm else {}) | ({"host/self_test.c": _MAIN, "host/arm_acle.h": _ACLE} if main else {})
    for place, text in files.items():
        for mark, value in values.items():
            text = text.replace(mark, value)
        (folder / place).parent.mkdir(exist_ok=True)
        (folder / place).write_text(text, "utf-8")


_CMAKE = """# A component of ESP-IDF, or a static library. With TensorFlow Lite Micro, TFLM_INCLUDE_DIRS says where its headers are.
cmake_minimum_required(VERSION 3.16)
set(@NAME@_SOURCES
@SOURCES@)
if(ESP_PLATFORM)
  idf_component_register(SRCS ${@NAME@_SOURCES} INCLUDE_DIRS src@REQUIRES@)
  return()
endif()
project(@NAME@ @LANGUAGES@)
add_library(@NAME@ STATIC ${@NAME@_SOURCES})
target_compile_features(@NAME@ PUBLIC @FEATURES@)
target_include_directories(@NAME@ PUBLIC src)
@TFLM@@HOST@"""

_TFLM = """# warnings in its headers are not this library's
target_include_directories(@NAME@ SYSTEM PUBLIC ${TFLM_INCLUDE_DIRS})
"""

_HOST = """
if(NOT CMAKE_CROSSCOMPILING)
  target_include_directories(@NAME@ PRIVATE host)
  if(CMAKE_PROJECT_NAME STREQUAL PROJECT_NAME)
    enable_testing()
    add_executable(self_test host/self_test.c)
    target_link_libraries(self_test @NAME@ m)
    add_test(NAME self_test COMMAND self_test)
  endif()
endif()
"""

_MAIN = """/* The self-test on the machine that builds: exit code 0 when every golden byte comes out. */
#include <stdio.h>

#include "@NAME@.h"

int main(void) {
  const int error = @NAME@_self_test();
  printf("@NAME@_self_test: %d\\n", error);
  return error != 0;
}
"""

_ACLE = """/* CMSIS-NN includes this header of Arm compilers; on other machines it takes its plain C, which needs nothing of it. */
"""

_MODULE = """name: @NAME@
build:
  cmake: zephyr
"""

_ZEPHYR = """zephyr_library_named(@NAME@)
zephyr_library_sources(
@ZEPHYR_SOURCES@)
zephyr_include_directories(${CMAKE_CURRENT_LIST_DIR}/../src)
"""

_ARDUINO = """name=@NAME@
version=1.0.0
author=edgekit
maintainer=edgekit
sentence=A model as a library
paragraph=
category=Data Processing
url=
architectures=*
includes=@NAME@.h
"""

_COMPONENT = 'dependencies:\n  espressif/esp-tflite-micro: "*"\n'
COMPONENT = "idf_component.yml"
FILES = {"CMakeLists.txt": _CMAKE, "zephyr/module.yml": _MODULE, "zephyr/CMakeLists.txt": _ZEPHYR, "library.properties": _ARDUINO}
