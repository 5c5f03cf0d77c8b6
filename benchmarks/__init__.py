"""One module per claim; each measures its figures beside a reference in the same run."""
