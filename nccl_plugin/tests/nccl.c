/* NCCL's side of the calls: loads the plugin as NCCL does, writes descriptors as each version lays them out, logs. */
#define _POSIX_C_SOURCE 200809L

#include "harness.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *plugin_path;
int nccl_mask;
int nccl_release;
uint64_t now_ns;

/* Found by the plugin only in a driver whose symbols are exported, as NCCL's are. */
int ncclGetVersion(int *version);
int ncclGetVersion(int *version)
{
    if (nccl_release <= 0)
        return 5; /* as NCCL answers when it does not know what to say */
    *version = nccl_release;
    return 0;
}

/* --- what NCCL prints --- */

enum { LOG_BYTES = 8192 };
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[LOG_BYTES];
static int logged_lines;

void nccl_log(int level, unsigned long subsystem, const char *function, int line, const char *format, ...)
{
    va_list arguments;

    pthread_mutex_lock(&log_lock);
    const size_t used = strlen(log_text);
    va_start(arguments, format);
    vsnprintf(log_text + used, sizeof log_text - used, format, arguments);
    va_end(arguments);
    logged_lines++;
    CHECK(strchr(log_text + used, '\n') == NULL); /* NCCL ends the line itself */
    strncat(log_text, "\n", sizeof log_text - strlen(log_text) - 1);
    pthread_mutex_unlock(&log_lock);
    EQUAL(level, LOCKSTEP_LOG_INFO);
    EQUAL(subsystem, LOCKSTEP_LOG_PROFILE);
    CHECK(function != NULL && line > 0);
}

int log_lines(void)
{
    pthread_mutex_lock(&log_lock);
    const int lines = logged_lines;
    pthread_mutex_unlock(&log_lock);
    return lines;
}

bool is_logged(const char *part)
{
    pthread_mutex_lock(&log_lock);
    const bool found = strstr(log_text, part) != NULL;
    pthread_mutex_unlock(&log_lock);
    return found;
}

/* --- loading --- */

const struct lockstep_profiler *find_table(void *library, int version)
{
    char symbol[32];

    snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
    return dlsym(library, symbol);
}

int usual_release(int version)
{
    static const int releases[] = {0, 22304, 22403, 22602, 22707, 22809, 23007, 23203};

    return releases[version];
}

struct nccl load_plugin(int newest_version)
{
    struct nccl nccl = {.library = dlopen(plugin_path, RTLD_NOW | RTLD_LOCAL), .version = newest_version};

    if (nccl.library == NULL)
        printf("    %s\n", dlerror());
    CHECK(nccl.library != NULL);
    if (nccl_release == 0)
        nccl_release = usual_release(newest_version);
    while ((nccl.table = find_table(nccl.library, nccl.version)) == NULL && nccl.version > OLDEST_VERSION)
        nccl.version--;
    CHECK(nccl.table != NULL);
    return nccl;
}

void use_replay_clock(const struct nccl *nccl)
{
    void (*replay_clock)(const uint64_t *, uint64_t) = NULL;

    *(void **)&replay_clock = dlsym(nccl->library, "lockstep_replay_clock");
    CHECK(replay_clock != NULL);
    replay_clock(&now_ns, UNIX_AT_ZERO_NS);
}

static int call_init(const struct comm *comm, void **context)
{
    const struct lockstep_profiler *table = comm->nccl->table;
    const int version = comm->nccl->version;

    if (version < 4)
        return table->init.v1(context, &nccl_mask);
    if (version == 4)
        return table->init.v4(context, &nccl_mask, "world", comm->id, 2, comm->nranks, comm->rank, nccl_log);
    return table->init.v5(context, comm->id, &nccl_mask, "world", 2, comm->nranks, comm->rank, nccl_log);
}

struct comm open_comm(const struct nccl *nccl, uint64_t id, int rank, int nranks)
{
    struct comm comm = {.nccl = nccl, .id = id, .rank = rank, .nranks = nranks};

    EQUAL(call_init(&comm, &comm.context), LOCKSTEP_SUCCESS);
    return comm;
}

void close_comm(const struct comm *comm)
{
    EQUAL(comm->nccl->table->finalize(comm->context), LOCKSTEP_SUCCESS);
}

/* --- callbacks --- */

void *start(const struct comm *comm, const struct event *event)
{
    static char garbage; /* its address is what an unwritten handle would leave behind */
    const int version = comm->nccl->version;
    void *handle = &garbage;
    unsigned char *descriptor = malloc(descriptor_bytes(version)); /* not a byte more, so that a sanitizer sees it read */

    CHECK(descriptor != NULL);
    write_descriptor(version, descriptor, comm, event);
    EQUAL(comm->nccl->table->start(comm->context, &handle, descriptor), LOCKSTEP_SUCCESS);
    CHECK(handle != &garbage);
    free(descriptor);
    return handle;
}

void stop(const struct comm *comm, void *handle)
{
    EQUAL(comm->nccl->table->stop(handle), LOCKSTEP_SUCCESS);
}

void record(const struct comm *comm, void *handle, int state, uint64_t value)
{
    const size_t bytes = comm->nccl->version < 4 ? 16 : 8;
    unsigned char *arguments = malloc(bytes);

    CHECK(arguments != NULL);
    memset(arguments, 0xa5, bytes);
    memcpy(arguments, &value, sizeof value);
    EQUAL(comm->nccl->table->record(handle, state, arguments), LOCKSTEP_SUCCESS);
    free(arguments);
}

bool is_asked_for(unsigned types)
{
    return ((unsigned)__atomic_load_n(&nccl_mask, __ATOMIC_RELAXED) & types) != 0;
}
