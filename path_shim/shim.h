/* What the files of the path shim share. Everything here may be called by any thread, also after fork and in a signal
 * handler: nothing allocates, nothing is locked, and no descriptor stays open between two calls. */
#ifndef LOCKSTEP_SHIM_H
#define LOCKSTEP_SHIM_H

#include <netinet/in.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum {
    LOCKSTEP_FILE_BYTES = 1 << 20,  /* of a plan: ten thousand entries of the usual length */
    LOCKSTEP_LINE_BYTES = 1024,     /* two IPv6 addresses and LOCKSTEP_PORTS ports fit */
    LOCKSTEP_PORTS = 128,           /* of one entry */
    LOCKSTEP_PATH_BYTES = 512,      /* of a file's name */
    LOCKSTEP_REPORT_BYTES = 1 << 20 /* of a process's report, some ten thousand lines */
};

typedef int lockstep_connect_fn(int, const struct sockaddr *, socklen_t);

#define LOCKSTEP_PLAN "/run/lockstep/paths/plan"
#define LOCKSTEP_REPORTS "/run/lockstep/paths/reports"

/* --- settings.c --- */

/* Takes the value of a variable of the environment, if there is one; only while the library is loaded. */
void lockstep_read_setting(const char *name, char value[LOCKSTEP_PATH_BYTES]);
/* A process never goes back to an older plan: whoever writes one has lost its right to. */
bool lockstep_is_stale(_Atomic uint64_t *newest, uint64_t generation);

/* --- words.c --- */

/* Reads a whole text as a decimal number without sign or leading zeros, at most `most`. */
bool lockstep_read_number(const char *text, uint64_t most, uint64_t *value);
/* Reads `4000,4001`; returns how many there are, 0 when it is no list of ports. Cuts the text up. */
size_t lockstep_read_ports(char *text, uint16_t ports[LOCKSTEP_PORTS]);
/* Reads an address; IPv4 becomes IPv4-mapped IPv6. */
bool lockstep_read_address(const char *text, struct in6_addr *address);
/* Append to a line of `size` bytes at `at`; return the new end, which never passes size. */
size_t lockstep_put(char *line, size_t size, size_t at, const char *text);
size_t lockstep_put_number(char *line, size_t size, size_t at, uint64_t number);
size_t lockstep_put_address(char *line, size_t size, size_t at, const struct in6_addr *address);

/* --- plan.c --- */

struct lockstep_entry {
    const char *source_text, *destination_text; /* valid while the entry is visited */
    struct in6_addr source, destination;
    bool has_source; /* false: `*`, whatever address the kernel chooses */
    bool is_asked;   /* `?`: the agent knows the ports */
    uint16_t dport;  /* 0: `*`, any */
    size_t n_ports;
    uint16_t ports[LOCKSTEP_PORTS];
};

struct lockstep_header {
    uint64_t generation, lease_end_s;
};

/* Returns whether it has seen enough. */
typedef bool lockstep_visit_fn(void *context, const struct lockstep_entry *entry);

/* Returns a descriptor of a plan, or -1 where there is none that may be read. Never waits for a FIFO's writer. */
int lockstep_open_plan(const char *path);
/* Reads the file from its start and visits its entries; returns whether all that was read is as host_paths.py says. */
bool lockstep_scan_plan(int fd, struct lockstep_header *header, lockstep_visit_fn *visit, void *context);

/* --- agent.c --- */

/* Asks the local agent for source ports; returns how many it named: 0 when it knows none, -1 when it did not answer. */
int lockstep_ask_agent(const char *agent, lockstep_connect_fn *connect_to, const struct lockstep_entry *entry,
                       uint16_t dport, uint16_t ports[LOCKSTEP_PORTS]);

/* --- report.c --- */

struct lockstep_end {
    struct in6_addr address;
    uint16_t port;
};

/* Writes one line about a connection that the plan names. */
void lockstep_report(const char *directory, const struct lockstep_end *local, const struct lockstep_end *remote,
                     uint64_t generation, const char *outcome);

#endif
