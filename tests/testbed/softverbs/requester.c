/* The sending side of a queue pair: cuts messages into packets, sends what was lost again from the first lost packet on,
 * and gives up after the time that the program configured. */
#include "softverbs.h"
#include "wire.h"

#include <string.h>

enum { ACK_EVERY = 16, SMALLEST_WINDOW = 4, INFINITE_RNR = 7, ENOUGH_TRIES = 3 };

/* A NIC waits for the whole timeout before it sends again, but its fabric loses nothing. Ours does, so it is sent again
 * sooner, and given up when a NIC would. */
static const uint64_t FIRST_RESEND_NS = 20000000, LONGEST_RESEND_NS = 320000000;
static const uint64_t TIMEOUT_UNIT_NS = 4096, RNR_NS = 640000;

/* How long nothing may be heard: local ACK timeout times all tries (0: for ever). */
static uint64_t patience_of(const struct soft_qp *qp)
{
    const struct ibv_qp_attr *attributes = &qp->attributes;
    return attributes->timeout ? (TIMEOUT_UNIT_NS << attributes->timeout) * (attributes->retry_cnt + 1u) : 0;
}

static bool gather(struct soft_qp *qp, const struct soft_send *send, uint32_t begin, uint8_t *to, uint32_t bytes)
{
    if (send->is_inline) {
        memcpy(to, send->inlined + begin, bytes);
        return true;
    }
    for (int i = 0; i < send->n_sges && bytes; i++) {
        const struct ibv_sge *sge = &send->sges[i];
        if (begin >= sge->length) {
            begin -= sge->length;
            continue;
        }
        uint32_t part = sge->length - begin < bytes ? sge->length - begin : bytes;
        const uint8_t *from = soft_find(qp->qp.pd, sge->lkey, sge->addr + begin, part, 0);
        if (from == NULL)
            return false;
        memcpy(to, from, part);
        to += part;
        bytes -= part;
        begin = 0;
    }
    return bytes == 0;
}

