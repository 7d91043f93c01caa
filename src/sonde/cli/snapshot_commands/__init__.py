"""What can be done with the files of snapshots: one file per sub-command of `sonde snapshot`."""
