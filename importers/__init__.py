"""What other tools tell, as our records: recordings, dumps and alerts under traces, fabrics under topology."""
