/* NCCL's own log, as far as Lockstep reads it: devices, communicators, the device of every connection, and its end. The
 * words are those of 2.28 to 2.32. */
#define _GNU_SOURCE

#include "worker.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static FILE *log_file; /* NULL: nobody asked for it */
static char host_name[NAME_BYTES];

/* %h is the host's name up to its first dot, %p the process. */
static void expand(const char *pattern, char *name, size_t room)
{
    size_t used = 0;

    while (*pattern != '\0' && used + NAME_BYTES < room) {
        const char code = pattern[0] == '%' ? pattern[1] : '\0';

        if (code == 'h')
            used += (size_t)snprintf(name + used, room - used, "%s", host_name);
        else if (code == 'p')
            used += (size_t)snprintf(name + used, room - used, "%d", (int)getpid());
        else
            name[used++] = *pattern;
        pattern += code == 'h' || code == 'p' || code == '%' ? 2 : 1;
    }
    name[used] = '\0';
}

void open_log(void)
{
    const char *pattern = getenv("NCCL_DEBUG_FILE");
    char name[PATH_BYTES];

    if (pattern == NULL || pattern[0] == '\0')
        return;
    if (gethostname(host_name, sizeof host_name - 1) != 0)
        host_name[0] = '\0';
    host_name[strcspn(host_name, ".")] = '\0';
    expand(pattern, name, sizeof name);
    log_file = fopen(name, "w");
    if (log_file == NULL)
        fail(FAILED, "NCCL_DEBUG_FILE cannot be written: %s", name);
    setvbuf(log_file, NULL, _IOLBF, 0);
}

static void say(const char *level, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(const char *level, const char *format, ...)
{
    char sentence[PATH_BYTES * 2];
    const char *local = getenv("LOCAL_RANK");
    va_list arguments;

    if (log_file == NULL)
        return;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    fprintf(log_file, "%s:%d:%ld [%s] %s %s\n", host_name, (int)getpid(), syscall(SYS_gettid), local ? local : "0", level,
            sentence);
}

void log_network(void)
{
    char devices[PATH_BYTES] = "";
    size_t used = 0;

    for (int i = 0; i < job.nnics && used < sizeof devices; i++)
        used += (size_t)snprintf(devices + used, sizeof devices - used, " [%d]%s:%s<0>", i, job.nics[i].name,
                                 job.nics[i].address);
    say("NCCL INFO", "NCCL version %d.%d.%d+cuda13.0", nccl_release / 10000, nccl_release / 100 % 100, nccl_release % 100);
    say("NCCL INFO", "NET/Socket : Using%s", devices);
    say("NCCL INFO", "Using network Socket");
}

void log_comm(int comm, const char *what)
{
    const struct told_comm *told = &job.comms[comm];
    const char *local = getenv("LOCAL_RANK");

    say("NCCL INFO", "ncclCommInitRankConfig comm %p rank %d nranks %d cudaDev 0 nvmlDev %s busId 60 commId 0x%" PRIx64 " - %s",
        (const void *)told, told->rank, told->nranks, local ? local : "0", told->id, what);
}

static void log_connection(const struct connection *connection)
{
    const int own = job.comms[connection->comm].rank, peer = connection->peer;
    const int from = connection->sends ? own : peer, to = connection->sends ? peer : own;

    if (!connection->is_local)
        say("NCCL INFO", "Channel %02d/%d : %d[0] -> %d[0] [%s] via NET/Socket/%d", connection->channel,
            connection->is_p2p, from, to, connection->sends ? "send" : "receive", nic_of(connection->channel));
    else if (connection->sends)
        say("NCCL INFO", "Channel %02d/%d : %d[0] -> %d[0] via SHM/direct/direct", connection->channel, connection->is_p2p,
            from, to);
}

void log_connections(int comm)
{
    for (int i = 0; i < nconnections; i++)
        if (connections[i].comm == comm)
            log_connection(&connections[i]);
}

void log_closed(const struct connection *connection)
{
    const struct told_comm *comm = &job.comms[connection->comm];

    say("misc/socket.cc:915 NCCL WARN", "socketProgress: Connection closed by remote peer %s<0>",
        job.hosts[comm->world[connection->peer]]);
}
