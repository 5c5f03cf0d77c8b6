/* The job file of a rank: one fact a line, written by tests.testbed.workers.plan. */
#define _POSIX_C_SOURCE 200809L

#include "worker.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct job job = {.rank = -1};

void fail(int code, const char *format, ...)
{
    va_list arguments;

    fprintf(stderr, "rank %d: ", job.rank);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    fflush(stdout); /* not all: the control thread holds its own while it waits for a line */
    fflush(stderr);
    _Exit(code);
}

/* NCCL hands over names that outlive the call. */
static const char *known_name(const char *name, const char *const *names)
{
    for (; *names != NULL; names++)
        if (strcmp(name, *names) == 0)
            return *names;
    return NULL;
}

static const char *const FUNCS[] = {"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Send", "Recv", NULL};
static const char *const ALGOS[] = {"RING", "TREE", NULL};

bool is_send_or_recv(const struct told_item *item)
{
    return item->peer >= 0;
}

static void *grown(void *array, int count, size_t bytes)
{
    void *more = realloc(array, (size_t)(count + 1) * bytes);

    if (more == NULL)
        fail(FAILED, "no memory for the job");
    memset((char *)more + (size_t)count * bytes, 0, bytes);
    return more;
}

static struct told_item *new_item(void)
{
    struct told_mix *mix = &job.mixes[job.nmixes > 0 ? job.nmixes - 1 : 0];

    job.nmixes += job.nmixes == 0;
    mix->items = grown(mix->items, mix->nitems, sizeof *mix->items);
    return &mix->items[mix->nitems++];
}

/* --- one reader per word; each returns whether the line was understood --- */

static bool read_rank(const char *rest)
{
    if (sscanf(rest, "%d %d", &job.rank, &job.nranks) != 2 || job.rank < 0 || job.rank >= job.nranks)
        return false;
    job.hosts = calloc((size_t)job.nranks, sizeof *job.hosts);
    return job.hosts != NULL;
}

static bool read_host(const char *rest)
{
    int of;
    char name[NAME_BYTES];

    if (sscanf(rest, "%d %63s", &of, name) != 2 || of < 0 || of >= job.nranks)
        return false;
    memcpy(job.hosts[of], name, sizeof name);
    return true;
}

static bool read_nic(const char *rest)
{
    struct told_nic *nic = &job.nics[job.nnics];

    return job.nnics < MOST_NICS && sscanf(rest, "%63s %63s", nic->name, nic->address) == 2 && ++job.nnics;
}

static int count_hosts(const struct told_comm *comm)
{
    int hosts = 0;

    for (int i = 0; i < comm->nranks; i++) {
        int before = 0;
        while (before < i && strcmp(job.hosts[comm->world[before]], job.hosts[comm->world[i]]) != 0)
            before++;
        hosts += before == i;
    }
    return hosts;
}

static bool read_comm(const char *rest)
{
    struct told_comm *comm = &job.comms[job.ncomms];
    int used = 0;

    if (job.ncomms == MOST_COMMS || sscanf(rest, "%" SCNx64 " %63s%n", &comm->id, comm->name, &used) != 2)
        return false;
    comm->rank = -1;
    for (int world; sscanf(rest += used, "%d%n", &world, &used) == 1; comm->nranks++) {
        comm->world = grown(comm->world, comm->nranks, sizeof *comm->world);
        comm->world[comm->nranks] = world;
        if (world < 0 || world >= job.nranks)
            return false;
        if (world == job.rank)
            comm->rank = comm->nranks;
    }
    job.ncomms++;
    comm->nnodes = comm->nranks > 0 ? count_hosts(comm) : 0;
    return comm->rank >= 0;
}

static bool read_compute(const char *rest)
{
    struct told_item *item = new_item();
    char how[NAME_BYTES];

    *item = (struct told_item){.is_compute = true};
    const bool understood = sscanf(rest, "%lf %lf %63s", &item->ms, &item->noise, how) == 3;
    item->spins = understood && strcmp(how, "spin") == 0;
    return understood && item->ms >= 0 && (item->spins || strcmp(how, "sleep") == 0);
}

