"""Where the work runs: executors, their Kubernetes pods, and the task that each executor performs.
Only `executors` may import PySpark.
"""
