"""Where the hosts of a cluster come from: one file for each way, `list_hosts(value)` in each."""
