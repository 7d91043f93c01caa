"""Reaching into a running process: start and end a recording there, from outside."""
