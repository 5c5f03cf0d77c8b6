/* Asks the agent of this host over a unix socket, within half a second in all, and not again soon when it is silent. */
#include "shim.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
    LIMIT_MS = 500,       /* an agent that must probe takes 2 to 80 ms; a rank that connects waits for peers anyway */
    PAUSE_MS = 10 * 1000, /* so a dead agent costs a process at most one twentieth of its time while it connects */
};

static _Atomic int64_t silent_until_ms;

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* An agent `@name` has an abstract address, of which every network namespace has its own. */
static socklen_t address_of(const char *agent, struct sockaddr_un *address)
{
    size_t length = strlen(agent);
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    if (length == 0 || length >= sizeof address->sun_path)
        return 0;
    memcpy(address->sun_path, agent, length);
    if (agent[0] != '@')
        return sizeof *address;
    address->sun_path[0] = '\0';
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
}

static bool wait_for(int fd, int64_t deadline_ms)
{
    struct pollfd waiting = {.fd = fd, .events = POLLIN};
    for (int64_t left = deadline_ms - now_ms(); left > 0; left = deadline_ms - now_ms()) {
        int ready = poll(&waiting, 1, (int)left);
        if (ready > 0)
            return true;
        if (ready < 0 && errno != EINTR) /* a signal of the job's does not lengthen our wait */
            return false;
    }
    return false;
}

static bool send_question(int fd, const struct lockstep_entry *entry, uint16_t dport)
{
    char line[LOCKSTEP_LINE_BYTES];
    size_t at = lockstep_put(line, sizeof line, 0, "1 ");
    at = lockstep_put(line, sizeof line, at, entry->source_text);
    at = lockstep_put(line, sizeof line, at, " ");
    at = lockstep_put(line, sizeof line, at, entry->destination_text);
    at = lockstep_put(line, sizeof line, at, " ");
    at = lockstep_put_number(line, sizeof line, at, dport);
    return send(fd, line, at, MSG_NOSIGNAL) == (ssize_t)at;
}

static int read_answer(int fd, uint16_t ports[LOCKSTEP_PORTS])
{
    char answer[LOCKSTEP_LINE_BYTES];
    ssize_t got = recv(fd, answer, sizeof answer - 1, 0);
    if (got <= 0)
        return -1;
    answer[got] = '\0';
    return (int)lockstep_read_ports(answer, ports);
}

static int ask(const char *agent, lockstep_connect_fn *connect_to, const struct lockstep_entry *entry, uint16_t dport,
               uint16_t ports[LOCKSTEP_PORTS])
{
    struct sockaddr_un address;
    socklen_t length = address_of(agent, &address);
    int64_t deadline_ms = now_ms() + LIMIT_MS;
    int count = -1, fd = length ? socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0) : -1;
    if (fd < 0)
        return -1;
    if (connect_to(fd, (const struct sockaddr *)&address, length) == 0 && send_question(fd, entry, dport) &&
        wait_for(fd, deadline_ms))
        count = read_answer(fd, ports);
    close(fd);
    return count;
}

int lockstep_ask_agent(const char *agent, lockstep_connect_fn *connect_to, const struct lockstep_entry *entry,
                       uint16_t dport, uint16_t ports[LOCKSTEP_PORTS])
{
    if (now_ms() < atomic_load(&silent_until_ms))
        return -1;
    int count = ask(agent, connect_to, entry, dport, ports);
    if (count < 0)
        atomic_store(&silent_until_ms, now_ms() + PAUSE_MS);
    return count;
}
