"""One file per source."""
