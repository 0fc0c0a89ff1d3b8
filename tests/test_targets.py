from __future__ import annotations

from pathlib import Path

import pytest

from edgekit import opset, target
from edgekit.budget import catalogue
from edgekit.errors import UsageError
from edgekit.opset import table

LITERT = ("android-arm64", "android-arm64-nnapi", "android-arm64-gpu", "linux-arm64")


@pytest.mark.parametrize("name", sorted(target.paths()))
def test_a_profile_is_named_as_its_file_and_fits_one_screen(name: str) -> None:
    profile = target.load(name)
    assert profile.name == name and profile.summary and profile.os and profile.backend
    assert len(target.paths()[name].read_text("utf-8").splitlines()) <= 50


@pytest.mark.parametrize("name", ["android-arm64-ort", "linux-arm64-ort"])
def test_an_onnx_runtime_profile_names_what_exists(name: str) -> None:
    profile = target.load(name)
    assert catalogue.runtime_rows(profile.runtime.catalogue, profile.runtime.platform, profile.runtime.accelerator)
    assert all(table.load(delegate).ops for delegate in profile.delegates)
    assert (profile.runtime.accelerator, profile.delegates[0]) == ("cpu", "ort_cpu")
    assert set(profile.tolerance.quantization) == set(profile.precisions)


@pytest.mark.parametrize("name", LITERT)
def test_what_a_profile_names_exists(name: str) -> None:
    profile = target.load(name)
    assert catalogue.runtime_rows(profile.runtime.catalogue, profile.runtime.platform, profile.runtime.accelerator)
    assert all(table.load(delegate).ops for delegate in profile.delegates)
    assert profile.runtime.accelerator == profile.delegates[0]
    assert set(profile.tolerance.quantization) == set(profile.precisions)
    assert profile.precisions[0] == "fp32"


def test_nnapi_is_a_deprecated_choice_never_the_default() -> None:
    profile = target.load("android-arm64-nnapi")
    assert "deprecated" in profile.summary and any("deprecated since Android 15" in note for note in profile.notes)
    assert "nnapi" not in target.load("android-arm64").delegates
    assert 1 <= profile.options["nnapi_feature_level"] <= 8


def test_options_name_delegates_of_the_profile() -> None:
    for name in LITERT:
        profile = target.load(name)
        assert all(key.split("_")[0] in profile.delegates for key in profile.options), name


def test_an_unknown_target_offers_the_close_match() -> None:
    with pytest.raises(UsageError, match="unknown target 'android-arm46'") as caught:
        target.load("android-arm46")
    assert caught.value.exit_code == 2 and "did you mean android-arm64?" in (caught.value.hint or "")


@pytest.mark.parametrize(("after", "line", "meant"), [
    ('backend = "litert"', 'precisons = ["fp32"]', "precisions"),
    ('catalogue = "litert"', 'plattform = "x"', "platform"),
    ("[tolerance.device]", "min_sqnr = 3.0", "min_sqnr_db"),
])  # fmt: skip
def test_an_unknown_key_offers_the_close_match(tmp_path: Path, after: str, line: str, meant: str) -> None:
    board = tmp_path / "my-board.toml"
    board.write_text(target.paths()["android-arm64"].read_text("utf-8").replace(after, f"{after}\n{line}", 1))
    with pytest.raises(UsageError, match=f"unknown field `{line.split()[0]}`") as caught:
        target.load(str(board))
    assert "my-board.toml" in caught.value.message and caught.value.hint == f"did you mean {meant}?"


@pytest.mark.parametrize(("text", "words"), [("name = ", "not valid TOML"), ("name = 3", "Expected `str`"), ("", "missing required field")])
def test_a_broken_profile_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "b.toml").write_text(text)
    with pytest.raises(UsageError, match=words):
        target.load(str(tmp_path / "b.toml"))


def test_a_profile_of_one_s_own_needs_no_plugin(tmp_path: Path) -> None:
    board = tmp_path / "my-board.toml"
    board.write_text(target.paths()["linux-arm64"].read_text("utf-8").replace('name = "linux-arm64"', 'name = "my-board"'))
    assert target.load(str(board)).name == "my-board"
    with pytest.raises(UsageError, match="no such target profile"):
        target.load(str(tmp_path / "absent.toml"))


def test_the_public_check_takes_a_profile() -> None:
    from tests.test_opset import chain

    graph = chain(["ABS", "CEIL"])
    found = opset.check(graph, target.load("android-arm64-nnapi"))
    assert {v.delegate for v in found} == {"nnapi", "xnnpack"} and {v.status for v in found if v.delegate == "xnnpack"} == {"accelerated"}