static bool is_write(const struct soft_send *send)
{
    return send->opcode == IBV_WR_RDMA_WRITE || send->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static uint8_t opcode_of(const struct soft_send *send, uint32_t number)
{
    bool has_imm = send->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || send->opcode == IBV_WR_SEND_WITH_IMM;
    uint8_t kind = is_write(send) ? SOFT_WRITE : SOFT_SEND;
    uint8_t last = has_imm ? SOFT_LAST_IMM : SOFT_LAST, only = has_imm ? SOFT_ONLY_IMM : SOFT_ONLY;
    if (send->packets == 1)
        return kind + only;
    return kind + (number == 0 ? SOFT_FIRST : number + 1 == send->packets ? last : SOFT_MIDDLE);
}

static bool is_ack_due(const struct soft_qp *qp, const struct soft_send *send, uint32_t number)
{
    return number + 1 == send->packets || number % ACK_EVERY == ACK_EVERY - 1 ||
           qp->next_psn - qp->una_psn + 1 >= qp->window;
}

enum sent { WENT, NO_ROOM, NOT_ALLOWED };

static enum sent send_next(struct soft_qp *qp, const struct soft_send *send)
{
    static uint8_t bytes[SOFT_HEADER_BYTES + SOFT_PAYLOAD_BYTES + SOFT_ICRC_BYTES]; /* under the lock */
    uint32_t number = qp->next_psn - send->first_psn, begin = number * qp->mtu;
    uint32_t part = send->length - begin < qp->mtu ? send->length - begin : qp->mtu;
    struct soft_packet packet = {
        .opcode = opcode_of(send, number), .wants_ack = is_ack_due(qp, send, number), .psn = qp->next_psn,
        .destination = qp->attributes.dest_qp_num, .address = send->remote_address, .rkey = send->rkey,
        .length = send->length, .imm = send->imm};
    size_t at = soft_encode(&packet, bytes);
    if (!gather(qp, send, begin, bytes + at, part))
        return NOT_ALLOWED;
    memset(bytes + at + part, 0, SOFT_ICRC_BYTES);
    return soft_put(qp, bytes, at + part + SOFT_ICRC_BYTES) ? WENT : NO_ROOM;
}

static void note_sent(struct soft_qp *qp, const struct soft_send *send)
{
    if (qp->una_psn == qp->sent_psn)
        qp->progress_ns = qp->resend_ns = soft_now_ns(); /* the clock starts with the first packet that waits */
    qp->next_psn++;
    if ((int32_t)(qp->next_psn - qp->sent_psn) > 0)
        qp->sent_psn = qp->next_psn;
    if (qp->next_psn == send->first_psn + send->packets)
        qp->current++;
}

void soft_transmit(struct soft_qp *qp)
{
    if (qp->qp.state != IBV_QPS_RTS || (qp->resume_ns && soft_now_ns() < qp->resume_ns))
        return;
    qp->resume_ns = 0;
    while (qp->next_psn != qp->post_psn && qp->next_psn - qp->una_psn < qp->window) {
        const struct soft_send *send = &qp->sends[qp->current % qp->n_sends];
        enum sent sent = send_next(qp, send);
        if (sent == NOT_ALLOWED && qp->current == qp->head) {
            soft_fail(qp, IBV_WC_LOC_PROT_ERR);
            return;
        }
        if (sent != WENT) /* what is not allowed waits until all before it has completed */
            return;
        note_sent(qp, send);
    }
}

static void rewind_to_unacknowledged(struct soft_qp *qp)
{
    qp->next_psn = qp->una_psn;
    qp->current = qp->head;
}

/* Halved when packets were lost, one more each time it was used up: enough for flows that share a link. Not DCQCN. */
static void note_loss(struct soft_qp *qp)
{
    qp->window = qp->window / 2 > SMALLEST_WINDOW ? qp->window / 2 : SMALLEST_WINDOW;
}

static void complete_send(struct soft_qp *qp, const struct soft_send *send)
{
    struct ibv_wc completion;
    enum ibv_wc_opcode opcode = is_write(send) ? IBV_WC_RDMA_WRITE : IBV_WC_SEND;
    if (!send->is_signaled)
        return;
    soft_fill(&completion, qp, send->wr_id, IBV_WC_SUCCESS, opcode, send->length);
    soft_complete(qp->qp.send_cq, &completion);
}

/* Everything before this packet has arrived. */
static void advance(struct soft_qp *qp, uint32_t until)
{
    if ((int32_t)(until - qp->una_psn) <= 0 || (int32_t)(until - qp->sent_psn) > 0)
        return;
    qp->una_psn = until;
    qp->progress_ns = qp->resend_ns = soft_now_ns();
    qp->backoff_ns = FIRST_RESEND_NS;
    qp->rnr_tries = qp->tries = 0;
    if (qp->window < SOFT_WINDOW)
        qp->window++;
    while (qp->head != qp->tail) {
        const struct soft_send *send = &qp->sends[qp->head % qp->n_sends];
        if ((int32_t)(until - (send->first_psn + send->packets)) < 0)
            break;
        complete_send(qp, send);
        qp->head++;
    }
    if ((int32_t)(qp->next_psn - until) < 0) { /* an answer to what was sent before we began again */
        qp->next_psn = until;
        qp->current = qp->head;
    }
}

static void wait_for_receive(struct soft_qp *qp)
{
    uint8_t most = qp->attributes.rnr_retry;
    if (most != INFINITE_RNR && qp->rnr_tries++ >= most) {
        soft_fail(qp, IBV_WC_RNR_RETRY_EXC_ERR);
        return;
    }
    qp->progress_ns = qp->resend_ns = soft_now_ns(); /* the peer lives */
    qp->tries = 0;
    qp->resume_ns = qp->progress_ns + RNR_NS;
    rewind_to_unacknowledged(qp);
}

void soft_take_answer(struct soft_qp *qp, const struct soft_packet *packet)
{
    uint32_t psn = qp->una_psn + (uint32_t)soft_psn_distance(qp->una_psn, packet->psn);
    if (qp->qp.state != IBV_QPS_RTS || qp->una_psn == qp->sent_psn)
        return;
    if (packet->syndrome < SOFT_RNR) {
        advance(qp, psn + 1);
    } else {
        advance(qp, psn);
        if (qp->una_psn != psn || psn == qp->sent_psn)
            return; /* about packets that are settled by now */
        if (packet->syndrome < SOFT_NAK_SEQUENCE) {
            wait_for_receive(qp);
        } else if (packet->syndrome == SOFT_NAK_SEQUENCE) {
            qp->device->counters.packet_seq_err++;
            note_loss(qp);
            rewind_to_unacknowledged(qp);
        } else {
            soft_fail(qp, packet->syndrome == SOFT_NAK_ACCESS ? IBV_WC_REM_ACCESS_ERR : IBV_WC_REM_INV_REQ_ERR);
        }
    }
    soft_transmit(qp);
}

/* Time alone is no proof on a busy machine, where this process may not have run meanwhile: it has tried, too. */
static bool is_lost(const struct soft_qp *qp, uint64_t now_ns)
{
    uint64_t patience_ns = patience_of(qp);
    uint32_t enough = qp->attributes.retry_cnt < ENOUGH_TRIES ? qp->attributes.retry_cnt : ENOUGH_TRIES;
    return qp->una_psn != qp->sent_psn && patience_ns && now_ns - qp->progress_ns > patience_ns && qp->tries >= enough;
}

void soft_tick(struct soft_qp *qp, uint64_t now_ns)
{
    if (qp->qp.state != IBV_QPS_RTS)
        return;
    if (is_lost(qp, now_ns)) {
        soft_fail(qp, IBV_WC_RETRY_EXC_ERR);
        return;
    }
    if (qp->una_psn != qp->sent_psn && !qp->resume_ns && now_ns - qp->resend_ns > qp->backoff_ns) {
        qp->device->counters.timeouts++;
        qp->tries++;
        qp->resend_ns = now_ns;
        qp->backoff_ns = qp->backoff_ns * 2 < LONGEST_RESEND_NS ? qp->backoff_ns * 2 : LONGEST_RESEND_NS;
        note_loss(qp);
        rewind_to_unacknowledged(qp);
    }
    soft_transmit(qp);
}
