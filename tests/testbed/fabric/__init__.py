"""A fabric of network namespaces: hosts, leaves and spines of a topology, with shaped links and Linux ECMP."""
