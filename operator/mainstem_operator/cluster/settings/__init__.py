"""Broker settings that take effect without a restart: the plan, and the requests that carry it out."""
