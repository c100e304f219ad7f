"""Replication throttles of the operator's own moves: the plan, and the requests that carry it out."""
