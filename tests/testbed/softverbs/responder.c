/* The receiving side of a queue pair: checks what comes in as a NIC would, puts it where it belongs, and answers. */
#include "softverbs.h"
#include "wire.h"

#include <string.h>

enum { RNR_TIMER = 12, ORDERED_BYTES = 256 }; /* RNR_TIMER: 0.64 ms, what NCCL and rdma-core's examples ask for */

static void answer(struct soft_qp *qp, uint8_t syndrome, uint32_t psn)
{
    uint8_t bytes[SOFT_HEADER_BYTES + SOFT_ICRC_BYTES] = {0};
    struct soft_packet packet = {.opcode = SOFT_ACKNOWLEDGE, .syndrome = syndrome, .psn = psn,
                                 .destination = qp->attributes.dest_qp_num};
    size_t length = soft_encode(&packet, bytes);
    soft_put(qp, bytes, length + SOFT_ICRC_BYTES);
}

/* Says no to a packet; everything after it is passed over until it comes again. */
static void refuse(struct soft_qp *qp, uint8_t syndrome)
{
    qp->has_refused = true;
    answer(qp, syndrome, qp->expected_psn);
}

/* What cannot be put right by sending again ends the queue pair on both sides. */
static void refuse_for_good(struct soft_qp *qp, uint8_t syndrome, enum ibv_event_type event)
{
    answer(qp, syndrome, qp->expected_psn);
    qp->device->counters.access_errors++;
    soft_fail(qp, IBV_WC_WR_FLUSH_ERR);
    soft_raise((struct soft_context *)qp->qp.context, event, &qp->qp);
}

/* Small writes appear word by word from their start, so that who polls the end of a record sees all before it: NCCL
 * waits for the last word of a slot. */
static void copy_in_order(uint8_t *to, const uint8_t *from, size_t bytes)
{
    if (bytes > ORDERED_BYTES || (uintptr_t)to % 8 || bytes % 8) {
        memcpy(to, from, bytes);
    } else {
        for (size_t at = 0; at < bytes; at += 8) {
            uint64_t word;
            memcpy(&word, from + at, sizeof word);
            __atomic_store_n((uint64_t *)(void *)(to + at), word, __ATOMIC_RELEASE);
        }
    }
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static bool write_memory(struct soft_qp *qp, const struct soft_packet *packet)
{
    if (soft_is_first(packet)) {
        qp->write_at = packet->address;
        qp->write_key = packet->rkey;
        qp->message_bytes = qp->write_left = packet->length;
    }
    if (packet->payload_bytes > qp->write_left || !(qp->attributes.qp_access_flags & IBV_ACCESS_REMOTE_WRITE))
        return false;
    if (qp->write_left == 0)
        return true; /* a write of nothing needs no key */
    uint8_t *to = soft_find(qp->qp.pd, qp->write_key, qp->write_at, qp->write_left, IBV_ACCESS_REMOTE_WRITE);
    if (to == NULL)
        return false;
    copy_in_order(to, packet->payload, packet->payload_bytes);
    qp->write_at += packet->payload_bytes;
    qp->write_left -= (uint32_t)packet->payload_bytes;
    return true;
}

/* Puts a part of a message into the buffers of a receive; returns false where it is too much or not allowed. */
static bool scatter(struct soft_qp *qp, const struct soft_receive *receive, const uint8_t *from, uint32_t bytes)
{
    uint32_t begin = qp->message_bytes;
    for (int i = 0; i < receive->n_sges && bytes; i++) {
        const struct ibv_sge *sge = &receive->sges[i];
        if (begin >= sge->length) {
            begin -= sge->length;
            continue;
        }
        uint32_t part = sge->length - begin < bytes ? sge->length - begin : bytes;
        uint8_t *to = soft_find(qp->qp.pd, sge->lkey, sge->addr + begin, part, IBV_ACCESS_LOCAL_WRITE);
        if (to == NULL)
            return false;
        memcpy(to, from, part);
        from += part;
        bytes -= part;
        begin = 0;
    }
    return bytes == 0;
}

static const struct soft_receive *next_receive(const struct soft_qp *qp)
{
    bool is_there = qp->first_receive != qp->end_receive;
    return is_there ? &qp->receives[qp->first_receive % qp->n_receives] : NULL;
}

static void complete_receive(struct soft_qp *qp, const struct soft_packet *packet, enum ibv_wc_status status)
{
    struct ibv_wc completion;
    enum ibv_wc_opcode opcode = soft_is_write(packet) ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
    soft_fill(&completion, qp, next_receive(qp)->wr_id, status, opcode, qp->message_bytes);
    if (soft_has_imm(packet)) {
        completion.wc_flags = IBV_WC_WITH_IMM;
        completion.imm_data = packet->imm;
    }
    qp->first_receive++;
    soft_complete(qp->qp.recv_cq, &completion);
}

static bool take_send(struct soft_qp *qp, const struct soft_packet *packet)
{
    if (soft_is_first(packet))
        qp->message_bytes = 0;
    if (!scatter(qp, next_receive(qp), packet->payload, (uint32_t)packet->payload_bytes)) {
        complete_receive(qp, packet, IBV_WC_LOC_LEN_ERR);
        refuse_for_good(qp, SOFT_NAK_INVALID, IBV_EVENT_QP_REQ_ERR);
        return false;
    }
    qp->message_bytes += (uint32_t)packet->payload_bytes;
    return true;
}

static bool take_write(struct soft_qp *qp, const struct soft_packet *packet)
{
    if (write_memory(qp, packet))
        return true;
    refuse_for_good(qp, SOFT_NAK_ACCESS, IBV_EVENT_QP_ACCESS_ERR);
    return false;
}

static void take_expected(struct soft_qp *qp, const struct soft_packet *packet)
{
    bool uses_receive = !soft_is_write(packet) || soft_has_imm(packet);
    qp->has_refused = false;
    if (uses_receive && next_receive(qp) == NULL) {
        qp->device->counters.rnr_nak_sent++;
        refuse(qp, SOFT_RNR | RNR_TIMER);
        return;
    }
    if (!(soft_is_write(packet) ? take_write(qp, packet) : take_send(qp, packet)))
        return;
    qp->expected_psn++;
    if (uses_receive && soft_is_last(packet))
        complete_receive(qp, packet, IBV_WC_SUCCESS);
    if (packet->wants_ack)
        answer(qp, SOFT_ACK, qp->expected_psn - 1);
}

void soft_take_request(struct soft_qp *qp, const struct soft_packet *packet)
{
    int32_t ahead = soft_psn_distance(qp->expected_psn, packet->psn);
    if (qp->qp.state != IBV_QPS_RTR && qp->qp.state != IBV_QPS_RTS)
        return;
    if (ahead == 0) {
        take_expected(qp, packet);
    } else if (ahead < 0) {
        answer(qp, SOFT_ACK, qp->expected_psn - 1); /* our answer was lost */
    } else if (!qp->has_refused) {
        qp->device->counters.out_of_sequence++;
        refuse(qp, SOFT_NAK_SEQUENCE);
    }
}
