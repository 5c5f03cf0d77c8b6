"""Lines of the kernel's log."""
