/* connect() as the program sees it: a TCP socket that is bound to no port yet, and whose destination the plan names,
 * is bound to a planned source port first. Whatever goes wrong on our side, the plain connect follows. */
#define _GNU_SOURCE
#include "attempt.h"

#include <dlfcn.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

static char plan_path[LOCKSTEP_PATH_BYTES] = LOCKSTEP_PLAN;
static char agent_path[LOCKSTEP_PATH_BYTES] = "/run/lockstep/paths/agent";
static char report_directory[LOCKSTEP_PATH_BYTES] = LOCKSTEP_REPORTS;
static _Atomic(lockstep_connect_fn *) real_connect;
static _Atomic uint64_t newest_generation;

/* The next connect() in line, which may be that of another preloaded library. */
static lockstep_connect_fn *find_connect(void)
{
    lockstep_connect_fn *found = atomic_load(&real_connect);
    if (found == NULL) {
        *(void **)&found = dlsym(RTLD_NEXT, "connect");
        atomic_store(&real_connect, found);
    }
    return found;
}

/* At load, not later: reading the environment races with a program that changes it. */
__attribute__((constructor)) static void read_settings(void)
{
    find_connect(); /* now, because a signal handler may be the first to connect */
    lockstep_read_setting("LOCKSTEP_PATHS_FILE", plan_path);
    lockstep_read_setting("LOCKSTEP_PATHS_AGENT", agent_path);
    lockstep_read_setting("LOCKSTEP_PATHS_REPORT_DIR", report_directory);
}

static bool read_end(const struct sockaddr *address, socklen_t length, struct lockstep_end *end)
{
    struct sockaddr_in old;
    struct sockaddr_in6 new;
    if (address == NULL || length < sizeof old)
        return false;
    memset(end, 0, sizeof *end);
    if (address->sa_family == AF_INET) {
        memcpy(&old, address, sizeof old);
        memset(&end->address.s6_addr[10], 0xff, 2);
        memcpy(&end->address.s6_addr[12], &old.sin_addr, sizeof old.sin_addr);
        end->port = ntohs(old.sin_port);
        return true;
    }
    if (address->sa_family != AF_INET6 || length < sizeof new)
        return false;
    memcpy(&new, address, sizeof new);
    end->address = new.sin6_addr;
    end->port = ntohs(new.sin6_port);
    return true;
}

static bool read_local(int fd, struct lockstep_end *local)
{
    struct sockaddr_storage bound;
    socklen_t length = sizeof bound;
    return getsockname(fd, (struct sockaddr *)&bound, &length) == 0 &&
           read_end((const struct sockaddr *)&bound, length, local);
}

/* A TCP socket before its first connect: the second call of a program that polls is no new connection. */
static bool is_fresh(int fd)
{
    int type = 0;
    struct tcp_info info = {0};
    socklen_t type_bytes = sizeof type, info_bytes = sizeof info;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_bytes) == 0 && type == SOCK_STREAM &&
           getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &info_bytes) == 0 && info.tcpi_state == TCP_CLOSE;
}

static const char *outcome_of(const struct attempt *attempt, bool was_bound)
{
    if (attempt->is_enforced)
        return "enforced";
    if (!attempt->is_named)
        return NULL;
    if (was_bound)
        return "bound";
    if (attempt->is_busy)
        return "busy";
    return attempt->is_silent ? "agent-silent" : attempt->is_refused ? "agent-refused" : NULL;
}

static void follow_plan(struct attempt *attempt, int plan)
{
    struct lockstep_header header = {0};
    bool was_bound = attempt->local.port != 0;
    if (!lockstep_scan_plan(plan, &header, lockstep_note_entry, attempt)) {
        attempt->outcome = "damaged";
        return;
    }
    bool is_named = attempt->is_named;
    attempt->generation = header.generation;
    attempt->is_named = false;
    if (lockstep_is_stale(&newest_generation, header.generation)) {
        attempt->outcome = is_named ? "stale" : NULL;
        return;
    }
    if (is_named) {
        lockstep_scan_plan(plan, &header, was_bound ? lockstep_compare_entry : lockstep_take_entry, attempt);
        attempt->outcome = outcome_of(attempt, was_bound);
    }
}

static void prepare(struct attempt *attempt, const struct sockaddr *address, socklen_t length)
{
    if (!read_end(address, length, &attempt->remote))
        return;
    attempt->family = address->sa_family;
    int plan = is_fresh(attempt->fd) && read_local(attempt->fd, &attempt->local) ? lockstep_open_plan(plan_path) : -1;
    if (plan < 0)
        return;
    follow_plan(attempt, plan);
    close(plan);
}

static void report(struct attempt *attempt)
{
    int kept = errno;
    read_local(attempt->fd, &attempt->local); /* now with the address of the NIC that the kernel chose */
    lockstep_report(report_directory, &attempt->local, &attempt->remote, attempt->generation, attempt->outcome);
    errno = kept;
}

/* Under another name in C, because some headers declare connect() with a type of their own. */
__attribute__((visibility("default"))) int lockstep_connect(int, const struct sockaddr *, socklen_t) __asm__("connect");

int lockstep_connect(int fd, const struct sockaddr *address, socklen_t length)
{
    int kept = errno;
    lockstep_connect_fn *next = find_connect();
    struct attempt attempt = {.fd = fd, .agent = agent_path, .connect_to = next};
    if (next == NULL) {
        errno = ENOSYS;
        return -1;
    }
    prepare(&attempt, address, length);
    errno = kept;
    int result = next(fd, address, length);
    if (attempt.outcome)
        report(&attempt);
    return result;
}
