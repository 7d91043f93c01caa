"""Sources: what is seen from inside the job. One file each; see docs/how-it-works.md."""
