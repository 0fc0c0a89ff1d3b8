"""A board with a DPU over ssh: its own Python executes the job. The sshd is this machine's, whose Python stands for the board's."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgekit import bundle, packager, runner
from edgekit.bundle import Bundle
from edgekit.errors import RunnerError
from tests.dpu_models import NETWORK_SHAPE, network
from tests.e2e.cli import ROOT
from tests.ssh_board import SSHD, Board

pytestmark = pytest.mark.slow

FEW = runner.RunOptions(min_runs=2, warmup_runs=0)


class PythonBoard(Board):
    """A board whose `python3` has edgekit and ONNX Runtime, or (`bare`) nothing."""

    bare = False

    def start(self) -> None:
        home = self.folder / "bin"
        home.mkdir(exist_ok=True)
        python = home / "python3"
        isolated = " -S -I" if self.bare else ""
        python.write_text(f'#!/bin/sh\nexport PYTHONPATH="{ROOT}"\nexec {sys.executable}{isolated} "$@"\n')
        python.chmod(0o755)
        with (self.folder / "sshd_config").open("a") as config:
            config.write(f"SetEnv EDGEKIT_PYTHON={python}\n")
        super().start()


class BareBoard(PythonBoard):
    bare = True


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bundle]:
    folder = tmp_path_factory.mktemp("net")
    data = np.random.RandomState(0).randn(16, *NETWORK_SHAPE).astype(np.float32)
    np.savez(folder / "data.npz", x=data)
    options = packager.Options(calibration=str(folder / "data.npz"), out=folder, rebuild=True)
    made = packager.package(str(network(folder / "net.onnx")), "fpga-dpuczdx8g", options)
    assert made.bundle is not None, made.findings
    with bundle.open(made.bundle) as opened:
        yield opened


@pytest.fixture(params=[PythonBoard, BareBoard], ids=["with-edgekit", "bare"])
def board(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Board]:
    if not SSHD or not shutil.which("ssh"):
        pytest.skip("there is no OpenSSH server here: apt-get install -y openssh-server")
    started = request.param(tmp_path)
    yield started
    started.stop()


@pytest.mark.parametrize("board", [PythonBoard], indirect=True)
def test_the_job_runs_in_the_boards_python_and_its_provider_is_asked_for(board: Board, packaged: Bundle) -> None:
    link = board.connect()
    run = runner.run(packaged, link, link.facts(), runner.RunOptions(min_runs=2, warmup_runs=0, accelerator="dpu"))
    for found, wanted in zip(run.outputs, runner.golden(packaged, "host"), strict=True):
        for name, values in wanted.items():
            np.testing.assert_array_equal(found[name], values)
    with pytest.raises(RunnerError, match=r"'vitisai'.*this ONNX Runtime has .*CPUExecutionProvider") as caught:
        runner.run(packaged, link, link.facts(), FEW)
    assert caught.value.stage == "prepare"
    link.close()


@pytest.mark.parametrize("board", [BareBoard], indirect=True)
def test_a_board_without_edgekit_says_so(board: Board, packaged: Bundle) -> None:
    link = board.connect()
    with pytest.raises(RunnerError, match=r"No module named 'edgekit|No module named edgekit") as caught:
        runner.run(packaged, link, link.facts(), FEW)
    assert caught.value.exit_code == 6
    link.close()
