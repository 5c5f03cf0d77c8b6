"""RDMA ports: files, rules, netlink."""
