"""Sensors: what is seen from outside the job, by the collector. One file each."""
