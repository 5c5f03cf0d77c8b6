"""How a diagnosis is shown: in a terminal, or as a page of its own."""
