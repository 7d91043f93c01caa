"""What may be wrong with a job: one file per rule; sonde.advice.verdict has the contract."""
