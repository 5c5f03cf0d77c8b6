/* What NCCL expects of a profiler plugin: one table of five functions per version, and what it hands over in them.
 *
 * Written from layout facts (order, width, numbers) with our own names; no NCCL header is needed to build.
 * importers/traces/nccl_releases holds the layouts read out of NVIDIA's binaries; the tests compare every field with them.
 * NCCL looks for the newest table that it knows: v1 since 2.23.4, v2 since 2.24.3, v3 since 2.26.2, v4 since 2.27.3,
 * v5 since 2.28.3, v6 since 2.29.2, v7 since 2.31.2.
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

#include "descriptors.h"

#include <stdint.h>

enum {
    LOCKSTEP_SUCCESS = 0, /* all we ever return: since 2.29 an error from init makes NCCL unload us once too often */
    LOCKSTEP_LOG_INFO = 3,
    LOCKSTEP_LOG_PROFILE = 0x4000, /* the subsystem that NCCL_DEBUG_SUBSYS=PROFILE shows */
    LOCKSTEP_RESERVED_MEMBERS = 8,
};

typedef void lockstep_log_fn(int level, unsigned long subsystem, const char *function, int line, const char *format,
                             ...) __attribute__((format(printf, 5, 6)));

/* v1 to v3: not even told which communicator. */
typedef int lockstep_init_v1_fn(void **context, int *event_mask);

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
        lockstep_init_v1_fn *v1;
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

/* Event kinds: the descriptor's `type`, and the bits of the event mask. Asking for a child brings its ancestors too. */
enum {
    ABI_GROUP = 0x1,
    ABI_COLL = 0x2, /* stops when it is enqueued, not when it is done */
    ABI_P2P = 0x4,
    ABI_PROXY_OP = 0x8,
    ABI_PROXY_STEP = 0x10,
    ABI_PROXY_CTRL = 0x20,
    ABI_KERNEL_CHANNEL = 0x40, /* v3 on */
    ABI_NET_PLUGIN = 0x80,
    ABI_GROUP_API = 0x100, /* v5 on */
    ABI_COLL_API = 0x200,
    ABI_P2P_API = 0x400,
    ABI_KERNEL_LAUNCH = 0x800,
    ABI_CE_COLL = 0x1000, /* v6 on: copy engines */
    ABI_CE_SYNC = 0x2000,
    ABI_CE_BATCH = 0x4000,
    ABI_KERNEL_PHASE = 0x8000, /* v7; brings the kernel channels too */
};

/* What `record` reports, always on entry into the state. */
enum {
    ABI_OP_SEND_POSTED = 0, /* 0 to 7: proxy operations, not sent any more since 2.27 */
    ABI_OP_SEND_FIFO_WAIT = 1,
    ABI_OP_SEND_TRANSMITTED = 2,
    ABI_OP_SEND_DONE = 3,
    ABI_OP_RECV_POSTED = 4,
    ABI_OP_RECV_RECEIVED = 5,
    ABI_OP_RECV_TRANSMITTED = 6,
    ABI_OP_RECV_DONE = 7,
    ABI_SEND_GPU_WAIT = 8, /* proxy steps: what the transfer waits for from now on */
    ABI_SEND_WAIT = 9,
    ABI_RECV_WAIT = 10,
    ABI_RECV_FLUSH_WAIT = 11,
    ABI_RECV_GPU_WAIT = 12,
    ABI_CTRL_IDLE = 13, /* the proxy thread itself */
    ABI_CTRL_ACTIVE = 14,
    ABI_CTRL_SLEEP = 15,
    ABI_CTRL_WAKEUP = 16,
    ABI_CTRL_APPEND = 17,
    ABI_CTRL_APPEND_END = 18,
    ABI_OP_IN_PROGRESS = 19, /* v4 on */
    ABI_SEND_PEER_WAIT = 20, /* v4 on; repeats on every retry */
    ABI_NET_PLUGIN_UPDATE = 21,
    ABI_KERNEL_STOP = 22,
    ABI_GROUP_START_STOP = 23, /* v5 on */
    ABI_GROUP_END_START = 24,
    ABI_CE_COLL_START = 25, /* 25 to 30: declared since v6, not sent by any release we know */
    ABI_CE_COLL_COMPLETE = 26,
    ABI_CE_SYNC_START = 27,
    ABI_CE_SYNC_COMPLETE = 28,
    ABI_CE_BATCH_START = 29,
    ABI_CE_BATCH_COMPLETE = 30,
    ABI_PHASE_STOP = 31, /* v7 */
};

#endif
