"""Advice: what may be wrong with a job, one rule a file; see sonde.verdict for the contract."""
