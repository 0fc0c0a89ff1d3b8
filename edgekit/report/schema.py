"""`python -m edgekit.report.schema` prints the published schema of a run's file."""

from __future__ import annotations

import sys

import msgspec

from edgekit.report import json_schema


def render() -> str:
    """The schema as it is published."""
    return msgspec.json.format(msgspec.json.encode(json_schema()), indent=1).decode() + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
