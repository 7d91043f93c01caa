"""The write half: the code that runs inside the user's program."""
