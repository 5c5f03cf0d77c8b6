"""Clocks: the kernel's opinion, and questions between hosts."""
