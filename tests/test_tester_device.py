"""A device that cannot run a bundle's artifact is refused before anything is pushed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from edgekit import device, target, tester
from edgekit.errors import UsageError
from edgekit.transports import Facts

GALAXY, PIXEL, UNKNOWN = "samsung SM-S921U1", "Google Pixel 8", "Acme Phone"


def check(target_name: str, model: str, abi: str = "arm64-v8a") -> None:
    facts = Facts("serial", "android", abi, f"android-{abi}", "native", model=model)
    manifest = SimpleNamespace(name="net", target=target.load(target_name))
    tester.check_device(facts, manifest, device.parse("adb:serial"))  # type: ignore[arg-type]  # what the function reads of it


@pytest.mark.parametrize(("target_name", "model"), [
    ("hexagon-v75", GALAXY), ("android-arm64", GALAXY), ("android-arm64", PIXEL), ("android-arm64-ort", PIXEL), ("hexagon-v73", UNKNOWN),
])  # fmt: skip
def test_what_fits_or_is_not_known_runs(target_name: str, model: str) -> None:
    check(target_name, model)


@pytest.mark.parametrize(("target_name", "model", "said", "hint"), [
    ("hexagon-v73", GALAXY, "has hexagon-v75", "package it for hexagon-v75"),
    ("hexagon-v75", PIXEL, "has no hexagon", "its processor"),
])  # fmt: skip
def test_an_artifact_for_another_chip_is_refused_with_what_the_device_has(target_name: str, model: str, said: str, hint: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        check(target_name, model)
    assert hint in str(raised.value.hint)


def test_another_processor_is_refused() -> None:
    with pytest.raises(UsageError, match="x86_64"):
        check("android-arm64", UNKNOWN, "x86_64")
