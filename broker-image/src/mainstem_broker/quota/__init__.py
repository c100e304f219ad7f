"""What clients may take of a broker: rates over sliding windows, and whose limit counts for whom.

Pure: amounts and times come in, waiting times go out. Where requests are measured and connections held
back is `server/client_throttling.py`; where quotas are set is `api/client_quotas.py`.
"""
