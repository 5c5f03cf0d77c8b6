/* From each version's descriptor to one event, with NCCL's words as our codes. Only what belongs to the type is read. */
#ifndef LOCKSTEP_DECODE_H
#define LOCKSTEP_DECODE_H

#include "plugin.h"

/* What came in, whatever the version: `type` says what holds. */
struct event {
    uint64_t type;
    uint64_t parent;
    int32_t rank;
    uint64_t comm_id; /* before v4 */
    uint64_t seq, count;
    uint8_t func, dtype, algo, proto, channels, warps, captured, channel;
    int32_t peer, root, steps, chunk, pid, send;
    uint64_t value; /* step number, GPU time, stream or depth */
};

#define DECODE_HEAD(from)                                                                                              \
    struct event event = {.type = (from)->type, .parent = (uint64_t)(uintptr_t)(from)->parent, .rank = (from)->rank,   \
                          .peer = -1, .root = -1}

#define DECODE_COLL(from)                                                                                              \
    event.seq = (from)->coll.seq, event.count = (from)->coll.count, event.root = (from)->coll.root,                    \
    event.channels = (from)->coll.channels, event.warps = (from)->coll.warps

#define DECODE_COLL_WORDS(from)                                                                                        \
    event.func = word_func((from)->coll.func), event.dtype = word_dtype((from)->coll.dtype),                           \
    event.algo = word_algo((from)->coll.algo), event.proto = word_proto((from)->coll.proto)

#define DECODE_P2P(from) event.count = (from)->p2p.count, event.peer = (from)->p2p.peer

#define DECODE_P2P_WORDS(from)                                                                                         \
    event.func = word_func((from)->p2p.func), event.dtype = word_dtype((from)->p2p.dtype)

static inline void decode_proxy_op(struct event *event, const struct abi_proxy_op *proxy)
{
    event->pid = proxy->pid;
    event->channel = proxy->channel;
    event->peer = proxy->peer;
    event->steps = proxy->steps;
    event->chunk = proxy->chunk;
    event->send = proxy->send;
}

static inline void decode_step(struct event *event, const struct abi_proxy_step *step)
{
    event->value = (uint64_t)(int64_t)step->step;
}

static inline void decode_kernel(struct event *event, const struct abi_kernel_channel_v4 *kernel)
{
    event->channel = kernel->channel;
    event->value = kernel->gpu_ns;
}

static inline struct event decode_v1(const struct abi_descriptor_v1 *from)
{
    DECODE_HEAD(from);

    if (event.type == ABI_COLL) {
        DECODE_COLL(from);
        event.comm_id = from->coll.comm_id;
        event.func = number_func(from->coll.func), event.dtype = number_dtype(from->coll.dtype);
        event.algo = number_algo(from->coll.algo), event.proto = number_proto(from->coll.proto);
    } else if (event.type == ABI_P2P) {
        DECODE_P2P(from);
        event.comm_id = from->p2p.comm_id;
        event.func = number_func(from->p2p.func), event.dtype = number_dtype(from->p2p.dtype);
    } else if (event.type == ABI_PROXY_OP) {
        decode_proxy_op(&event, &from->proxy_op);
    } else if (event.type == ABI_PROXY_STEP) {
        decode_step(&event, &from->proxy_step);
    }
    return event;
}

#define DECODE_NAMED(from)                                                                                             \
    DECODE_HEAD(from);                                                                                                 \
    if (event.type == ABI_COLL) {                                                                                      \
        DECODE_COLL(from), DECODE_COLL_WORDS(from);                                                                    \
        event.comm_id = (from)->coll.comm_id;                                                                          \
    } else if (event.type == ABI_P2P) {                                                                                \
        DECODE_P2P(from), DECODE_P2P_WORDS(from);                                                                      \
        event.comm_id = (from)->p2p.comm_id;                                                                           \
    } else if (event.type == ABI_PROXY_OP) {                                                                           \
        decode_proxy_op(&event, &(from)->proxy_op);                                                                    \
    } else if (event.type == ABI_PROXY_STEP) {                                                                         \
        decode_step(&event, &(from)->proxy_step);                                                                      \
    }                                                                                                                  \
    return event

static inline struct event decode_v2(const struct abi_descriptor_v2 *from) { DECODE_NAMED(from); }

static inline struct event decode_v3(const struct abi_descriptor_v3 *from) { DECODE_NAMED(from); }

#define DECODE_COMMON(from)                                                                                            \
    case ABI_COLL: DECODE_COLL(from), DECODE_COLL_WORDS(from); break;                                                  \
    case ABI_P2P: DECODE_P2P(from), DECODE_P2P_WORDS(from), event.channels = (from)->p2p.channels; break;              \
    case ABI_PROXY_OP: decode_proxy_op(&event, &(from)->proxy_op); break;                                              \
    case ABI_PROXY_STEP: decode_step(&event, &(from)->proxy_step); break;                                              \
    case ABI_KERNEL_CHANNEL: decode_kernel(&event, &(from)->kernel_channel); break

#define DECODE_CALLS(from)                                                                                             \
    case ABI_GROUP_API:                                                                                                \
        event.captured = (from)->group_api.captured != 0;                                                              \
        event.value = (uint64_t)(int64_t)(from)->group_api.depth;                                                      \
        break;                                                                                                         \
    case ABI_COLL_API:                                                                                                 \
        event.captured = (from)->coll_api.captured != 0;                                                               \
        event.count = (from)->coll_api.count;                                                                          \
        event.func = word_func((from)->coll_api.func), event.dtype = word_dtype((from)->coll_api.dtype);               \
        break;                                                                                                         \
    case ABI_P2P_API:                                                                                                  \
        event.captured = (from)->p2p_api.captured != 0;                                                                \
        event.count = (from)->p2p_api.count;                                                                           \
        event.func = word_func((from)->p2p_api.func), event.dtype = word_dtype((from)->p2p_api.dtype);                 \
        break;                                                                                                         \
    case ABI_KERNEL_LAUNCH: event.value = (uint64_t)(uintptr_t)(from)->kernel_launch.stream; break

static inline struct event decode_v4(const struct abi_descriptor_v4 *from)
{
    DECODE_HEAD(from);

    switch (event.type) {
        DECODE_COMMON(from);
    }
    return event;
}

#define DECODE_WITH_CALLS(from)                                                                                        \
    DECODE_HEAD(from);                                                                                                 \
    switch (event.type) {                                                                                              \
        DECODE_COMMON(from);                                                                                           \
        DECODE_CALLS(from);                                                                                            \
    }                                                                                                                  \
    return event

static inline struct event decode_v5(const struct abi_descriptor_v5 *from) { DECODE_WITH_CALLS(from); }

static inline struct event decode_v6(const struct abi_descriptor_v6 *from) { DECODE_WITH_CALLS(from); }

static inline struct event decode_v7(const struct abi_descriptor_v7 *from) { DECODE_WITH_CALLS(from); }

#endif
