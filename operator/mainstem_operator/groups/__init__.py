"""ConsumerGroups: their reconcile, lag, and offset resets."""
