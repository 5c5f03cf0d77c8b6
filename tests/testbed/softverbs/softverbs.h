/* What the files of the stand-in share: a libibverbs.so.1 in user space, whose RC queue pairs talk RoCE v2 packets over
 * UDP sockets. One lock, soft_lock, guards all of it: a testbed wants to be right before it is fast. Functions without
 * an ibv_ in their name are called with that lock held, unless they say otherwise. */
#ifndef LOCKSTEP_SOFTVERBS_H
#define LOCKSTEP_SOFTVERBS_H

#include <infiniband/verbs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The header makes these three names macros for programs; here they are functions. */
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#define SOFT_EXPORT __attribute__((visibility("default")))

enum {
    SOFT_ROCE_PORT = 4791,
    SOFT_DEVICES = 16,
    SOFT_QUEUE_PAIRS = 1 << 14,
    SOFT_REGIONS = 1 << 16,
    SOFT_SGES = 4,
    SOFT_INLINE_BYTES = 256,
    SOFT_PAYLOAD_BYTES = 4096, /* the largest MTU of InfiniBand */
    SOFT_WINDOW = 128,         /* packets of a queue pair on their way at most */
    SOFT_FIRST_QPN = 0x11,
};

/* --- one per network interface; device.c --- */

struct soft_counters {
    uint64_t tx_bytes, rx_bytes, tx_packets, rx_packets;
    uint64_t timeouts, packet_seq_err, out_of_sequence, rnr_nak_sent, access_errors, discards;
};

struct soft_device {
    struct ibv_device device; /* first: programs hold a pointer to it */
    char interface[IF_NAMESIZE];
    struct in_addr address;
    int mtu, index, listener; /* listener: the socket on port 4791, -1 until a queue pair is made */
    bool is_up;
    struct soft_counters counters;
};

struct soft_context {
    struct ibv_context context;
    struct soft_device *device;
    struct soft_context *next;
    int async_write;
};

extern pthread_mutex_t soft_lock;
extern struct soft_context *soft_contexts;
struct soft_device *soft_devices(int *count);
void soft_raise(struct soft_context *context, enum ibv_event_type type, void *element);
/* Tell all contexts when an interface has lost or found its link. */
void soft_watch_links(void);

/* --- memory.c --- */

/* Where `bytes` at `address` lie, or NULL when the key, the bounds or the access do not allow it. */
uint8_t *soft_find(struct ibv_pd *pd, uint32_t key, uint64_t address, uint64_t bytes, unsigned access);

/* --- completion.c --- */

void soft_complete(struct ibv_cq *queue, const struct ibv_wc *completion);
int soft_poll_cq(struct ibv_cq *queue, int most, struct ibv_wc *completions); /* without the lock */
int soft_req_notify_cq(struct ibv_cq *queue, int solicited_only);             /* without the lock */

/* --- queue_pair.c --- */

struct soft_send {
    uint64_t wr_id, remote_address;
    uint32_t rkey, imm, length, first_psn, packets; /* psn: not cut to 24 bits inside */
    enum ibv_wr_opcode opcode;
    bool is_signaled, is_inline;
    int n_sges;
    struct ibv_sge sges[SOFT_SGES];
    uint8_t inlined[SOFT_INLINE_BYTES];
};

struct soft_receive {
    uint64_t wr_id;
    int n_sges;
    struct ibv_sge sges[SOFT_SGES];
};

/* A queue pair's source port: shared by those of one device that have the same. */
struct soft_source {
    struct soft_source *next;
    struct in_addr address;
    uint16_t wanted;
    int fd, users;
};

struct soft_qp {
    struct ibv_qp qp;
    struct soft_device *device;
    struct soft_source *source;
    struct sockaddr_in peer;
    struct ibv_qp_attr attributes;
    struct ibv_qp_cap cap;
    bool signals_all;
    uint32_t mtu;
    /* requester: sends[head..tail), of which `current` holds the packet that goes next */
    struct soft_send *sends;
    uint32_t n_sends, head, tail, current;
    uint32_t una_psn, next_psn, sent_psn, post_psn; /* first not acknowledged, next to go, end of sent, end of posted */
    uint32_t window, rnr_tries, tries;
    uint64_t progress_ns, resend_ns, resume_ns; /* last answer, last time all was sent again, until when RNR holds us */
    uint64_t backoff_ns;
    /* responder */
    struct soft_receive *receives;
    uint32_t n_receives, first_receive, end_receive;
    uint32_t expected_psn, message_bytes; /* of the message that is coming in */
    uint64_t write_at;
    uint32_t write_left, write_key;
    bool has_refused; /* and waits for the packet that it asked for */
};

struct soft_qp *soft_qp_of(uint32_t number);
/* Everything posted completes: the oldest send with `first`, all else as flushed. */
void soft_fail(struct soft_qp *qp, enum ibv_wc_status first);
void soft_fill(struct ibv_wc *completion, const struct soft_qp *qp, uint64_t wr_id, enum ibv_wc_status status,
               enum ibv_wc_opcode opcode, uint32_t bytes);

/* --- requester.c --- */

struct soft_packet;
void soft_transmit(struct soft_qp *qp);
void soft_take_answer(struct soft_qp *qp, const struct soft_packet *packet);
void soft_tick(struct soft_qp *qp, uint64_t now_ns);

/* --- responder.c --- */

void soft_take_request(struct soft_qp *qp, const struct soft_packet *packet);

/* --- engine.c --- */

uint64_t soft_now_ns(void);
/* Start the thread that receives and keeps time; open a device's port 4791. */
bool soft_start(void);
bool soft_listen(struct soft_device *device);
/* Take in what has arrived, and do what is due; never waits. */
void soft_work(void);
/* Wait for a packet, but not for long; without the lock. */
void soft_nap(unsigned most_us);
struct soft_source *soft_take_source(struct soft_device *device, uint16_t port);
void soft_drop_source(struct soft_source *source);
/* Send one packet; false where the socket has no room now. */
bool soft_put(struct soft_qp *qp, const uint8_t *bytes, size_t length);

/* --- sysfs.c --- */

/* Where the tree is, as LOCKSTEP_SOFTVERBS_SYSFS says; NULL: none is kept. */
const char *soft_sysfs(void);
void soft_write_device(struct soft_device *device);
void soft_write_counters(struct soft_device *device);
void soft_write_state(struct soft_device *device);

#endif
