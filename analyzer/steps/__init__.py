"""Which periods are there: training steps read off the traffic, and when they became slower or fast again."""
