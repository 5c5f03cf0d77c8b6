"""The small state that changes: leases, incidents, decisions, tokens, detail requests and the audit trail."""
