"""Who never arrived: which part a standstill comes from, out of how far every rank has come."""
