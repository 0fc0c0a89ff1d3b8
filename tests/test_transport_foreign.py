"""Third parties' transports that fail in every way: each is its own unit's failure, named, and the other units go on."""

from __future__ import annotations

import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from edgekit import device, farm, plugins, tester
from edgekit.device import Unit
from edgekit.errors import DeviceError, UsageError
from edgekit.transports import foreign, local
from tests.e2e import models

THEIRS = '''
"""A transport that does the wrong thing named by its address."""
import os, sys, time
from pathlib import Path
from edgekit.errors import DeviceError
from edgekit.transports import local, Facts

closed = []

class Link:
    def __init__(self, wrong):
        self.wrong, self.link, self.retries = wrong, local.connect("", {}), 3

    def facts(self):
        match self.wrong:
            case "facts-raise": raise KeyError("serial")
            case "facts-hang": time.sleep(30)
            case "facts-none": return None
            case "facts-types": return Facts(7, "linux", "x86_64", "linux-x86_64", "python", cores="many")
            case "facts-runner": return Facts("7", "linux", "x86_64", "linux-x86_64", "perl")
        return self.link.facts()

    def execute(self, job, result, timeout_s):
        match self.wrong:
            case "execute-raise": raise ZeroDivisionError("division by zero")
            case "execute-exit": sys.exit(3)
            case "execute-edgekit": raise DeviceError("the rack is locked", "unlock it", device="rack", reason="offline")
            case "execute-hang": time.sleep(30)
            case "execute-nothing": return
            case "execute-text": (result / "result.json").write_text("done!"); return
            case "execute-deep": (result / "result.json").write_text("[" * 200_000); return
            case "execute-gone": result.rmdir(); return
        self.link.execute(job, result, timeout_s)
        match self.wrong:
            case "execute-link":
                for path in (result / "outputs").iterdir(): path.unlink(); path.symlink_to("/etc/hostname")
            case "execute-fifo":
                for path in (result / "outputs").iterdir(): path.unlink(); os.mkfifo(path)
            case "execute-short":
                for path in (result / "outputs").iterdir(): path.write_bytes(b"1")

    def close(self):
        closed.append(self.wrong)
        if self.wrong == "close-raise": raise RuntimeError("cannot let go")

def connect(address, options):
    if address == "connect-raise": raise OSError(111, "Connection refused")
    if address == "connect-none": return None
    if address == "connect-hang": time.sleep(0.6)
    return Link(address)
'''


