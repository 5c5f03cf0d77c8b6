/* Binds a socket to a planned port: which entries are for this connection, and which of their ports is free. */
#include "attempt.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static bool is_unspecified(const struct in6_addr *address)
{
    static const uint8_t v4_any[16] = {[10] = 0xff, [11] = 0xff};
    return IN6_IS_ADDR_UNSPECIFIED(address) || memcmp(address, v4_any, sizeof v4_any) == 0;
}

static bool is_for(const struct attempt *attempt, const struct lockstep_entry *entry)
{
    return memcmp(&entry->destination, &attempt->remote.address, sizeof entry->destination) == 0 &&
           (entry->dport == 0 || entry->dport == attempt->remote.port);
}

static int bind_to(const struct attempt *attempt, const struct in6_addr *source, uint16_t port)
{
    struct sockaddr_in6 new = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = *source};
    struct sockaddr_in old = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (attempt->family == AF_INET6)
        return bind(attempt->fd, (const struct sockaddr *)&new, sizeof new);
    memcpy(&old.sin_addr, &source->s6_addr[12], sizeof old.sin_addr); /* zeros of `::` are 0.0.0.0 */
    return bind(attempt->fd, (const struct sockaddr *)&old, sizeof old);
}

static int swap_option(int fd, int option, int value)
{
    int before = 0;
    socklen_t bytes = sizeof before;
    getsockopt(fd, SOL_SOCKET, option, &before, &bytes);
    if (before != value)
        setsockopt(fd, SOL_SOCKET, option, &value, sizeof value);
    return before;
}

/* Takes a port that nobody else has. Sharing one would let bind() succeed and connect() fail afterwards where the same
 * four numbers are in use or in TIME_WAIT, and a bound socket cannot go back to being unbound. */
static int bind_alone(const struct attempt *attempt, const struct in6_addr *source, uint16_t port)
{
    int reuse = swap_option(attempt->fd, SO_REUSEADDR, 0), share = swap_option(attempt->fd, SO_REUSEPORT, 0);
    int problem = bind_to(attempt, source, port) == 0 ? 0 : errno;
    swap_option(attempt->fd, SO_REUSEADDR, reuse);
    swap_option(attempt->fd, SO_REUSEPORT, share);
    return problem;
}

static bool take_port(struct attempt *attempt, const struct in6_addr *source, const uint16_t *ports, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int problem = bind_alone(attempt, source, ports[i]);
        if (problem == 0) {
            attempt->is_enforced = true;
            return true;
        }
        if (problem == EADDRNOTAVAIL) /* the entry is for another host that shares this file */
            return false;
        attempt->is_named = attempt->is_busy = true;
    }
    return false;
}

/* Whether an entry is for this host: hosts may share one file, and only one of them has the source address. */
static bool is_here(const struct lockstep_entry *entry)
{
    struct attempt test = {.family = IN6_IS_ADDR_V4MAPPED(&entry->source) ? AF_INET : AF_INET6};
    if (!entry->has_source)
        return true;
    test.fd = socket(test.family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (test.fd < 0)
        return false;
    bool is_ours = bind_to(&test, &entry->source, 0) == 0;
    close(test.fd);
    return is_ours;
}

static bool take_asked(struct attempt *attempt, const struct in6_addr *source, const struct lockstep_entry *entry)
{
    uint16_t ports[LOCKSTEP_PORTS];
    if (!is_here(entry))
        return false;
    int count = lockstep_ask_agent(attempt->agent, attempt->connect_to, entry, attempt->remote.port, ports);
    attempt->is_named = true;
    attempt->is_silent |= count < 0;
    attempt->is_refused |= count == 0;
    return count > 0 && take_port(attempt, source, ports, (size_t)count);
}

bool lockstep_take_entry(void *context, const struct lockstep_entry *entry)
{
    struct attempt *attempt = context;
    const struct in6_addr *source = entry->has_source ? &entry->source : &attempt->local.address;
    bool is_chosen = !is_unspecified(&attempt->local.address); /* by the program, which may leave only the port open */
    if (!is_for(attempt, entry))
        return false;
    if (attempt->family == AF_INET && !IN6_IS_ADDR_V4MAPPED(source))
        return false;
    if (is_chosen && memcmp(source, &attempt->local.address, sizeof *source) != 0)
        return false;
    if (entry->is_asked)
        return take_asked(attempt, source, entry);
    return take_port(attempt, source, entry->ports, entry->n_ports);
}

bool lockstep_compare_entry(void *context, const struct lockstep_entry *entry)
{
    struct attempt *attempt = context;
    if (!is_for(attempt, entry) || !is_here(entry))
        return false;
    attempt->is_named = true;
    for (size_t i = 0; i < entry->n_ports; i++)
        attempt->is_enforced |= entry->ports[i] == attempt->local.port;
    return attempt->is_enforced;
}

bool lockstep_note_entry(void *context, const struct lockstep_entry *entry)
{
    struct attempt *attempt = context;
    attempt->is_named |= is_for(attempt, entry);
    return false;
}
