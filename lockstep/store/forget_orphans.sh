#!/bin/sh
# Run before ClickHouse starts: forget_orphans.sh DATA_DIRECTORY
#
# A MergeTree table notes an insert's token in its deduplication log and then renames the part into place. A server
# killed between the two comes back with a token whose rows are not there, takes the retry for a repetition, and the
# rows are lost. Such a note is the last of its table and names a part that no part on disk covers, which is true only
# until the next insert is merged: so it is struck out here, by a line that the log has for it, before the server
# starts. Replicated tables commit both at once, in Keeper, and have no such log.
set -eu

data=$1
[ -d "$data" ] || exit 0
if command -v flock >/dev/null && [ -e "$data/status" ] && ! flock --nonblock "$data/status" true; then
    echo "a server runs on $data: nothing was changed" >&2
    exit 1
fi

for logs in "$data"/store/*/*/deduplication_logs; do
    newest=$(ls "$logs" 2>/dev/null | sort -t_ -k3n | tail -n 1)
    [ -n "$newest" ] || continue
    table=${logs%/deduplication_logs}
    struck=$(
        {
            ls "$table"
            ls "$logs" | sort -t_ -k3n | while read -r log; do cat "$logs/$log"; done
        } | awk -F'\t' '
            BEGIN { parts = 0 }
            # A part is PARTITION_MIN_MAX_LEVEL, with a version behind it when it was mutated.
            NF == 1 && /^[^_]+_[0-9]+_[0-9]+_[0-9]+(_[0-9]+)?$/ {
                split($1, word, "_")
                first[parts] = word[2]; last[parts] = word[3]; partition[parts++] = word[1]
            }
            NF == 3 && $1 == 1 { note[$3] = $2 }
            NF == 3 && $1 == 2 { delete note[$3] }
            END {
                for (token in note) {
                    split(note[token], word, "_")
                    found = 0
                    for (i = 0; i < parts && !found; i++)
                        found = partition[i] == word[1] && first[i] + 0 <= word[2] + 0 && word[3] + 0 <= last[i] + 0
                    if (!found) printf "2\t%s\t%s\n", note[token], token
                }
            }'
    )
    [ -n "$struck" ] || continue
    printf '%s\n' "$struck" >>"$logs/$newest"
    echo "$table: tokens forgotten because their rows are not there: $(printf '%s\n' "$struck" | wc -l)" >&2
done
