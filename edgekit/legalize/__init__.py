"""Rewrites that make a graph convertible or acceptable to a delegate, each with a reason, each proven equal."""
