"""What other programs open: files in their formats."""
