"""How many nodes each job gets, and which, so that the most weighted work is done until the next fault."""
