"""The formats that other programs open, one file each.

A format has SUFFIX, TEXT (False: bytes), IN_ORDER (it needs the order of time), OPEN (what opens
the file) and write(profile, file)."""
