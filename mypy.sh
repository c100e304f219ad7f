cd /tmp/i4 && MYPYPATH=/tmp/i4/broker-image/src:/tmp/i4 /work/main/.venv/bin/mypy broker-image/src/mainstem_broker "$@"
