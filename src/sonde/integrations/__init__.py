"""What libraries of training loops know and hooks cannot: a file for each library."""
