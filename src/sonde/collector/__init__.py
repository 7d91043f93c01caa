"""The background process: archives rows, keeps to the limits, and measures the machine."""
