"""Exporters: what other viewers open. One file each.

An exporter has SUFFIX, TEXT (or bytes), OPEN (how to look at the file) and write(profile, file)."""
