"""A virtual Core ML device: runs a saved ML Program package on any machine, as written, without coremltools.

`package.read` reads and checks an .mlpackage; `Session` runs it; `hazards.hazards` finds values that leave the half range.
"""

from __future__ import annotations
