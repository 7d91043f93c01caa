"""Sensors: what the collector can observe from outside the job. One file each."""
