"""Variables of the program that the user asked to watch."""
