"""The ranks' processes: state, end, reports."""
