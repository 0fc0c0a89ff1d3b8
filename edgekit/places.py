"""Where edgekit keeps things on this machine, and the environment variables that put them elsewhere. Nothing is made here."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache() -> Path:
    """What can be made or fetched again (runners, runtime libraries, userlands, records of builds): `$EDGEKIT_CACHE`, or the user's cache folder."""
    return Path(os.environ.get("EDGEKIT_CACHE") or platformdirs.user_cache_path("edgekit"))


def state() -> Path:
    """What is so at this moment (leases, running virtual devices): `$EDGEKIT_STATE`, or the user's state folder."""
    return Path(os.environ.get("EDGEKIT_STATE") or platformdirs.user_state_path("edgekit"))


def tools() -> Path:
    """Isolated tools: `$EDGEKIT_TOOLS`, or `tools` in the user's data folder."""
    return Path(os.environ.get("EDGEKIT_TOOLS") or platformdirs.user_data_path("edgekit") / "tools")


def farm_file() -> Path | None:
    """The farm file in use when none is named: `$EDGEKIT_FARM`, `farm.toml` here, or the user's own; None without one."""
    if named := os.environ.get("EDGEKIT_FARM"):
        return Path(named)
    own = (Path("farm.toml"), platformdirs.user_config_path("edgekit") / "farm.toml")
    return next((path for path in own if path.is_file()), None)
