"""The background process: it archives rows, enforces retention and measures the machine."""
