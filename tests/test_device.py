"""Addresses, units and device models."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit import device
from edgekit.device import Unit
from edgekit.errors import UsageError


@pytest.mark.parametrize(
    ("text", "transport", "place", "options"),
    [
        ("local:", "local", "", {}),
        ("adb:", "adb", "", {}),
        ("adb:my phone 01", "adb", "my phone 01", {}),
        ("adb:192.168.0.7:5555", "adb", "192.168.0.7:5555", {}),
        ("adb:[::1]:5555?server_port=5038&start_server=true", "adb", "[::1]:5555", {"server_port": "5038", "start_server": "true"}),
        ("ssh:pi@board.local:2222", "ssh", "pi@board.local:2222", {}),
        ("serial:/dev/ttyACM0", "serial", "/dev/ttyACM0", {}),
        ("ios:00008110-000A", "ios", "00008110-000A", {}),
        ("ios:", "ios", "", {}),
        ("virtual:android-arm64?cores=2", "virtual", "android-arm64", {"cores": "2"}),
    ],
)
def test_an_address_is_read_in_its_parts(text: str, transport: str, place: str, options: dict[str, str]) -> None:
    unit = device.resolve(text)
    assert (unit.transport, unit.place, unit.options) == (transport, place, options)
    assert unit.address == f"{transport}:{place}"


@pytest.mark.parametrize(
    "text",
    ["", "pixel", "virtual:", "serial:", "local:x", "ssh:-oProxyCommand=x", "ssh:pi@host;rm", "ssh:a b", "adb:-x", "adb:a\nb", "virtual:x?cores"],
)
def test_what_cannot_be_an_address_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        device.resolve(text)
    assert caught.value.hint


def test_a_virtual_device_that_does_not_exist_is_refused_where_it_is_written() -> None:
    with pytest.raises(UsageError, match="no virtual device 'android-arm46'") as caught:
        device.resolve("virtual:android-arm46")
    assert caught.value.hint == "did you mean android-arm64?"


def test_all_forms_of_addresses_are_in_the_hint() -> None:
    assert device.forms() == "adb:SERIAL, adb:HOST:PORT, ios:UDID, local:, serial:PORT, ssh:USER@HOST[:PORT], virtual:NAME"


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_a_usage_error(text: str) -> None:
    try:
        unit = device.resolve(text)
    except UsageError:
        return
    assert text.strip().startswith(unit.address)


def test_a_unit_of_the_farm_goes_before_an_address_and_a_near_miss_is_named() -> None:
    units = {"pixel": Unit("pixel", "adb", "X1"), "board": Unit("board", "ssh", "pi@b")}
    assert device.resolve("pixel", units).place == "X1"
    assert device.resolve("adb:Y", units).place == "Y"
    with pytest.raises(UsageError) as caught:
        device.resolve("pixle", units)
    assert "pixel" in (caught.value.hint or "")


def test_a_label_selects_every_unit_that_has_it() -> None:
    units = {name: Unit(name, "adb", name, labels=labels) for name, labels in {"a": ("phone",), "b": ("phone", "old"), "c": ()}.items()}
    assert [unit.name for unit in device.select("label:phone", units)] == ["a", "b"]
    assert [unit.name for unit in device.select("c", units)] == ["c"]
    with pytest.raises(UsageError) as caught:
        device.select("label:phones", units)
    assert "phone" in (caught.value.hint or "")


def test_device_models_that_ship_are_readable_and_named_as_their_files() -> None:
    models = device.models()
    assert {"pixel-8", "galaxy-s24", "raspberry-pi-5", "virtual-android-arm64"} <= set(models)
    assert [model.name for model in models.values() if model.virtual] == [name for name in models if name.startswith("virtual-")]


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("Google Pixel 8", "pixel-8"),
        ("Google Pixel 8 Pro", None),
        ("samsung SM-S921U1", "galaxy-s24"),
        ("samsung SM-S921B", None),
        ("Raspberry Pi 5 Model B Rev 1.0", "raspberry-pi-5"),
        ("", None),
    ],
)
def test_a_device_is_known_by_the_model_it_reports(reported: str, name: str | None) -> None:
    found = device.identify(reported)
    assert (found.name if found else None) == name


def test_an_unknown_key_of_a_device_model_is_refused_with_the_close_match(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('name = "x"\nsummary = "x"\nos = "linux"\nabi = "aarch64"\ntargets = []\ncore = 4\n')
    with pytest.raises(UsageError) as caught:
        device.read(path)
    assert "cores" in (caught.value.hint or "")
