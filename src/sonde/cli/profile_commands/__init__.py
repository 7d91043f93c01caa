"""Profiling run by run: one file per sub-command of `sonde profile`."""
