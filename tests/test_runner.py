"""What a bundle becomes on its way to a device."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from edgekit import bundle, runner
from edgekit import job as contract
from edgekit.runner import RunOptions
from edgekit.tensors import raw_bytes
from edgekit.transports import Facts
from tests.manifests import manifest


@pytest.mark.parametrize("name", ["libz.so.1", "job.json", "runner", "inputs/x", "glibc-hwcaps/x86-64-v3/libz.so.1"])
def test_nothing_that_a_bundle_names_lies_where_libraries_and_runner_are_looked_up(name, tmp_path):
    made = manifest()
    main = f"artifact/{name.partition('/')[0]}"
    made = msgspec.structs.replace(made, artifact=msgspec.structs.replace(made.artifact, main=main))
    given = np.arange(4, dtype=np.float32).reshape(1, 4)
    bundle.write(tmp_path / "m.edgekit", made, {f"artifact/{name}": b"theirs", "golden/inputs/000-0.raw": raw_bytes(given)})
    folder = tmp_path / "job"
    folder.mkdir()
    with bundle.open(tmp_path / "m.edgekit") as opened:
        job = runner.write_job(opened, folder, Facts("here", "linux", "x86_64", "linux-x86_64", "python"), RunOptions())
    assert sorted(path.name for path in folder.iterdir()) == ["artifact", "inputs", "job.json"]
    assert contract.read_job(folder) == job
    found = contract.inside(folder, job.artifact)
    assert b"theirs" in [path.read_bytes() for path in (found, *found.rglob("*")) if path.is_file()]
    np.testing.assert_array_equal(np.fromfile(folder / "inputs/000-0.raw", np.float32), given.ravel())
