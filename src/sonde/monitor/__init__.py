"""`sonde monitor`: watch the hardware under a job, and report how it was used."""
