"""One module per kind of receiver: what it is sent, and what its answer means."""
