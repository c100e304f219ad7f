"""Whether records are missing: what producers say they sent, what brokers store, and what tables hold,
compared for each window of ten minutes (section 2 of the paper, "auditing system").

`counts` is what producers post, `producer` counts and posts it, `observations` reads all sides, `verdicts`
compares them. `counts` and `verdicts` are pure. Must not live here: how an audit is shown (`cli`).
"""
