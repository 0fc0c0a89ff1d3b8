"""What a bundle says of itself: `manifest.json`. The schema is published as `docs/manifest.schema.json`."""

from __future__ import annotations

from typing import Any

import msgspec

from edgekit.budget import Usage
from edgekit.opset import Verdict
from edgekit.parity import OutputParity
from edgekit.planner import Plan
from edgekit.preprocess import Preprocess
from edgekit.target import Target
from edgekit.tensors import Signature, TensorSpec

SCHEMA = 1


class FileEntry(msgspec.Struct, frozen=True):
    """Size and SHA-256 (hex) of one file of the bundle."""

    bytes: int
    sha256: str


class Source(msgspec.Struct, frozen=True):
    """Where the model came from: the reference's last part, its format and its digest, and the converters it went through."""

    name: str
    format: str
    digest: str
    route: tuple[str, ...] = ()


class ArtifactEntry(msgspec.Struct, frozen=True):
    """What the runtime loads. `main` is a file or folder of the bundle; `runtime_names` maps source names to the runtime's where they differ.

    `steps` are the quantization steps behind float outputs of a quantized artifact, by name.
    """

    main: str
    format: str
    precision: str
    bytes: int
    sha256: str
    runtime_names: dict[str, str] = {}
    steps: dict[str, float] = {}


class Golden(msgspec.Struct, frozen=True):
    """Samples with known answers: files `golden/{inputs,reference,host}/SAMPLE-TENSOR.raw`.

    `inputs` hold real values, `reference` the source's own types (`Manifest.source_signature`), `host` the artifact's stored ones. `samples`
    name the user's files; the last `random` samples are random.
    """

    samples: tuple[str, ...]
    random: int


class Sensitivity(msgspec.Struct, frozen=True):
    """What quantizing one operator costs: the loss in dB of the output, and why."""

    operator: str
    loss_db: float
    reason: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle's manifest. `signature` has the artifact's stored types; `source_signature` the model's own."""

    schema: int = SCHEMA
    edgekit: str
    name: str
    target: Target
    source: Source
    signature: Signature
    source_signature: Signature
    artifact: ArtifactEntry
    golden: Golden
    verdicts: tuple[Verdict, ...]
    plan: Plan
    usage: Usage
    loss: tuple[OutputParity, ...]
    sensitivity: tuple[Sensitivity, ...] = ()
    preprocess: Preprocess | None = None
    notices: tuple[str, ...] = ()
    tools: dict[str, str] = {}
    licenses: dict[str, str] = {}
    files: dict[str, FileEntry] = {}


def golden_file(kind: str, sample: int, tensor: int) -> str:
    """The bundle path of one golden tensor; `kind` is `inputs`, `reference` or `host`."""
    return f"golden/{kind}/{sample:03d}-{tensor}.raw"


def golden_spec(manifest: Manifest, kind: str, tensor: int) -> TensorSpec:
    """Name, shape and stored type of a golden tensor."""
    if kind == "inputs":
        return manifest.source_signature.inputs[tensor].real
    return (manifest.signature if kind == "host" else manifest.source_signature).outputs[tensor]


def json_schema() -> dict[str, Any]:
    """The JSON schema of `manifest.json`, as `docs/manifest.schema.json` publishes it."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "edgekit bundle manifest", **msgspec.json.schema(Manifest)}
