"""The write half: what runs inside the user's program."""