@pytest.fixture(autouse=True)
def theirs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The plug-in `rack`, with little patience."""
    (tmp_path / "acme_rack.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("EDGEKIT_STATE", str(tmp_path / "state"))
    given = metadata.EntryPoint("rack", "acme_rack", "edgekit.transports")
    monkeypatch.setattr(metadata, "entry_points", lambda group: [given] if group == given.group else [])
    for name in ("CONNECT_S", "ANSWER_S"):
        monkeypatch.setattr(foreign, name, 0.3)
    monkeypatch.delitem(__import__("sys").modules, "acme_rack", raising=False)
    return plugins.load("edgekit.transports", "rack")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.dense_bundle(tmp_path_factory.mktemp("bundle"))


WRONG = {
    "connect-raise": ("plug-in", "connect raised ConnectionRefusedError: [Errno 111] Connection refused"),
    "connect-none": ("plug-in", "connect gave None, which has no facts"),
    "connect-hang": ("hung", "connect of the transport rack (plug-in acme_rack) did not end within 0.3 s"),
    "facts-raise": ("plug-in", "facts raised KeyError: 'serial'"),
    "facts-hang": ("hung", "facts of the transport rack (plug-in acme_rack) did not end within 0.3 s"),
    "facts-none": ("plug-in", "facts gave None, not edgekit.transports.Facts"),
    "facts-types": ("plug-in", "facts are malformed: Expected `str`, got `int` - at `$.identity`"),
    "facts-runner": ("plug-in", "facts are malformed: identity '7', runner 'perl'"),
    "execute-raise": ("plug-in", "execute raised ZeroDivisionError: division by zero"),
    "execute-exit": ("plug-in", "execute raised SystemExit: 3"),
    "execute-edgekit": ("offline", "the rack is locked"),
    "execute-nothing": ("", "there is no result.json"),
    "execute-text": ("", "result.json: JSON is malformed"),
    "execute-deep": ("", "result.json: "),
    "execute-gone": ("plug-in", "execute left no result folder"),
    "execute-link": ("plug-in", "which is neither a file nor a folder"),
    "execute-fifo": ("plug-in", "which is neither a file nor a folder"),
    "execute-short": ("", "1 bytes"),
}


def test_each_wrong_is_its_unit_s_failure_and_the_others_go_on(bundle: Path) -> None:
    units = [*(device.parse(f"rack:{wrong}") for wrong in WRONG), device.parse("rack:fine"), device.parse("rack:close-raise"), device.parse("local:")]
    run = tester.test(bundle, units, tester.Options(run=tester.RunOptions(min_runs=0, warmup_runs=0), parallel=2))
    for report, (wrong, (reason, said)) in zip(run.reports, WRONG.items(), strict=False):
        assert report.failure is not None, wrong
        assert (report.device.name, report.failure.reason) == (f"rack:{wrong}", reason)
        assert said in report.failure.message
        assert report.failure.exit_code == (5 if reason else 6)
        assert reason != "plug-in" or ("rack (plug-in acme_rack)" in report.failure.message and "plug-in" in report.failure.hint)
    assert [report.verdict for report in run.reports[-3:]] == ["passed"] * 3
    assert [report.conditions.retries for report in run.reports[-3:] if report.conditions] == [0, 0, 0]


def test_a_run_that_does_not_end_is_given_up(theirs: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(foreign, "CARRY_S", 0.1)
    (result := tmp_path / "result").mkdir()
    start = time.monotonic()
    with farm.session(Unit("r", "rack", "execute-hang")) as link, pytest.raises(DeviceError, match=r"execute of .* within 0\.3 s") as caught:
        link.execute(tmp_path, result, 0.2)
    assert caught.value.reason == "hung" and time.monotonic() - start < 5
    assert list(result.iterdir()) == [] and [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []
    assert theirs.closed == ["execute-hang"]


def test_a_link_that_comes_too_late_is_closed(theirs: Any) -> None:
    with pytest.raises(DeviceError, match="connect"):
        farm.connect(Unit("r", "rack", "connect-hang"))
    deadline = time.monotonic() + 5
    while theirs.closed != ["connect-hang"] and time.monotonic() < deadline:
        time.sleep(0.02)
    assert theirs.closed == ["connect-hang"]


def test_a_failure_to_close_is_noted_and_changes_no_outcome() -> None:
    link = farm.connect(Unit("r", "rack", "close-raise"))
    link.close()
    assert [retry.message for retry in getattr(link, "retries", ())] == [
        "rack:close-raise: the transport rack (plug-in acme_rack): close raised RuntimeError: cannot let go"
    ]


def test_edgekit_s_own_links_are_not_wrapped() -> None:
    assert isinstance(farm.connect(device.parse("local:")), local.LocalLink)


def test_a_plug_in_that_exits_when_it_is_imported_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "acme_exits.py").write_text("raise SystemExit(9)")
    given = metadata.EntryPoint("rack", "acme_exits", "edgekit.transports")
    monkeypatch.setattr(metadata, "entry_points", lambda group: [given] if group == given.group else [])
    found = farm.run_many([Unit("r", "rack", "1")], farm.connect)
    assert "the plug-in rack (acme_exits) would not load: SystemExit: 9" in str(found[0])


@pytest.mark.parametrize("name", sorted(plugins.BUILT_IN["edgekit.transports"]))
def test_every_built_in_transport_says_which_places_are_its_own(name: str) -> None:
    transport = plugins.load("edgekit.transports", name)
    assert transport.FORM.startswith(f"{name}:")
    for place in ("", "x", "pi@board", "a b"):
        try:
            transport.check(place)
        except UsageError as error:
            assert error.hint
            with pytest.raises(UsageError):
                device.parse(f"{name}:{place}")
        else:
            assert device.parse(f"{name}:{place}").place == place
