/* The callbacks that NCCL calls and the tables by which it finds them.
 *
 * Contexts and handles are plain numbers, never addresses: NCCL hands back stale and even foreign ones, and a number
 * can be compared with a limit before it is used. Whatever happens, NCCL is told success.
 */
#include "trace.h"

#ifndef LOCKSTEP_VERSION
#error "LOCKSTEP_VERSION is missing: build with the Makefile, which takes it from lockstep/__init__.py"
#endif

static int open_communicator(void **context, int *mask, uint32_t api_version, const struct communicator *communicator,
                             const void *caller, lockstep_log_fn *log)
{
    session_lock();
    session_open(api_version, mask, caller, log);
    /* Never NULL: NCCL would not call finalize. */
    if (context != NULL)
        *context = session.state == SESSION_READY ? comm_open(communicator) : (void *)UINT64_C(0xFFFF);
    session_unlock();
    return LOCKSTEP_SUCCESS;
}

static int finalize(void *context)
{
    session_lock();
    if (session.state == SESSION_READY)
        comm_close(context);
    session_unlock();
    return LOCKSTEP_SUCCESS;
}

/* NCCL 2.26 to 2.30 lose count of a communicator's kernels when a rank sends to itself. */
static void distrust_after_self_send(uint32_t comm, int32_t peer)
{
    if (session.kernel_channels && comm != WIRE_NO_COMM && session.header->nccl_version < 23100
        && peer == (int32_t)LOAD(session.comms[comm].rank))
        STORE(session.comms[comm].kernel_untrusted, 1);
}

static bool has_root(uint8_t func)
{
    return func == WIRE_BROADCAST || func == WIRE_REDUCE || func == WIRE_GATHER || func == WIRE_SCATTER;
}

static uint64_t start_operation(struct producer *producer, uint64_t now, uint32_t comm, const struct event *event)
{
    const bool p2p = event->type == ABI_P2P;
    const struct operation operation = {
        .comm = comm,
        .func = event->func,
        .dtype = event->dtype,
        .algo = event->algo,
        .proto = event->proto,
        .channels = event->channels,
        .captured = handle_is_ours(event->parent) && (event->parent >> WIRE_CAPTURED_SHIFT & 1),
        .peer = p2p ? event->peer : -1,
        .root = has_root(event->func) ? event->root : -1,
        .seq = event->seq,
        .count = event->count,
    };

    if (UNLIKELY(LOAD(session.request->stamp) != LOAD(session.status->stamp)))
        session_obey_request();
    if (UNLIKELY(now > LOAD(session.refresh_ticks)))
        session_refresh(now);
    if (UNLIKELY(LOAD(session.level) == WIRE_OFF))
        return 0;
    if (event->comm_id != 0)
        comm_learn(comm, event->comm_id, (uint32_t)event->rank);
    if (p2p)
        distrust_after_self_send(comm, event->peer);
    return operation_begin(producer, now, &operation);
}

static uint64_t start_transfer(struct producer *producer, uint64_t now, uint32_t comm, const struct event *event)
{
    const struct proxy_operation proxy = {
        .parent = event->parent,
        .comm = comm,
        .pid = (uint32_t)event->pid,
        .peer = event->peer,
        .steps = event->steps > 0 ? (uint32_t)event->steps : 0,
        .channel = event->channel,
        .send = event->send != 0,
    };

    return transfer_begin(producer, now, &proxy);
}

static uint64_t start_kernel(struct producer *producer, uint64_t now, uint32_t comm, const struct event *event)
{
    const struct kernel_channel kernel = {
        .parent = event->parent, .comm = comm, .channel = event->channel, .gpu_ns = event->value};

    return kernel_begin(producer, now, &kernel);
}

/* A call of the application matters only when it is captured in a CUDA graph: its operations find that in `parent`. */
static uint64_t start_call(const struct event *event)
{
    const uint64_t number = ADD(session.api_handles, 1) + 1;
    const uint64_t handle = handle_of(WIRE_HANDLE_API, number >> 16, number & 0xFFFF);

    return handle | (uint64_t)(event->captured != 0) << WIRE_CAPTURED_SHIFT;
}

/* Up to NCCL 2.27 operations are reported only where their group got a handle. */
static bool is_gate(const struct event *event) { return event->type == ABI_GROUP && session.api_version < 5; }

static uint64_t start_event(struct producer *producer, uint64_t now, uint32_t comm, const struct event *event)
{
    const bool tracing = LOAD(session.level) == WIRE_TRACE;

    switch (event->type) {
    case ABI_COLL:
    case ABI_P2P: return start_operation(producer, now, comm, event);
    case ABI_PROXY_OP: return start_transfer(producer, now, comm, event);
    case ABI_PROXY_STEP: return step_begin(now, event->parent, (int32_t)event->value);
    case ABI_KERNEL_CHANNEL: return start_kernel(producer, now, comm, event);
    case ABI_COLL_API:
    case ABI_P2P_API: return event->captured || tracing ? start_call(event) : 0;
    case ABI_GROUP: return tracing || is_gate(event) ? start_call(event) : 0;
    case ABI_GROUP_API:
    case ABI_KERNEL_LAUNCH: return tracing ? start_call(event) : 0;
    default: return 0;
    }
}

/* Steps of operations that are not sampled, and calls that nobody asked about, are most of what comes: no clock. */
static bool is_of_no_interest(const struct event *event)
{
    if (LOAD(session.level) == WIRE_TRACE)
        return false;
    if (event->type == ABI_PROXY_STEP)
        return !handle_is_sampled(event->parent);
    if (event->type == ABI_COLL_API || event->type == ABI_P2P_API)
        return !event->captured;
    if (event->type == ABI_GROUP)
        return !is_gate(event);
    return event->type == ABI_GROUP_API || event->type == ABI_KERNEL_LAUNCH;
}

