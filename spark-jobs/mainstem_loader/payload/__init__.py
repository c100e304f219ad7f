"""Record values to columns: formats, the kinds of JSON values, and the day of an event. Knows neither
Kafka's protocol nor files.
"""
