"""Names of code: built in, a third party's, a user's; each refusal names what was asked for and what would do."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from edgekit import plugins, target
from edgekit.errors import PluginError, UsageError


def entry_point(monkeypatch: pytest.MonkeyPatch, group: str, name: str, value: str) -> None:
    given = metadata.EntryPoint(name, value, group)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [given] if group == given.group else [])


def test_every_built_in_has_what_its_seam_asks_for() -> None:
    for name in plugins.BUILT_IN["edgekit.backends"]:
        backend = plugins.load("edgekit.backends", name)
        assert all(callable(getattr(backend, part)) for part in ("prepare", "emulate", "graph", "trim", "own_precision"))
        assert backend.accepts and backend.precisions
    assert all(callable(plugins.load("edgekit.transports", name).connect) for name in plugins.BUILT_IN["edgekit.transports"])


def test_a_mistyped_name_gets_the_close_match() -> None:
    with pytest.raises(UsageError, match="no backend named 'litrt'") as caught:
        plugins.load("edgekit.backends", "litrt")
    assert caught.value.hint == "did you mean litert?"


def test_a_third_party_s_code_and_folders_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "their_edgekit.py").write_text(f"def folder():\n    return {str(tmp_path)!r}\n")
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
