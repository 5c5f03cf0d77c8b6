"""What to do about a fault, and what every alternative would cost."""