static void start(void *context, void **handle, const struct event *event)
{
    struct producer *producer = producer_enter();
    uint32_t comm;
    uint64_t now, number;

    if (producer == NULL)
        return;
    if (is_of_no_interest(event)) {
        producer_pass(producer);
        return;
    }
    now = clock_ticks();
    comm = comm_of(context);
    number = start_event(producer, now, comm, event);
    if (UNLIKELY(LOAD(session.level) == WIRE_TRACE))
        trace_start(producer, now, event, comm, number);
    *handle = (void *)number;
    producer_leave(producer, now);
}

static int stop(void *handle)
{
    const uint64_t number = (uint64_t)(uintptr_t)handle;
    struct producer *producer = producer_enter();
    const bool tracing = producer != NULL && UNLIKELY(LOAD(session.level) == WIRE_TRACE);
    const uint32_t kind = handle_kind(number);
    uint64_t now;

    if (producer == NULL || ((kind == WIRE_HANDLE_OPERATION || kind == WIRE_HANDLE_API) && !tracing))
        return LOCKSTEP_SUCCESS; /* an operation that stops is enqueued, not done */
    now = clock_ticks();
    if (kind == WIRE_HANDLE_TRANSFER)
        transfer_end(producer, now, number);
    else if (kind == WIRE_HANDLE_STEP)
        step_end(producer, now, number);
    else if (kind == WIRE_HANDLE_KERNEL)
        kernel_end(producer, now, number);
    if (tracing)
        trace_stop(producer, now, number);
    producer_leave(producer, now);
    return LOCKSTEP_SUCCESS;
}

static int record(void *handle, int state, const void *arguments)
{
    const uint64_t number = (uint64_t)(uintptr_t)handle;
    const union abi_state_arguments *given = arguments;
    struct producer *producer = producer_enter();
    const bool tracing = producer != NULL && UNLIKELY(LOAD(session.level) == WIRE_TRACE);
    const uint32_t kind = handle_kind(number);
    const bool sized = given != NULL && state != ABI_OP_IN_PROGRESS && kind != WIRE_HANDLE_API;
    uint64_t now;

    if (producer == NULL || (kind != WIRE_HANDLE_STEP && kind != WIRE_HANDLE_KERNEL && !tracing))
        return LOCKSTEP_SUCCESS;
    now = clock_ticks();
    if (kind == WIRE_HANDLE_STEP)
        step_enters(now, number, state, sized ? given->bytes : 0);
    else if (kind == WIRE_HANDLE_KERNEL && state == ABI_KERNEL_STOP)
        kernel_stops(number, sized ? given->gpu_ns : 0);
    if (tracing)
        trace_state(producer, now, number, state, sized ? given->bytes : 0);
    producer_leave(producer, now);
    return LOCKSTEP_SUCCESS;
}

/* `*handle` is written before anything else: NCCL reads it whatever happens. */
#define START_OF(version)                                                                                              \
    static int start_##version(void *context, void **handle, const void *descriptor)                                   \
    {                                                                                                                  \
        struct event event;                                                                                            \
                                                                                                                       \
        if (handle != NULL)                                                                                            \
            *handle = NULL;                                                                                            \
        if (handle == NULL || descriptor == NULL)                                                                      \
            return LOCKSTEP_SUCCESS;                                                                                   \
        event = decode_##version(descriptor);                                                                          \
        start(context, handle, &event);                                                                                \
        return LOCKSTEP_SUCCESS;                                                                                       \
    }

START_OF(v1)
START_OF(v2)
START_OF(v3)
START_OF(v4)
START_OF(v5)
START_OF(v6)
START_OF(v7)

/* Before v4 a communicator says nothing of itself: its id and our rank come with its operations, its size never. */
#define INIT_EARLY(version)                                                                                            \
    static int init_v##version(void **context, int *mask)                                                              \
    {                                                                                                                  \
        return open_communicator(context, mask, version, &(struct communicator){0}, __builtin_return_address(0), NULL); \
    }

INIT_EARLY(1)
INIT_EARLY(2)
INIT_EARLY(3)

static int init_v4(void **context, int *mask, const char *name, uint64_t id, int nnodes, int nranks, int rank,
                   lockstep_log_fn *log)
{
    const struct communicator communicator = {id, name, (uint32_t)rank, (uint32_t)nranks, (uint32_t)nnodes};

    return open_communicator(context, mask, 4, &communicator, __builtin_return_address(0), log);
}

#define INIT_LATE(version)                                                                                             \
    static int init_v##version(void **context, uint64_t id, int *mask, const char *name, int nnodes, int nranks,       \
                               int rank, lockstep_log_fn *log)                                                         \
    {                                                                                                                  \
        const struct communicator communicator = {id, name, (uint32_t)rank, (uint32_t)nranks, (uint32_t)nnodes};       \
                                                                                                                       \
        return open_communicator(context, mask, version, &communicator, __builtin_return_address(0), log);             \
    }

INIT_LATE(5)
INIT_LATE(6)
INIT_LATE(7)

#define TABLE(version, init_as)                                                                                        \
    __attribute__((visibility("default"))) struct lockstep_profiler ncclProfiler_v##version = {                        \
        .name = "lockstep", .init.init_as = init_v##version, .start = start_v##version, .stop = stop,                  \
        .record = record, .finalize = finalize}

/* Not const, although we never write them: NCCL reaches them through pointers that allow it to. */
TABLE(1, v1);
TABLE(2, v1);
TABLE(3, v1);
TABLE(4, v4);
TABLE(5, v5);
TABLE(6, v5);
TABLE(7, v5);
