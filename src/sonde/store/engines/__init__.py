"""One file for each engine that can be asked instead of the one that is built in."""
