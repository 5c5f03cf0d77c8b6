"""How the kernel of this host is asked: netlink, sockets, links, RDMA, processes, and files of others."""
