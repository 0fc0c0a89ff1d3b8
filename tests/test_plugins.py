"""Names of code: built in, a third party's, a user's; each refusal names what was asked for and what would do."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from edgekit import plugins, target
from edgekit.budget import catalogue
from edgekit.errors import PluginError, UsageError
from edgekit.opset import table


def entry_point(monkeypatch: pytest.MonkeyPatch, group: str, name: str, value: str) -> None:
    given = metadata.EntryPoint(name, value, group)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [given] if group == given.group else [])


def test_every_built_in_has_what_its_seam_asks_for() -> None:
    for name in plugins.BUILT_IN["edgekit.backends"]:
        backend = plugins.load("edgekit.backends", name)
        assert all(hasattr(backend, part) for part in plugins.ASKED_FOR["edgekit.backends"])
        assert backend.accepts and backend.precisions
    assert all(callable(plugins.load("edgekit.transports", name).connect) for name in plugins.BUILT_IN["edgekit.transports"])


def test_what_a_third_party_s_code_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entry_point(monkeypatch, "edgekit.transports", "theirs", "json")
    with pytest.raises(PluginError, match=r"the plug-in theirs \(json\) would not load: it has no connect"):
        plugins.load("edgekit.transports", "theirs")


def test_a_folder_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "no_folder.py").write_text(f"def folder():\n    return {str(tmp_path / 'gone')!r}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    entry_point(monkeypatch, "edgekit.targets", "theirs", "no_folder:folder")
    with pytest.raises(PluginError, match="is no folder"):
        plugins.folders("edgekit.targets")


def test_a_third_party_s_operator_table_and_catalogue_stand_beside_its_profiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "their-npu.json").write_text('{"delegate": "their-npu", "label": "NPU", "sources": [], "ops": {"Relu": {}}}')
    (tmp_path / "runtimes").mkdir()
    (tmp_path / "runtimes" / "theirs.json").write_text('{"runtime": "theirs"}')
    monkeypatch.setattr(plugins, "folders", lambda group: [tmp_path])
    assert list(table.load("their-npu").ops) == ["Relu"]
    with pytest.raises(UsageError, match=r"runtimes/theirs\.json: .*sources"):
        catalogue.load("theirs")
    with pytest.raises(UsageError, match="no size catalogue for the runtime 'thiers'") as caught:
        catalogue.load("thiers")
    assert caught.value.hint == "did you mean theirs?"


def test_a_mistyped_name_gets_the_close_match() -> None:
    with pytest.raises(UsageError, match="no backend named 'litrt'") as caught:
        plugins.load("edgekit.backends", "litrt")
    assert caught.value.hint == "did you mean litert?"


def test_a_third_party_s_code_and_folders_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "their_edgekit.py").write_text(f"def folder():\n    return {str(tmp_path)!r}\n\ndef connect(address, options): ...\n")
    (tmp_path / "my-board.toml").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    entry_point(monkeypatch, "edgekit.targets", "theirs", "their_edgekit:folder")
    assert target.paths()["my-board"] == tmp_path / "my-board.toml"
    entry_point(monkeypatch, "edgekit.transports", "theirs", "their_edgekit")
    assert plugins.load("edgekit.transports", "theirs").folder() == str(tmp_path)
    assert "theirs" in plugins.names("edgekit.transports")


@pytest.mark.parametrize("ask", [lambda: plugins.load("edgekit.targets", "broken"), lambda: plugins.folders("edgekit.targets")])
def test_a_plug_in_that_does_not_load_is_named(ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plugins.BUILT_IN, "edgekit.targets", {})
    entry_point(monkeypatch, "edgekit.targets", "broken", "no_such_module:thing")
    with pytest.raises(PluginError, match=r"the plug-in broken \(no_such_module:thing\) would not load: No module"):
        ask()
