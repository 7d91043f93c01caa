"""What tests share: handmade recordings, programs to record, and readers of what we write."""
