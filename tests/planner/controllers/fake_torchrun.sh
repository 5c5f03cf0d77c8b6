#!/bin/sh
# An elastic agent that trains nothing: it has one worker, starts it again when it dies, and ends both on SIGTERM.
# With FAKE_STRAY its worker outlives it, as one does whose agent was told to end while it began.
most_restarts=1
trap '[ -n "$FAKE_STRAY" ] || kill -KILL $worker; exit 0' TERM
export LOCAL_RANK=0 TORCHELASTIC_MAX_RESTARTS=$most_restarts TORCHELASTIC_RUN_ID="${1#--rdzv-id=}"
for restarts in $(seq 0 $most_restarts); do
    TORCHELASTIC_RESTART_COUNT=$restarts sleep 60 &
    worker=$!
    wait $worker
done
