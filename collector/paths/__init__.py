"""Planned paths on a training host: the plan is followed, and connections whose ports nobody knew get theirs."""
