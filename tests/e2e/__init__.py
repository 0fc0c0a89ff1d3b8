"""The two recipes end to end, as a user runs them."""
