"""Which links lose or delay probes, from probes and a topology alone."""
