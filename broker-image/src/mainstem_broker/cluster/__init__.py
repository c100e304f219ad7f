"""The cluster as this broker sees it, its controller, and ZooKeeper, where all of it is kept (R18, R20)."""
