"""Scenarios told on a real fabric: namespaces, ranks that send, collectors, and the head node that names the part."""
