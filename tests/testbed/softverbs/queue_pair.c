/* Reliable connected queue pairs: their states, and what programs post to them. */
#include "softverbs.h"
#include "wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct soft_qp *pairs[SOFT_QUEUE_PAIRS];
static uint32_t last_number = SOFT_FIRST_QPN;

struct soft_qp *soft_qp_of(uint32_t number)
{
    return number < SOFT_QUEUE_PAIRS ? pairs[number] : NULL;
}

static uint32_t find_free(void)
{
    for (uint32_t tried = 0; tried < SOFT_QUEUE_PAIRS - SOFT_FIRST_QPN; tried++) {
        uint32_t number = SOFT_FIRST_QPN + (last_number - SOFT_FIRST_QPN + 1 + tried) %
                                               (SOFT_QUEUE_PAIRS - SOFT_FIRST_QPN);
        if (pairs[number] == NULL)
            return number;
    }
    return 0;
}

void soft_fill(struct ibv_wc *completion, const struct soft_qp *qp, uint64_t wr_id, enum ibv_wc_status status,
               enum ibv_wc_opcode opcode, uint32_t bytes)
{
    memset(completion, 0, sizeof *completion);
    completion->wr_id = wr_id;
    completion->status = status;
    completion->opcode = opcode;
    completion->byte_len = bytes;
    completion->qp_num = qp->qp.qp_num;
}

void soft_fail(struct soft_qp *qp, enum ibv_wc_status first)
{
    struct ibv_wc completion;
    qp->qp.state = qp->attributes.qp_state = IBV_QPS_ERR;
    while (qp->head != qp->tail) {
        const struct soft_send *send = &qp->sends[qp->head++ % qp->n_sends];
        soft_fill(&completion, qp, send->wr_id, first, IBV_WC_SEND, 0);
        soft_complete(qp->qp.send_cq, &completion);
        first = IBV_WC_WR_FLUSH_ERR;
    }
    qp->current = qp->head;
    qp->una_psn = qp->next_psn = qp->sent_psn = qp->post_psn;
    while (qp->first_receive != qp->end_receive) {
        const struct soft_receive *receive = &qp->receives[qp->first_receive++ % qp->n_receives];
        soft_fill(&completion, qp, receive->wr_id, IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV, 0);
        soft_complete(qp->qp.recv_cq, &completion);
    }
}

static struct soft_qp *make(struct ibv_pd *pd, const struct ibv_qp_init_attr *asked)
{
    struct soft_qp *qp = calloc(1, sizeof *qp);
    if (qp == NULL)
        return NULL;
    qp->n_sends = asked->cap.max_send_wr ? asked->cap.max_send_wr : 1;
    qp->n_receives = asked->cap.max_recv_wr ? asked->cap.max_recv_wr : 1;
    qp->sends = calloc(qp->n_sends, sizeof *qp->sends);
    qp->receives = calloc(qp->n_receives, sizeof *qp->receives);
    if (qp->sends == NULL || qp->receives == NULL) {
        free(qp->sends);
        free(qp->receives);
        free(qp);
        return NULL;
    }
    qp->device = ((struct soft_context *)pd->context)->device;
    qp->cap = asked->cap;
    qp->signals_all = asked->sq_sig_all;
    qp->qp = (struct ibv_qp){.context = pd->context, .qp_context = asked->qp_context, .pd = pd,
                             .send_cq = asked->send_cq, .recv_cq = asked->recv_cq, .qp_type = IBV_QPT_RC,
                             .state = IBV_QPS_RESET};
    return qp;
}

SOFT_EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *asked)
{
    if (asked->qp_type != IBV_QPT_RC || asked->srq || asked->cap.max_send_sge > SOFT_SGES ||
        asked->cap.max_recv_sge > SOFT_SGES || asked->cap.max_inline_data > SOFT_INLINE_BYTES) {
        errno = asked->qp_type != IBV_QPT_RC || asked->srq ? EOPNOTSUPP : EINVAL;
        return NULL;
    }
    asked->cap.max_inline_data = SOFT_INLINE_BYTES;
    struct soft_qp *qp = make(pd, asked);
    pthread_mutex_lock(&soft_lock);
    uint32_t number = qp && soft_listen(qp->device) ? find_free() : 0;
    if (number) {
        qp->qp.qp_num = qp->qp.handle = last_number = number;
        pairs[number] = qp;
    } else if (qp) {
        free(qp->sends);
        free(qp->receives);
        free(qp);
        qp = NULL;
    }
    pthread_mutex_unlock(&soft_lock);
    return qp ? &qp->qp : NULL;
}

SOFT_EXPORT int ibv_destroy_qp(struct ibv_qp *told)
{
    struct soft_qp *qp = (struct soft_qp *)told;
    pthread_mutex_lock(&soft_lock);
    pairs[told->qp_num] = NULL;
    soft_drop_source(qp->source);
    pthread_mutex_unlock(&soft_lock);
    free(qp->sends);
    free(qp->receives);
    free(qp);
    return 0;
}

