/* The plan of queue pairs (lockstep/host_paths.py describes its file), and which line is whose. */
#ifndef LOCKSTEP_QUEUE_PAIRS_H
#define LOCKSTEP_QUEUE_PAIRS_H

#include "shim.h"

struct lockstep_pair {
    struct in6_addr source, destination;
};

struct lockstep_lookup {
    uint64_t generation;
    uint32_t lines; /* of this pair of addresses */
    uint16_t port;  /* of the line that was asked for; 0: there is none */
};

/* Looks up line `wanted` of a pair of addresses, counted from 0; returns whether the file is a plan to its last byte. */
bool lockstep_look_up(int fd, const struct lockstep_pair *pair, uint32_t wanted, struct lockstep_lookup *found);

/* How many queue pairs between these addresses this process has asked for before; counts this one. */
uint32_t lockstep_count_pair(const struct lockstep_pair *pair);

/* The smallest flow label from which Linux derives this source port; 0 where there is none. */
uint32_t lockstep_label_of(uint16_t port);

#endif
