"""The loads of Topics into tables: the CronJob, its rights and the outcome of its runs."""
