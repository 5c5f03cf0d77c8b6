/* The entries of ibv_context_ops through which programs post; called by any thread, without the lock. */
#ifndef LOCKSTEP_SOFTVERBS_POSTING_H
#define LOCKSTEP_SOFTVERBS_POSTING_H

#include "softverbs.h"

int soft_post_send(struct ibv_qp *qp, struct ibv_send_wr *asked, struct ibv_send_wr **bad);
int soft_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *asked, struct ibv_recv_wr **bad);

#endif
