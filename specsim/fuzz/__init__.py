"""Campaigns: the suites of `check`, for hours, on many cores and machines, with a store that loses nothing."""
