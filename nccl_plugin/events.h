/* What each kind of event tells: the members of the descriptors, named after the version that brought each layout.
 *
 * A text lives as long as the call. Flags are uint8_t and not bool, because any byte may stand there.
 */
#ifndef LOCKSTEP_EVENTS_H
#define LOCKSTEP_EVENTS_H

#include <stdint.h>

/* Collectives. v1 numbers what later versions spell out. */
struct abi_coll_v1 {
    const char *name; /* the communicator's; v1 to v3 only, and empty since 2.27, as is its id */
    uint64_t comm_id, seq;
    uint8_t func;
    const void *send;
    void *recv;
    uint64_t count;
    int32_t root;
    uint8_t dtype;
    uint32_t op;
    uint64_t traffic;
    uint8_t channels, warps, algo, proto;
    int32_t collnet, nvls;
};

struct abi_coll_v2 {
    const char *name;
    uint64_t comm_id, seq;
    const char *func;
    const void *send;
    void *recv;
    uint64_t count;
    int32_t root;
    const char *dtype;
    uint64_t traffic;
    uint8_t channels, warps;
    const char *algo, *proto;
};

struct abi_coll_v3 {
    const char *name;
    uint64_t comm_id, seq;
    const char *func;
    const void *send;
    void *recv;
    uint64_t count;
    int32_t root;
    const char *dtype;
    uint8_t channels, warps;
    const char *algo, *proto;
};

struct abi_coll_v4 {
    uint64_t seq;
    const char *func;
    const void *send;
    void *recv;
    uint64_t count;
    int32_t root;
    const char *dtype;
    uint8_t channels, warps;
    const char *algo, *proto;
};

struct abi_coll_v5 {
    uint64_t seq;
    const char *func;
    const void *send;
    void *recv;
    uint64_t count;
    int32_t root;
    const char *dtype;
    uint8_t channels, warps;
    const char *algo, *proto;
    void *group; /* `parent` is the API call since v5 */
};

struct abi_coll_v7 {
    uint64_t seq;
    const char *func;
    const void *send;
    void *recv;
    uint64_t count;
    int32_t root;
    const char *dtype;
    uint8_t channels, warps;
    const char *algo, *proto;
    void *group;
    const char *variant;
    uint8_t symmetric;
    uint64_t tag; /* the caller's own */
};

/* Send and receive. */
struct abi_p2p_v1 {
    const char *name;
    uint64_t comm_id;
    uint8_t func;
    void *buffer;
    uint8_t dtype;
    uint64_t count;
    int32_t peer;
};

struct abi_p2p_v2 {
    const char *name;
    uint64_t comm_id;
    const char *func;
    void *buffer;
    const char *dtype;
    uint64_t count;
    int32_t peer;
};

struct abi_p2p_v4 {
    const char *func;
    void *buffer;
    const char *dtype;
    uint64_t count;
    int32_t peer;
    uint8_t channels; /* not filled when 2.28 or newer talks v4 */
};

struct abi_p2p_v5 {
    const char *func;
    void *buffer;
    const char *dtype;
    uint64_t count;
    int32_t peer;
    uint8_t channels;
    void *group;
};

struct abi_p2p_v7 {
    const char *func;
    void *buffer;
    const char *dtype;
    uint64_t count;
    int32_t peer;
    uint8_t channels;
    void *group;
    uint64_t tag;
};

/* Transfers over the network, and one step of them. */
struct abi_proxy_op {
    int32_t pid; /* the process that enqueued the operation: not always this one */
    uint8_t channel;
    int32_t peer, steps, chunk, send;
};

struct abi_proxy_step {
    int32_t step;
};

struct abi_net_plugin {
    int64_t id;
    void *data;
};

/* One channel of a kernel. */
struct abi_kernel_channel_v3 {
    uint8_t channel;
};

struct abi_kernel_channel_v4 {
    uint8_t channel;
    uint64_t gpu_ns;
};

struct abi_kernel_phase {
    uint8_t channel, phase; /* 0 initial sync, 1 compute, 2 final sync */
    const char *name;
    uint64_t gpu_ns;
};

/* Calls of the application. */
struct abi_group_api {
    uint8_t captured;
    int32_t depth;
};

struct abi_coll_api_v5 {
    const char *func;
    uint64_t count;
    const char *dtype;
    int32_t root;
    void *stream;
    uint8_t captured;
};

struct abi_coll_api_v7 {
    const char *func;
    uint64_t count;
    const char *dtype;
    int32_t root;
    void *stream;
    uint8_t captured;
    uint64_t tag;
};

struct abi_p2p_api_v5 {
    const char *func;
    uint64_t count;
    const char *dtype;
    void *stream;
    uint8_t captured;
};

struct abi_p2p_api_v7 {
    const char *func;
    uint64_t count;
    const char *dtype;
    void *stream;
    uint8_t captured;
    uint64_t tag;
};

struct abi_kernel_launch {
    void *stream;
};

/* Collectives by copy engine. */
struct abi_ce_coll_v6 {
    uint64_t seq;
    const char *func;
    const void *send;
    void *recv;
    uint64_t count;
    int32_t root;
    const char *dtype, *sync;
    uint8_t intra_sync;
    uint32_t batch, batches, ce_seq;
    void *stream;
};

struct abi_ce_coll_v7 {
    uint64_t seq;
    const char *func;
    const void *send;
    void *recv;
    uint64_t count;
    int32_t root;
    const char *dtype, *sync;
    uint8_t intra_sync;
    uint32_t batch, batches, ce_seq;
    void *stream;
    uint64_t tag;
};

struct abi_ce_sync {
    uint8_t complete;
    int32_t ranks;
};

struct abi_ce_batch {
    int32_t ops;
    uint64_t bytes;
    uint8_t intra_sync;
};

#endif
