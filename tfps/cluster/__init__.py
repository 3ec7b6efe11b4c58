"""Where the tasks of a cluster are, and clusters on this machine."""
