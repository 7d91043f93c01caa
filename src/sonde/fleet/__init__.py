"""Beyond one machine: the agent that answers for a host, and asking all agents of a cluster."""
