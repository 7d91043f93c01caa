"""Other tools that are told of regions, counters and markers: one file each."""
