#include "queue_pairs.h"

#include "lines.h"

#include <pthread.h>
#include <string.h>

enum { HEADER_FIELDS = 5, ENTRY_FIELDS = 5, FIRST_PORT = 0xc000, PORT_BITS = 0x3fff, MOST_PAIRS = 4096 };

static bool read_header(char *line, uint64_t *generation)
{
    char *fields[HEADER_FIELDS];
    uint64_t lease_end_s;
    return lockstep_split(line, fields, HEADER_FIELDS) && strcmp(fields[0], "lockstep-queue-pairs") == 0 &&
           strcmp(fields[1], "1") == 0 && lockstep_read_number(fields[2], UINT64_MAX, generation) &&
           lockstep_read_number(fields[3], UINT64_MAX, &lease_end_s);
}

static bool read_entry(char *line, struct lockstep_pair *pair, uint64_t *port)
{
    char *fields[ENTRY_FIELDS];
    return lockstep_split(line, fields, ENTRY_FIELDS) && lockstep_read_address(fields[0], &pair->source) &&
           lockstep_read_address(fields[1], &pair->destination) &&
           lockstep_read_number(fields[2], UINT16_MAX, port) && *port >= FIRST_PORT;
}

static bool is_same(const struct lockstep_pair *one, const struct lockstep_pair *other)
{
    return memcmp(one, other, sizeof *one) == 0;
}

bool lockstep_look_up(int fd, const struct lockstep_pair *pair, uint32_t wanted, struct lockstep_lookup *found)
{
    struct lockstep_lines lines;
    struct lockstep_pair entry;
    char line[LOCKSTEP_LINE_BYTES];
    uint64_t port;
    memset(found, 0, sizeof *found);
    if (!lockstep_begin_lines(&lines, fd) || !lockstep_next_line(&lines, line) ||
        !read_header(line, &found->generation))
        return false;
    for (uint64_t entries = 0; lockstep_next_line(&lines, line); entries++) {
        if (strncmp(line, "end ", 4) == 0)
            return lockstep_read_end(line, entries) && lockstep_is_at_end(&lines);
        if (!read_entry(line, &entry, &port))
            return false;
        if (is_same(&entry, pair) && found->lines++ == wanted)
            found->port = (uint16_t)port;
    }
    return false;
}

static struct {
    struct lockstep_pair pair;
    uint32_t count;
} counted[MOST_PAIRS];
static size_t n_counted;
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

uint32_t lockstep_count_pair(const struct lockstep_pair *pair)
{
    size_t at = 0;
    pthread_mutex_lock(&counting);
    while (at < n_counted && !is_same(&counted[at].pair, pair))
        at++;
    if (at == n_counted && n_counted < MOST_PAIRS)
        counted[n_counted++].pair = *pair;
    uint32_t before = at < MOST_PAIRS ? counted[at].count++ : 0;
    pthread_mutex_unlock(&counting);
    return before;
}

/* Linux: port = (label's lower 14 bits ^ its upper 6) | 0xc000; a label of 0 means that the driver chooses. */
uint32_t lockstep_label_of(uint16_t port)
{
    uint32_t label = port & PORT_BITS;
    if (port < FIRST_PORT)
        return 0;
    return label ? label : (1u << 14 | 1);
}
