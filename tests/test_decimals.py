"""What is a number for a user, a file or a device, wherever one is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from edgekit import budget, decimals, preprocess, target
from edgekit.cli import lab, options, package
from edgekit.errors import UsageError
from edgekit.transports import adb_server, probe
from edgekit.transports.adb_server import AdbOptions
from edgekit.transports.failures import Policy, parse_options
from edgekit.transports.serial import SerialOptions
from edgekit.virtual.android import DeviceOptions

STRANGE = ["", "１", "٣", "²", "1_000", " 5", "5 ", "5\n", "nan", "inf", "-inf", "0x10", "1e999", "9" * 400, "1,5", "--1"]


@pytest.mark.parametrize("text", STRANGE)
def test_what_only_python_takes_for_a_number_is_none(text: str) -> None:
    for read in (decimals.whole, decimals.number):
        with pytest.raises(ValueError, match="is not a"):
            read(text)
    assert not decimals.is_whole(text)


def test_what_is_a_number() -> None:
    assert [decimals.whole(text) for text in ("0", "-7", "+12")] == [0, -7, 12]
    assert [decimals.number(text) for text in ("5", "-0.25", ".5", "1e-3", "5.")] == [5, -0.25, 0.5, 0.001, 5]


@pytest.mark.parametrize("text", ["２５MB", "٣MB", "2５MB", "1_000MB", "²MB", "nan", "inf", "25\u212aB", "9" * 400, "1." + "1" * 400])
def test_a_size_in_other_digits_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        budget.parse_size(text)


@pytest.mark.parametrize("text", ["x=１x3", "x=1_0x3", "x= 1x3", "x=1x3 "])
def test_a_shape_in_other_digits_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not NAME=SIZExSIZE"):
        package.shapes((text,))


@pytest.mark.parametrize("text", ["resize=２２４", "resize=2_24", "crop=5x 5", "mean=nan", "scale=1/٣", "scale=inf", "pad=１"])
def test_preprocessing_in_other_digits_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        preprocess.parse(text)


@click.command()
@click.option("--whole", type=options.Whole(0))
@click.option("--seconds", type=options.SECONDS)
@click.option("--some", type=options.SOME_SECONDS)
@click.option("--cool", type=lab._Millicelsius(-273, 1000))
@options.effect
def shown(**values: Any) -> None:
    click.echo(repr([values[name] for name in ("whole", "seconds", "some", "cool", "effect")]))


def test_options_take_plain_numbers() -> None:
    done = CliRunner().invoke(shown, ["--whole", "3", "--seconds", "0", "--some", "0.5", "--cool", "45.5", "--effect", "3"])
    assert done.output == "[3, 0.0, 0.5, 45500, 0.03]\n"
    assert CliRunner().invoke(shown).output == "[None, None, None, None, 0.05]\n"


@pytest.mark.parametrize("text", [*STRANGE, "-1", "1e9"])
@pytest.mark.parametrize("option", ["--whole", "--seconds", "--some", "--effect"])
def test_options_refuse_the_rest(option: str, text: str) -> None:
    done = CliRunner().invoke(shown, [f"{option}={text}"])
    assert done.exit_code == 2, done.output
    assert "Invalid value" in done.output


@pytest.mark.parametrize("text", ["nan", "inf", "1e300", "٤٥", "-300"])
def test_a_temperature_that_is_none_is_refused(text: str) -> None:
    assert CliRunner().invoke(shown, [f"--cool={text}"]).exit_code == 2


@pytest.mark.parametrize(("kind", "given"), [
    (Policy, {"stall_s": "nan"}), (Policy, {"stall_s": "0"}), (Policy, {"reconnect_s": "inf"}), (Policy, {"retries": "-1"}),
    (Policy, {"retries": "１"}), (Policy, {"result_bytes": "-5"}), (AdbOptions, {"server_port": "70000"}),
    (SerialOptions, {"answer_s": "nan"}), (SerialOptions, {"attempts": 0}),
    (DeviceOptions, {"port": -1}), (DeviceOptions, {"boot_s": "nan"}),
])  # fmt: skip
def test_options_of_a_device_have_bounds(kind: Any, given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(given))):
        parse_options(given, kind, "adb")


@pytest.mark.parametrize("text", ["５０３７", "5_037", "nan", "0", "70000", "x"])
def test_a_port_of_the_environment_that_is_none_is_told(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", text)
    with pytest.raises(UsageError, match="ANDROID_ADB_SERVER_PORT"):
        adb_server._place(AdbOptions())


def test_a_profile_without_a_finite_bound_is_refused(tmp_path: Path) -> None:
    """Nothing is beyond a bound that is no number: every comparison would pass."""
    text = next(path for path in target.paths().values() if "max_abs" in path.read_text("utf-8")).read_text("utf-8")
    import re

    for number in ("nan", "inf", "-inf"):
        (tmp_path / "board.toml").write_text(re.sub(r"max_abs = [0-9.e-]+", f"max_abs = {number}", text, count=1), "utf-8")
        with pytest.raises(UsageError, match=rf"board\.toml: tolerance\..*max_abs = {number} is no finite number"):
            target.read(tmp_path / "board.toml")


def test_what_a_device_says_in_other_digits_is_not_read() -> None:
    facts = probe.read("--uname\nLinux 6 aarch64\n--memory\n١٢٣\n--cores\n--cpus\n０-７\n--zones\n４５ cpu\n--end\n", "x", {})
    assert (facts.memory_bytes, facts.cores) == (None, None)
    assert not any(key.startswith("temperature") for key in facts.details)
