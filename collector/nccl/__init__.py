"""Ring files of the host: found, owned, read within a budget, remembered."""
