/* The callbacks that NCCL calls and the tables by which it finds them; today they load, say so, and record nothing.
 *
 * Contexts and handles are plain numbers, never addresses: NCCL hands back stale and even foreign ones, and a number
 * can be compared with a limit before it is used.
 */
#define _POSIX_C_SOURCE 200809L

#include "abi.h"

#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

#ifndef LOCKSTEP_VERSION
#error "LOCKSTEP_VERSION is missing: build with the Makefile, which takes it from lockstep/__init__.py"
#endif

static const char greeting[] = "lockstep " LOCKSTEP_VERSION ": loaded, recording nothing";

static atomic_int greeted_pid; /* the process that has greeted; a forked child finds its parent's and greets again */
static atomic_uintptr_t communicators; /* how many were opened; the newest one's context */

static void greet_once(lockstep_log_fn *log)
{
    const int pid = (int)getpid();

    if (log != NULL && atomic_exchange(&greeted_pid, pid) != pid)
        log(LOCKSTEP_LOG_INFO, LOCKSTEP_LOG_PROFILE, __func__, __LINE__, "%s", greeting);
}

static int open_communicator(void **context, int *event_mask, lockstep_log_fn *log)
{
    if (context != NULL)
        *context = (void *)(atomic_fetch_add(&communicators, 1) + 1);
    if (event_mask != NULL)
        __atomic_store_n(event_mask, 0, __ATOMIC_RELAXED); /* NCCL's int, not ours to declare atomic */
    greet_once(log);
    return LOCKSTEP_SUCCESS;
}

static int init_v4(void **context, int *event_mask, const char *comm_name, uint64_t comm_id, int nnodes, int nranks,
                   int rank, lockstep_log_fn *log)
{
    (void)comm_name, (void)comm_id, (void)nnodes, (void)nranks, (void)rank;
    return open_communicator(context, event_mask, log);
}

static int init_v5(void **context, uint64_t comm_id, int *event_mask, const char *comm_name, int nnodes, int nranks,
                   int rank, lockstep_log_fn *log)
{
    (void)comm_id, (void)comm_name, (void)nnodes, (void)nranks, (void)rank;
    return open_communicator(context, event_mask, log);
}

static int start(void *context, void **handle, const void *descriptor)
{
    (void)context, (void)descriptor;
    if (handle != NULL)
        *handle = NULL;
    return LOCKSTEP_SUCCESS;
}

static int stop(void *handle)
{
    (void)handle;
    return LOCKSTEP_SUCCESS;
}

static int record(void *handle, int state, const void *arguments)
{
    (void)handle, (void)state, (void)arguments;
    return LOCKSTEP_SUCCESS;
}

static int finalize(void *context)
{
    (void)context;
    return LOCKSTEP_SUCCESS;
}

#define CALLBACKS .start = start, .stop = stop, .record = record, .finalize = finalize
#define EXPORTED __attribute__((visibility("default"))) struct lockstep_profiler

/* Not const, although we never write them: NCCL reaches them through pointers that allow it to. */
EXPORTED ncclProfiler_v4 = {.name = "lockstep", .init.v4 = init_v4, CALLBACKS};
EXPORTED ncclProfiler_v5 = {.name = "lockstep", .init.v5 = init_v5, CALLBACKS};
EXPORTED ncclProfiler_v6 = {.name = "lockstep", .init.v5 = init_v5, CALLBACKS};
EXPORTED ncclProfiler_v7 = {.name = "lockstep", .init.v5 = init_v5, CALLBACKS};
