"""Folders and tables -> `Items`; data sets and a loader that restarts exactly where it stopped."""
