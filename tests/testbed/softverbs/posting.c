/* Work requests, from the program's list into the rings of a queue pair. */
#include "posting.h"

#include <errno.h>
#include <string.h>

static uint32_t length_of(const struct ibv_sge *sges, int count)
{
    uint32_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += sges[i].length;
    return bytes;
}

static void keep_inline(struct soft_send *send, const struct ibv_send_wr *asked)
{
    size_t at = 0;
    for (int i = 0; i < asked->num_sge; i++) {
        memcpy(send->inlined + at, (const void *)(uintptr_t)asked->sg_list[i].addr, asked->sg_list[i].length);
        at += asked->sg_list[i].length;
    }
}

static int check_send(const struct soft_qp *qp, const struct ibv_send_wr *asked)
{
    bool is_known = asked->opcode == IBV_WR_SEND || asked->opcode == IBV_WR_SEND_WITH_IMM ||
                    asked->opcode == IBV_WR_RDMA_WRITE || asked->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    if (qp->qp.state != IBV_QPS_RTS && qp->qp.state != IBV_QPS_ERR)
        return EINVAL;
    if (!is_known)
        return EOPNOTSUPP;
    if (asked->num_sge > SOFT_SGES ||
        (asked->send_flags & IBV_SEND_INLINE && length_of(asked->sg_list, asked->num_sge) > SOFT_INLINE_BYTES))
        return EINVAL;
    return qp->tail - qp->head == qp->n_sends ? ENOMEM : 0;
}

static void add_send(struct soft_qp *qp, const struct ibv_send_wr *asked)
{
    struct soft_send *send = &qp->sends[qp->tail++ % qp->n_sends];
    send->wr_id = asked->wr_id;
    send->opcode = asked->opcode;
    send->imm = asked->imm_data;
    send->remote_address = asked->wr.rdma.remote_addr;
    send->rkey = asked->wr.rdma.rkey;
    send->length = length_of(asked->sg_list, asked->num_sge);
    send->is_signaled = qp->signals_all || asked->send_flags & IBV_SEND_SIGNALED;
    send->is_inline = asked->send_flags & IBV_SEND_INLINE;
    send->n_sges = asked->num_sge;
    if (send->is_inline)
        keep_inline(send, asked);
    else if (asked->num_sge)
        memcpy(send->sges, asked->sg_list, (size_t)asked->num_sge * sizeof *asked->sg_list);
    send->first_psn = qp->post_psn;
    send->packets = send->length ? (send->length + qp->mtu - 1) / qp->mtu : 1;
    qp->post_psn += send->packets;
}

int soft_post_send(struct ibv_qp *told, struct ibv_send_wr *asked, struct ibv_send_wr **bad)
{
    struct soft_qp *qp = (struct soft_qp *)told;
    int problem = 0;
    pthread_mutex_lock(&soft_lock);
    for (; asked && (problem = check_send(qp, asked)) == 0; asked = asked->next)
        add_send(qp, asked);
    if (told->state == IBV_QPS_ERR)
        soft_fail(qp, IBV_WC_WR_FLUSH_ERR);
    else
        soft_transmit(qp);
    pthread_mutex_unlock(&soft_lock);
    *bad = asked;
    return problem;
}

static int check_receive(const struct soft_qp *qp, const struct ibv_recv_wr *asked)
{
    if (qp->qp.state == IBV_QPS_RESET || asked->num_sge > SOFT_SGES)
        return EINVAL;
    return qp->end_receive - qp->first_receive == qp->n_receives ? ENOMEM : 0;
}

static void add_receive(struct soft_qp *qp, const struct ibv_recv_wr *asked)
{
    struct soft_receive *receive = &qp->receives[qp->end_receive++ % qp->n_receives];
    receive->wr_id = asked->wr_id;
    receive->n_sges = asked->num_sge;
    if (asked->num_sge)
        memcpy(receive->sges, asked->sg_list, (size_t)asked->num_sge * sizeof *asked->sg_list);
}

int soft_post_recv(struct ibv_qp *told, struct ibv_recv_wr *asked, struct ibv_recv_wr **bad)
{
    struct soft_qp *qp = (struct soft_qp *)told;
    int problem = 0;
    pthread_mutex_lock(&soft_lock);
    for (; asked && (problem = check_receive(qp, asked)) == 0; asked = asked->next)
        add_receive(qp, asked);
    if (told->state == IBV_QPS_ERR)
        soft_fail(qp, IBV_WC_WR_FLUSH_ERR);
    pthread_mutex_unlock(&soft_lock);
    *bad = asked;
    return problem;
}
