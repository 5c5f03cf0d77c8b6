"""Network interfaces and the TCP flows over them."""
