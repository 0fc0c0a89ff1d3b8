"""The published schema of a bundle's manifest is the one the code reads, and a real manifest obeys it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import jsonschema
import msgspec

from edgekit import manifest, packager
from tests.e2e import models

PUBLISHED = Path(__file__).resolve().parents[1] / "docs" / "manifest.schema.json"


def test_the_published_schema_is_current() -> None:
    current = msgspec.json.format(msgspec.json.encode(manifest.json_schema()), indent=1).decode() + "\n"
    assert PUBLISHED.read_text("utf-8") == current


def test_a_manifest_obeys_the_schema(tmp_path: Path) -> None:
    model = models.dense(tmp_path / "dense.tflite")
    outcome = packager.package(str(model), "android-arm64", packager.Options(precision="fp32", out=tmp_path, rebuild=True))
    assert outcome.bundle is not None
    with zipfile.ZipFile(outcome.bundle) as archive:
        document = json.loads(archive.read("manifest.json"))
    validator = jsonschema.Draft202012Validator(json.loads(PUBLISHED.read_text("utf-8")))
    validator.validate(document)
    del document["target"]
    assert not validator.is_valid(document)
