/* mlx5: its library can be asked for a source port once a queue pair sends, which is surer than its flow label. */
#ifndef LOCKSTEP_MLX5_H
#define LOCKSTEP_MLX5_H

#include "queue_pairs.h"

struct ibv_qp;
struct ibv_device;

struct lockstep_promise {
    const struct ibv_qp *qp;
    struct lockstep_pair pair;
    uint64_t generation;
    uint16_t port;
};

/* Whether this device is served by mlx5's library, which is loaded then. */
bool lockstep_is_mlx5(struct ibv_device *device);
/* Keeps what a queue pair was promised until it sends; false where there is no room. */
bool lockstep_promise(const struct lockstep_promise *promise);
/* Takes what this queue pair was promised, if anything. */
bool lockstep_take_promise(const struct ibv_qp *qp, struct lockstep_promise *promise);
/* Asks for the port; returns whether the NIC has it now. */
bool lockstep_ask_mlx5(struct ibv_qp *qp, uint16_t port);

#endif
