"""Sources: what can be observed from inside the job. One file each; see docs/how-it-works.md."""
