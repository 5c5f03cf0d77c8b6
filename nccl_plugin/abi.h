/* What NCCL expects of a profiler plugin, as far as Lockstep uses it today: one table of five functions per version.
 *
 * Written from layout facts (order, width, numbers) with our own names; no NCCL header is needed to build.
 * NCCL looks for the newest table that it knows: v4 since 2.27.3, v5 since 2.28.3, v6 since 2.29.2, v7 since 2.31.2.
 *
 * Which thread calls what (several call at the same time, so every function must allow that):
 *   init, finalize           the application's thread, or a helper of NCCL's for grouped and non-blocking init;
 *                            finalize comes after the communicator's own threads ended, or never.
 *   start, stop and record   the application's threads, CUDA's host-callback thread, and NCCL's proxy, profiler and
 *                            socket threads. These move the data: whatever a callback costs there, training pays.
 * The log function may be called from any of them; we call it only inside init.
 */
#ifndef LOCKSTEP_ABI_H
#define LOCKSTEP_ABI_H

#include <stdint.h>

enum {
    LOCKSTEP_SUCCESS = 0, /* all we ever return: since 2.29 an error from init makes NCCL unload us once too often */
    LOCKSTEP_LOG_INFO = 3,
    LOCKSTEP_LOG_PROFILE = 0x4000, /* the subsystem that NCCL_DEBUG_SUBSYS=PROFILE shows */
    LOCKSTEP_RESERVED_MEMBERS = 8,
};

typedef void lockstep_log_fn(int level, unsigned long subsystem, const char *function, int line, const char *format,
                             ...) __attribute__((format(printf, 5, 6)));

/* One call per communicator. `event_mask` is the same process-wide int every time, and other threads read it
 * meanwhile. `context` comes back in start and finalize; from 2.28.3 on NCCL skips finalize when it is NULL.
 * `comm_name` may be NULL; `comm_id` is equal on all ranks. */
typedef int lockstep_init_v4_fn(void **context, int *event_mask, const char *comm_name, uint64_t comm_id, int nnodes,
                                int nranks, int rank, lockstep_log_fn *log);

/* v5 to v7: the same facts, the communicator's id moved forward. */
typedef int lockstep_init_v5_fn(void **context, uint64_t comm_id, int *event_mask, const char *comm_name, int nnodes,
                                int nranks, int rank, lockstep_log_fn *log);

/* `*handle` must be written on every call: NCCL reads it whatever we return. With PXN (a transfer through another
 * GPU's NIC) `context` may be a value from another process. */
typedef int lockstep_start_fn(void *context, void **handle, const void *descriptor);

/* NCCL may stop a handle more than once, and with an empty event mask too. */
typedef int lockstep_stop_fn(void *handle);

typedef int lockstep_record_fn(void *handle, int state, const void *arguments); /* `arguments` may be NULL */

typedef int lockstep_finalize_fn(void *context);

struct lockstep_profiler {
    const char *name;
    union {
        lockstep_init_v4_fn *v4;
        lockstep_init_v5_fn *v5;
    } init; /* the table's version says which */
    lockstep_start_fn *start;
    lockstep_stop_fn *stop;
    lockstep_record_fn *record;
    lockstep_finalize_fn *finalize;
    /* Stays NULL: a future NCCL that reads a longer table of the same version finds "not offered" here. */
    void *reserved[LOCKSTEP_RESERVED_MEMBERS];
};

#endif
