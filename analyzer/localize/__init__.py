"""Which set of faults explains the slow pairs."""
