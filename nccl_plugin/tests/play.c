/* The callbacks of an operation, in NCCL's order and as far as its mask asks for them. */
#define _POSIX_C_SOURCE 200809L

#include "harness.h"

#include <unistd.h>

enum { BELOW_AN_OPERATION = ABI_PROXY_OP | ABI_PROXY_STEP | ABI_KERNEL_CHANNEL | ABI_NET_PLUGIN };

/* --- the application's thread --- */

/* NCCL stops and records only what has a handle. */
static void stop_if_any(const struct comm *comm, void *handle)
{
    if (handle != NULL)
        stop(comm, handle);
}

static void record_group_state(const struct comm *comm, void *group_api, int state)
{
    if (group_api == NULL)
        return;
    if (comm->nccl->version >= 6)
        EQUAL(comm->nccl->table->record(group_api, state, NULL), LOCKSTEP_SUCCESS); /* as NCCL calls v6 and v7 */
    else
        record(comm, group_api, state, 0);
}

struct calls {
    void *group_api, *api;
};

static struct calls call_api(const struct comm *comm, const struct event *operation)
{
    struct event api = *operation;
    struct calls calls = {NULL, NULL};

    if (comm->nccl->version < 5)
        return calls;
    calls.group_api = start(comm, &(struct event){.type = ABI_GROUP_API, .captured = operation->captured});
    record_group_state(comm, calls.group_api, ABI_GROUP_START_STOP);
    api.type = operation->type == ABI_COLL ? ABI_COLL_API : ABI_P2P_API;
    api.parent = calls.group_api;
    calls.api = start(comm, &api);
    stop_if_any(comm, calls.api);
    record_group_state(comm, calls.group_api, ABI_GROUP_END_START);
    if (is_asked_for(ABI_KERNEL_LAUNCH))
        stop_if_any(comm, start(comm, &(struct event){.type = ABI_KERNEL_LAUNCH, .parent = calls.group_api}));
    return calls;
}

static void *enqueue(const struct comm *comm, struct event operation)
{
    void *handle = NULL;

    if (!is_asked_for(ABI_COLL | ABI_P2P | BELOW_AN_OPERATION))
        return NULL;
    const struct calls calls = call_api(comm, &operation);
    operation.group = start(comm, &(struct event){.type = ABI_GROUP});
    operation.parent = comm->nccl->version < 5 ? operation.group : calls.api;
    const bool gated = comm->nccl->version < 5 && operation.group == NULL; /* as NCCL did up to 2.27 */
    if (!gated && is_asked_for(BELOW_AN_OPERATION | (unsigned)operation.type)) {
        handle = start(comm, &operation);
        stop_if_any(comm, handle);
    }
    stop_if_any(comm, operation.group);
    stop_if_any(comm, calls.group_api);
    return handle;
}

void *enqueue_collective(const struct comm *comm, const struct event *coll)
{
    struct event operation = *coll;

    operation.type = ABI_COLL;
    return enqueue(comm, operation);
}

void *enqueue_all_reduce(const struct comm *comm, uint64_t seq)
{
    return enqueue_collective(comm, &(struct event){.func = "AllReduce", .seq = seq, .count = 1024, .channels = 1,
                                                    .dtype = "ncclFloat32", .algo = "RING", .proto = "SIMPLE"});
}

void *enqueue_p2p(const struct comm *comm, bool send, int peer, uint64_t count)
{
    return enqueue(comm, (struct event){.type = ABI_P2P, .func = send ? "Send" : "Recv", .peer = peer, .channels = 1,
                                        .count = count, .dtype = "ncclFloat16"});
}

/* --- the proxy's thread --- */

void *begin_transfer(const struct comm *comm, void *operation, int peer, int channel, int steps, bool send)
{
    if (operation == NULL || !is_asked_for(ABI_PROXY_OP | ABI_PROXY_STEP | ABI_NET_PLUGIN))
        return NULL;
    void *transfer = start(comm, &(struct event){.type = ABI_PROXY_OP, .parent = operation, .pid = (int)getpid(),
                                                 .channel = channel, .peer = peer, .steps = steps, .chunk = 1 << 17,
                                                 .send = send});
    if (transfer != NULL && comm->nccl->version >= 4)
        record(comm, transfer, ABI_OP_IN_PROGRESS, 0);
    return transfer;
}

void *begin_step(const struct comm *comm, void *transfer, int step)
{
    if (transfer == NULL || !is_asked_for(ABI_PROXY_STEP | ABI_NET_PLUGIN))
        return NULL;
    return start(comm, &(struct event){.type = ABI_PROXY_STEP, .parent = transfer, .step = step});
}

void pass_state(const struct comm *comm, void *transfer, void *step, int state, uint64_t bytes)
{
    if (state == ABI_SEND_PEER_WAIT && comm->nccl->version < 4)
        return;
    if (transfer != NULL && step != NULL)
        record(comm, step, state, bytes);
}

void run_send_step(const struct comm *comm, void *transfer, int step, uint64_t bytes)
{
    void *handle = begin_step(comm, transfer, step);

    pass_state(comm, transfer, handle, ABI_SEND_GPU_WAIT, 0);
    pass_state(comm, transfer, handle, ABI_SEND_PEER_WAIT, 0);
    pass_state(comm, transfer, handle, ABI_SEND_WAIT, bytes);
    stop_if_any(comm, handle);
}

void run_recv_step(const struct comm *comm, void *transfer, int step, uint64_t bytes)
{
    void *handle = begin_step(comm, transfer, step);

    pass_state(comm, transfer, handle, ABI_RECV_WAIT, 0);
    pass_state(comm, transfer, handle, ABI_RECV_FLUSH_WAIT, bytes);
    pass_state(comm, transfer, handle, ABI_RECV_GPU_WAIT, bytes);
    stop_if_any(comm, handle);
}

/* --- the profiler's thread, or up to v6 the proxy's --- */

void run_kernel_channel(const struct comm *comm, void *operation, int channel, uint64_t start_ns, uint64_t stop_ns)
{
    if (operation == NULL || !is_asked_for(ABI_KERNEL_CHANNEL))
        return;
    void *kernel = start(comm, &(struct event){.type = ABI_KERNEL_CHANNEL, .parent = operation, .channel = channel,
                                               .gpu_ns = start_ns});
    if (kernel == NULL)
        return;
    record(comm, kernel, ABI_KERNEL_STOP, stop_ns);
    stop(comm, kernel);
}

void run_all_reduce(const struct comm *comm, uint64_t seq)
{
    const int peer = (comm->rank + 1) % comm->nranks;
    void *operation = enqueue_all_reduce(comm, seq);
    void *receiving = begin_transfer(comm, operation, peer, 0, 1, false);
    void *sending = begin_transfer(comm, operation, peer, 0, 1, true);

    run_recv_step(comm, receiving, 0, 4096);
    run_send_step(comm, sending, 0, 4096);
    stop_if_any(comm, receiving);
    stop_if_any(comm, sending);
    run_kernel_channel(comm, operation, 0, UNIX_AT_ZERO_NS + now_ns, UNIX_AT_ZERO_NS + now_ns + 1);
}
