"""The seam between the job and the tool: everything that is a file in a session folder."""
