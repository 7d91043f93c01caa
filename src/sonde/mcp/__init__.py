"""For agents: the commands that read, as tools of the Model Context Protocol."""
