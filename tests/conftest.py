"""Property tests have no deadline: how long an example takes tells how busy the machine is."""

from hypothesis import settings

settings.register_profile("edgekit", deadline=None)
settings.load_profile("edgekit")
