"""The native runner's JSON reader: damaged documents under sanitizers, and whole ones against Python's reader."""

from __future__ import annotations

import json
import random
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edgekit import native_build

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="the native runner needs a C compiler")


FUZZER = r"""
#include "json.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void show(const struct json *v) {
  if (v->kind == JSON_NULL) printf("null");
  if (v->kind == JSON_BOOL) printf(v->truth ? "true" : "false");
  if (v->kind == JSON_NUMBER) printf("%.17g", v->number);
  if (v->kind == JSON_STRING) { printf("\""); for (const char *c = v->text; *c; c++) printf("%02x", (unsigned char)*c); printf("\""); }
  if (v->kind != JSON_ARRAY && v->kind != JSON_OBJECT) return;
  printf(v->kind == JSON_ARRAY ? "[" : "{");
  for (const struct json *c = v->child; c; c = c->next) {
    if (v->kind == JSON_OBJECT) { printf("\""); for (const char *k = c->key; *k; k++) printf("%02x", (unsigned char)*k); printf("\":"); }
    show(c);
    if (c->next) printf(",");
  }
  printf(v->kind == JSON_ARRAY ? "]" : "}");
}
int main(void) {
  unsigned char head[4];
  while (fread(head, 1, 4, stdin) == 4) {
    size_t n = head[0] | head[1] << 8 | head[2] << 16;
    char *text = malloc(n ? n : 1), error[64] = ""; /* exactly as long as the document: reading past it is seen */
    if (fread(text, 1, n, stdin) != n) return 1;
    struct json *value = json_parse(text, n, error, sizeof error);
    if (value) show(value); else printf("!%s", error);
    printf("\n");
    json_free(value);
    free(text);
  }
  return 0;
}
"""

SEEDS = [
    b'{"runtime": "litert", "samples": [[{"name": "x", "shape": [1, 224, 3], "file": "inputs/0.raw"}]], "max_seconds": 5.0, "a": null}',
    '{"käse": "\\u00e9\\ud83d\\ude00 \\" \\\\ \\/ \\b\\f\\n\\r\\t", "é": [true, false, null, -0.5e-3, 1E+2, 9007199254740993]}'.encode(),
    b"[" * 33 + b"]" * 33,
    b"[" * 32 + b"]" * 32,
    b'{"a":1,"a":2}',
    b'["\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80"]',
    b'"\\u0000"',
    b"-",
    b"01",
    b"1.",
    b"1e",
    b'"\\',
    b'"\\u12',
    b"nul",
    b"[1,]",
    b'{"a" 1}',
    b"",
    b"1" * 100,
]


def _mutants(count: int) -> list[bytes]:
    rng = random.Random(3)
    made = list(SEEDS)
    for _ in range(count):
        data = bytearray(rng.choice(SEEDS[:3]))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data) + 1)
            choice = rng.randrange(4)
            if choice == 0:
                data[at:at] = rng.choice(
                    [b'"', b"\\", b"{", b"[", b"]", b"}", b",", b":", b"\\u", b"\xff", b"\xe2\x82", b"0", b"e", b"-", b"\x00", b"\n"]
                )
            elif choice == 1:
                del data[at : at + rng.randint(1, 8)]
            elif choice == 2 and at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            else:
                data = data[:at] or data
        made.append(bytes(data))
    return made


def _hex(value: Any) -> Any:
    """A document as the C program shows it: texts in hexadecimal."""
    if isinstance(value, str):
        return value.encode().hex()
    if isinstance(value, list):
        return [_hex(x) for x in value]
    return {_hex(k): _hex(x) for k, x in value.items()} if isinstance(value, dict) else value


def test_the_json_reader_survives_and_agrees_with_python(tmp_path: Path) -> None:
    """No memory error in 4000 damaged documents (AddressSanitizer, UBSan); what it accepts, Python reads alike."""
    (tmp_path / "fuzz.c").write_text(FUZZER)
    sources = native_build.sources()
    flags = ["-std=c11", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{sources}"]
    built = subprocess.run(
        ["cc", *flags, str(tmp_path / "fuzz.c"), str(sources / "json.c"), "-o", str(tmp_path / "fuzz")], capture_output=True, check=False
    )
    if b"asan" in built.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert built.returncode == 0, built.stderr.decode()
    documents = _mutants(4000)
    stream = b"".join(struct.pack("<I", len(x)) + x for x in documents)
    done = subprocess.run([str(tmp_path / "fuzz")], input=stream, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[:2000]
    lines = done.stdout.decode().split("\n")[:-1]
    assert len(lines) == len(documents)
    accepted = 0
    for document, line in zip(documents, lines, strict=True):
        if line.startswith("!"):
            continue
        accepted += 1
        expected = json.loads(document.decode("utf-8"), parse_int=float)
        assert json.loads(line, parse_int=float) == _hex(expected), document
    refused = {document for document, line in zip(documents, lines, strict=True) if line.startswith("!")}
    assert set(SEEDS[4:]) <= refused and SEEDS[2] in refused
    assert not {SEEDS[0], SEEDS[1], SEEDS[3]} & refused
    assert 200 < accepted < 3500