static bool is_possible(const struct told_item *item)
{
    const bool p2p = item->func != NULL && (strcmp(item->func, "Send") == 0 || strcmp(item->func, "Recv") == 0);

    return item->func != NULL && item->algo != NULL && item->comm >= 0 && item->comm < job.ncomms && item->channels > 0
           && item->channels <= MOST_CHANNELS && item->bytes > 0 && p2p == (item->peer >= 0)
           && item->peer < job.comms[item->comm].nranks && item->peer != job.comms[item->comm].rank;
}

static bool read_op(const char *rest)
{
    struct told_item *item = new_item();
    char func[NAME_BYTES], algo[NAME_BYTES];

    if (sscanf(rest, "%d %63s %63s %" SCNu64 " %d %d", &item->comm, func, algo, &item->bytes, &item->channels, &item->peer)
        != 6)
        return false;
    item->func = known_name(func, FUNCS);
    item->algo = known_name(algo, ALGOS);
    return is_possible(item);
}

static bool read_with(const char *rest)
{
    const struct told_mix *mix = &job.mixes[job.nmixes > 0 ? job.nmixes - 1 : 0];

    if (mix->nitems == 0 || mix->items[mix->nitems - 1].is_compute || !read_op(rest))
        return false;
    mix->items[mix->nitems - 1].joined = true;
    return true;
}

static bool read_second(const char *rest)
{
    (void)rest;
    return job.nmixes == 1 && ++job.nmixes;
}

static bool read_port(const char *rest)
{
    job.ports = grown(job.ports, job.nports, sizeof *job.ports);
    struct told_port *port = &job.ports[job.nports++];

    return sscanf(rest, "%d %d %d %d", &port->comm, &port->channel, &port->peer, &port->port) == 4;
}

static bool read_sizes(const char *rest)
{
    return sscanf(rest, "%zu %d", &job.chunk_bytes, &job.buffer_bytes) == 2 && job.chunk_bytes > 0 && job.buffer_bytes > 0;
}

static bool read_steps(const char *rest)
{
    return sscanf(rest, "%" SCNu64 " %" SCNu64, &job.steps, &job.seed) == 2;
}

static const struct reader {
    const char *word;
    bool (*read)(const char *rest);
} READERS[] = {
    {"rank", read_rank},       /* RANK OF_SO_MANY: first, since others need it */
    {"host", read_host},       /* RANK NAME */
    {"nic", read_nic},         /* NAME ADDRESS, in the order of NCCL's devices */
    {"sizes", read_sizes},     /* CHUNK_BYTES BUFFER_BYTES */
    {"steps", read_steps},     /* HOW_MANY SEED */
    {"comm", read_comm},       /* ID_IN_HEX NAME RANK... */
    {"port", read_port},       /* COMM CHANNEL PEER SOURCE_PORT */
    {"compute", read_compute}, /* MS NOISE sleep|spin */
    {"op", read_op},           /* COMM FUNC ALGO BYTES CHANNELS PEER|-1 */
    {"with", read_with},       /* the same, in one group with the operation before */
    {"second", read_second},   /* what follows is what a step is after a change */
};

static bool read_fact(const char *line)
{
    char word[NAME_BYTES];
    int used = 0;

    if (sscanf(line, "%63s%n", word, &used) != 1 || word[0] == '#')
        return true;
    for (size_t i = 0; i < sizeof READERS / sizeof *READERS; i++)
        if (strcmp(READERS[i].word, word) == 0)
            return (job.nranks > 0 || i == 0) && READERS[i].read(line + used);
    return false;
}

void read_job(const char *path)
{
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t room = 0;

    if (file == NULL)
        fail(BAD_USAGE, "%s cannot be opened", path);
    for (int number = 1; getline(&line, &room, file) > 0; number++)
        if (!read_fact(line))
            fail(BAD_USAGE, "%s, line %d is not understood: %s", path, number, line);
    if (job.nranks == 0 || job.nnics == 0 || job.chunk_bytes == 0 || job.mixes[0].nitems == 0)
        fail(BAD_USAGE, "%s lacks rank, nic, sizes, or what a step is", path);
    free(line);
    fclose(file);
}
