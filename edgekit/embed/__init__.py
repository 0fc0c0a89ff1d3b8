"""Code around an artifact, for the app or firmware that it becomes a part of."""
