"""The table of virtual devices: each is known, says what it lacks, and refuses what it does not know."""

from __future__ import annotations

import importlib

import pytest

from edgekit import device
from edgekit.errors import UsageError
from edgekit.transports import virtual
from edgekit.virtual.cortex_m.boards import BOARDS

NO_OPTIONS = [name for name in virtual.DEVICES if name != "android-arm64"]


def test_every_emulated_core_is_a_virtual_device() -> None:
    assert {name for name, known in virtual.DEVICES.items() if known.module == "cortex_m"} == set(BOARDS)


@pytest.mark.parametrize("name", virtual.DEVICES)
def test_each_has_a_module_and_says_what_it_lacks(name: str) -> None:
    module = importlib.import_module(f"edgekit.transports.virtual.{virtual.DEVICES[name].module}")
    assert callable(module.connect)
    assert all(": " in line for line in virtual.missing(name))
    assert device.parse(virtual.DEVICES[name].address).place == name


def test_device_models_of_virtual_devices_name_ones_that_exist() -> None:
    addresses = {known.address for known in virtual.DEVICES.values()}
    assert {model.address for model in device.models().values() if model.virtual} <= addresses


def test_an_unknown_device_gets_the_close_match() -> None:
    with pytest.raises(UsageError) as raised:
        virtual.connect("android-arm46", {})
    assert raised.value.hint == "did you mean android-arm64?"


@pytest.mark.parametrize("name", NO_OPTIONS)
def test_an_unknown_option_is_refused_before_anything_starts(name: str) -> None:
    with pytest.raises(UsageError, match="speed"):
        virtual.connect(name, {"speed": "11"})


def test_an_unknown_option_of_the_android_device_lists_those_it_has() -> None:
    with pytest.raises(UsageError) as raised:
        virtual.connect("android-arm64", {"speed": "11"})
    assert "cores" in str(raised.value.hint)


@pytest.mark.parametrize(("name", "arch"), [("hexagon-v68", "68"), ("hexagon-v81", "81")])
def test_a_hexagon_says_which_generation_it_stands_for(name: str, arch: str) -> None:
    facts = virtual.connect(name, {}).facts()
    assert facts.emulated
    assert facts.details["hexagon_arch"] == arch
