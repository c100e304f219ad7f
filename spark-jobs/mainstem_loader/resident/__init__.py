"""The resident loader: one process that keeps the tables of many topics fresh.

It repeats the loads of all topics that a file names, each often enough for its freshness, with one Spark.
Every load is that of `load_topic`: safe to kill, and beside a scheduled load or a second resident loader,
because the table's commit compares the offsets. So no lock and no leader is needed, and none is here.

    schedule.py        which topic is loaded next, and when (pure)
    configuration.py   the file: topics, and how each is loaded
    process.py         workers, the page of their state, the end
"""
