"""What sonde knows of training loops; lives in the job, and imports torch only if it is there."""
