"""Who carries a decision out: job controllers behind one small protocol."""
