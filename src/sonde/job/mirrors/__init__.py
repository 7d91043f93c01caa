"""Mirrors: each passes regions, counters and markers on to another tool. One file each."""
