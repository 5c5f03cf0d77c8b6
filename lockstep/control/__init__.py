"""The small state that changes: leases, incidents, decisions, tokens, wishes and the audit trail."""