static void forget_all(struct soft_qp *qp)
{
    soft_drop_source(qp->source);
    qp->source = NULL;
    qp->head = qp->tail = qp->current = qp->first_receive = qp->end_receive = 0;
    qp->una_psn = qp->next_psn = qp->sent_psn = qp->post_psn = 0;
    memset(&qp->attributes, 0, sizeof qp->attributes);
}

static int begin_receiving(struct soft_qp *qp, const struct ibv_qp_attr *asked)
{
    const struct ibv_global_route *route = &asked->ah_attr.grh;
    uint32_t label = route->flow_label & 0xfffff;
    if (!asked->ah_attr.is_global || route->sgid_index != 0 || asked->path_mtu > IBV_MTU_4096 ||
        asked->path_mtu < IBV_MTU_256)
        return EINVAL;
    if (label == 0)
        label = soft_default_label(qp->qp.qp_num, asked->dest_qp_num);
    qp->source = soft_take_source(qp->device, soft_label_port(label));
    if (qp->source == NULL)
        return ENOMEM;
    qp->peer = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(SOFT_ROCE_PORT)};
    memcpy(&qp->peer.sin_addr, &route->dgid.raw[12], sizeof qp->peer.sin_addr);
    qp->mtu = 128u << asked->path_mtu;
    qp->expected_psn = asked->rq_psn & SOFT_PSN_MASK;
    qp->attributes.ah_attr = asked->ah_attr;
    qp->attributes.dest_qp_num = asked->dest_qp_num;
    qp->attributes.path_mtu = asked->path_mtu;
    qp->attributes.min_rnr_timer = asked->min_rnr_timer;
    return 0;
}

static void begin_sending(struct soft_qp *qp, const struct ibv_qp_attr *asked)
{
    qp->una_psn = qp->next_psn = qp->sent_psn = qp->post_psn = asked->sq_psn & SOFT_PSN_MASK;
    qp->window = SOFT_WINDOW;
    qp->backoff_ns = 20000000;
    qp->attributes.timeout = asked->timeout;
    qp->attributes.retry_cnt = asked->retry_cnt;
    qp->attributes.rnr_retry = asked->rnr_retry;
}

static int change_state(struct soft_qp *qp, const struct ibv_qp_attr *asked, int mask)
{
    enum ibv_qp_state from = qp->qp.state, to = asked->qp_state;
    int needed = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN, problem = 0;
    if (to == IBV_QPS_RESET) {
        forget_all(qp);
    } else if (to == IBV_QPS_ERR) {
        soft_fail(qp, IBV_WC_WR_FLUSH_ERR);
    } else if (to == IBV_QPS_INIT && (from == IBV_QPS_RESET || from == IBV_QPS_INIT)) {
        problem = asked->port_num == 1 ? 0 : EINVAL;
    } else if (to == IBV_QPS_RTR && from == IBV_QPS_INIT && (mask & needed) == needed) {
        problem = begin_receiving(qp, asked);
    } else if (to == IBV_QPS_RTS && from == IBV_QPS_RTR) {
        begin_sending(qp, asked);
    } else if (to != IBV_QPS_RTS || from != IBV_QPS_RTS) {
        problem = EINVAL;
    }
    if (problem == 0)
        qp->qp.state = qp->attributes.qp_state = to;
    return problem;
}

SOFT_EXPORT int ibv_modify_qp(struct ibv_qp *told, struct ibv_qp_attr *asked, int mask)
{
    struct soft_qp *qp = (struct soft_qp *)told;
    pthread_mutex_lock(&soft_lock);
    int problem = mask & IBV_QP_STATE ? change_state(qp, asked, mask) : 0;
    if (problem == 0 && mask & IBV_QP_ACCESS_FLAGS)
        qp->attributes.qp_access_flags = asked->qp_access_flags;
    if (problem == 0 && mask & IBV_QP_PORT)
        qp->attributes.port_num = asked->port_num;
    pthread_mutex_unlock(&soft_lock);
    return problem;
}

SOFT_EXPORT int ibv_query_qp(struct ibv_qp *told, struct ibv_qp_attr *attributes, int mask,
                             struct ibv_qp_init_attr *made)
{
    (void)mask;
    const struct soft_qp *qp = (const struct soft_qp *)told;
    pthread_mutex_lock(&soft_lock);
    *attributes = qp->attributes;
    attributes->qp_state = attributes->cur_qp_state = told->state;
    attributes->cap = qp->cap;
    pthread_mutex_unlock(&soft_lock);
    *made = (struct ibv_qp_init_attr){.qp_context = told->qp_context, .send_cq = told->send_cq,
                                      .recv_cq = told->recv_cq, .cap = qp->cap, .qp_type = IBV_QPT_RC,
                                      .sq_sig_all = qp->signals_all};
    return 0;
}

/* The extended posting interface is not there; programs ask. */
SOFT_EXPORT struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
    (void)qp;
    return NULL;
}
