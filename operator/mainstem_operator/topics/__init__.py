"""Topics: their reconcile, the plan, and the requests that carry it out."""
