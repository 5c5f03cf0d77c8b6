"""Which pair is slow: delays per byte between NICs, held against what others need."""
