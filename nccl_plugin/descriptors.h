/* What NCCL hands to `start` and `record`: one structure per version of its profiler interface.
 *
 * Read only the member that belongs to `type`: NCCL's shims for older versions leave their own stack in the others.
 * `parent` is a handle that we returned, or a foreign process's under PXN.
 */
#ifndef LOCKSTEP_DESCRIPTORS_H
#define LOCKSTEP_DESCRIPTORS_H

#include "events.h"

#include <stdint.h>

struct abi_descriptor_v1 {
    uint8_t type;
    void *parent;
    int32_t rank;
    union {
        struct abi_coll_v1 coll;
        struct abi_p2p_v1 p2p;
        struct abi_proxy_op proxy_op;
        struct abi_proxy_step proxy_step;
    };
};

struct abi_descriptor_v2 {
    uint8_t type;
    void *parent;
    int32_t rank;
    union {
        struct abi_coll_v2 coll;
        struct abi_p2p_v2 p2p;
        struct abi_proxy_op proxy_op;
        struct abi_proxy_step proxy_step;
    };
};

struct abi_descriptor_v3 {
    uint8_t type;
    void *parent;
    int32_t rank;
    union {
        struct abi_coll_v3 coll;
        struct abi_p2p_v2 p2p;
        struct abi_proxy_op proxy_op;
        struct abi_proxy_step proxy_step;
        struct abi_kernel_channel_v3 kernel_channel;
        struct abi_net_plugin net_plugin;
    };
};

struct abi_descriptor_v4 {
    uint8_t type;
    void *parent;
    int32_t rank;
    union {
        struct abi_coll_v4 coll;
        struct abi_p2p_v4 p2p;
        struct abi_proxy_op proxy_op;
        struct abi_proxy_step proxy_step;
        struct abi_kernel_channel_v4 kernel_channel;
        struct abi_net_plugin net_plugin;
    };
};

struct abi_descriptor_v5 {
    uint64_t type;
    void *parent;
    int32_t rank;
    union {
        struct abi_coll_v5 coll;
        struct abi_p2p_v5 p2p;
        struct abi_proxy_op proxy_op;
        struct abi_proxy_step proxy_step;
        struct abi_kernel_channel_v4 kernel_channel;
        struct abi_net_plugin net_plugin;
        struct abi_group_api group_api;
        struct abi_coll_api_v5 coll_api;
        struct abi_p2p_api_v5 p2p_api;
        struct abi_kernel_launch kernel_launch;
    };
};

struct abi_descriptor_v6 {
    uint64_t type;
    void *parent;
    int32_t rank;
    union {
        struct abi_coll_v5 coll;
        struct abi_p2p_v5 p2p;
        struct abi_proxy_op proxy_op;
        struct abi_proxy_step proxy_step;
        struct abi_kernel_channel_v4 kernel_channel;
        struct abi_net_plugin net_plugin;
        struct abi_group_api group_api;
        struct abi_coll_api_v5 coll_api;
        struct abi_p2p_api_v5 p2p_api;
        struct abi_kernel_launch kernel_launch;
        struct abi_ce_coll_v6 ce_coll;
        struct abi_ce_sync ce_sync;
        struct abi_ce_batch ce_batch;
    };
};

struct abi_descriptor_v7 {
    uint64_t type;
    void *parent;
    int32_t rank;
    union {
        struct abi_coll_v7 coll;
        struct abi_p2p_v7 p2p;
        struct abi_proxy_op proxy_op;
        struct abi_proxy_step proxy_step;
        struct abi_kernel_channel_v4 kernel_channel;
        struct abi_net_plugin net_plugin;
        struct abi_group_api group_api;
        struct abi_coll_api_v7 coll_api;
        struct abi_p2p_api_v7 p2p_api;
        struct abi_kernel_launch kernel_launch;
        struct abi_ce_coll_v7 ce_coll;
        struct abi_ce_sync ce_sync;
        struct abi_ce_batch ce_batch;
        struct abi_kernel_phase kernel_phase;
    };
};

_Static_assert(sizeof(struct abi_descriptor_v1) == 120, "v1");
_Static_assert(sizeof(struct abi_descriptor_v2) == 128, "v2");
_Static_assert(sizeof(struct abi_descriptor_v3) == 120, "v3");
_Static_assert(sizeof(struct abi_descriptor_v4) == 104, "v4");
_Static_assert(sizeof(struct abi_descriptor_v5) == 112, "v5");
_Static_assert(sizeof(struct abi_descriptor_v6) == 112, "v6");
_Static_assert(sizeof(struct abi_descriptor_v7) == 136, "v7");

/* What `record` gets besides the state; the state says which member holds. */
union abi_state_arguments_v1 { /* v1 to v3 */
    struct {
        uint64_t bytes;
        int32_t steps;
    };
    int appended;
};

union abi_state_arguments { /* v4 to v7 */
    uint64_t bytes;         /* of a proxy step: valid from ABI_SEND_WAIT and ABI_RECV_FLUSH_WAIT on */
    int appended;           /* proxy operations, with ABI_CTRL_APPEND_END */
    void *data;             /* a net plugin's own */
    uint64_t gpu_ns;        /* with ABI_KERNEL_STOP and ABI_PHASE_STOP */
};

_Static_assert(sizeof(union abi_state_arguments_v1) == 16, "v1 to v3");
_Static_assert(sizeof(union abi_state_arguments) == 8, "v4 to v7");

#endif
