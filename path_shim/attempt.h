/* One connect() to a destination that may be planned, and the visits to the plan's entries that give it its port. */
#ifndef LOCKSTEP_ATTEMPT_H
#define LOCKSTEP_ATTEMPT_H

#include "shim.h"

struct attempt {
    int fd;
    sa_family_t family;
    const char *agent;
    lockstep_connect_fn *connect_to; /* the plain one */
    struct lockstep_end remote, local;
    uint64_t generation;
    bool is_named, is_busy, is_refused, is_silent, is_enforced;
    const char *outcome; /* NULL: no word about it */
};

/* A visit: whether this entry gave the socket its port. */
bool lockstep_take_entry(void *attempt, const struct lockstep_entry *entry);
/* A visit: whether the port that the socket has already, from the program or an earlier try, is a planned one. */
bool lockstep_compare_entry(void *attempt, const struct lockstep_entry *entry);
/* A visit: notes whether anybody plans this destination; never has enough, so that all of the file is read. */
bool lockstep_note_entry(void *attempt, const struct lockstep_entry *entry);

#endif
