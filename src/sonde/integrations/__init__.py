"""Integrations with training libraries, which know what hooks cannot see. One file each."""
