/* exchange DEVICE serve | exchange DEVICE ADDRESS: two verbs programs that check what a NIC promises, as NCCL would use it. Every
 * case ends with a line `NAME ok`; what does not hold ends the program with a line that says so.
 *
 * Both sides make QUEUE_PAIRS queue pairs, tell each other about them over TCP, and play the cases in the same order.
 * `lost` comes last: the serving side leaves without a word, and the other must be told IBV_WC_RETRY_EXC_ERR. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    QUEUE_PAIRS = 4, BYTES = 1 << 20, SLOTS = 16, LIMIT_S = 20, TALK_PORT = 7700,
    TIMEOUT = 16, RETRIES = 2, /* 268 ms, three times */
    REFUSALS = 4,              /* further queue pairs, each of which is spoilt by one case */
    ALL = QUEUE_PAIRS + REFUSALS
};

#define EXPECT(holds)                                                              \
    do {                                                                           \
        if (!(holds)) {                                                            \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #holds); \
            exit(1);                                                               \
        }                                                                          \
    } while (0)

struct told { /* what one side says of itself */
    uint32_t qpns[ALL], data_key, slot_key, sealed_key;
    uint64_t data, slots, sealed;
    union ibv_gid gid;
};

static int talk;
static bool is_server;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *queue;
static struct ibv_qp *pairs[ALL];
static struct ibv_mr *data_region, *slot_region, *sealed_region;
static uint8_t *data, *sealed;
static uint64_t *slots;
static struct told peer;

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void send_all(const void *bytes, size_t length)
{
    EXPECT(send(talk, bytes, length, MSG_NOSIGNAL) == (ssize_t)length);
}

static void receive_all(void *bytes, size_t length)
{
    EXPECT(recv(talk, bytes, length, MSG_WAITALL) == (ssize_t)length);
}

static void meet(void)
{
    uint8_t here = 1, there = 0;
    send_all(&here, 1);
    receive_all(&there, 1);
}

static void connect_to(const char *address)
{
    struct sockaddr_in end = {.sin_family = AF_INET, .sin_port = htons(TALK_PORT)};
    struct timeval limit = {.tv_sec = LIMIT_S};
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (is_server) {
        EXPECT(bind(fd, (struct sockaddr *)&end, sizeof end) == 0 && listen(fd, 1) == 0);
        printf("listening\n");
        fflush(stdout);
        talk = accept(fd, NULL, NULL);
    } else {
        EXPECT(inet_pton(AF_INET, address, &end.sin_addr) == 1);
        EXPECT(connect(fd, (struct sockaddr *)&end, sizeof end) == 0);
        talk = fd;
    }
    EXPECT(talk >= 0 && setsockopt(talk, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
}

static struct ibv_qp *make_pair(void)
{
    struct ibv_qp_init_attr asked = {.send_cq = queue, .recv_cq = queue, .qp_type = IBV_QPT_RC,
                                     .cap = {.max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 2,
                                             .max_recv_sge = 2}};
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    struct ibv_qp *made = ibv_create_qp(pd, &asked);
    EXPECT(made != NULL);
    EXPECT(ibv_modify_qp(made, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    return made;
}

static void join_pair(struct ibv_qp *pair, uint32_t number, enum ibv_mtu mtu)
{
    struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = number, .rq_psn = 0xfffff0,
                              .min_rnr_timer = 12,
                              .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer.gid, .hop_limit = 64}}};
    struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = TIMEOUT, .retry_cnt = RETRIES, .rnr_retry = 7,
                              .sq_psn = 0xfffff0}; /* so that the numbers go round */
    EXPECT(ibv_modify_qp(pair, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    EXPECT(ibv_modify_qp(pair, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                         IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static void open_device(const char *name)
{
    int count, found = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    while (found < count && strcmp(ibv_get_device_name(list[found]), name) != 0)
        found++;
    EXPECT(found < count);
    context = ibv_open_device(list[found]);
    ibv_free_device_list(list);
    EXPECT(context != NULL);
}

static void open_all(void)
{
    struct ibv_port_attr port;
    struct told mine = {0};
    EXPECT( ibv_query_port(context, 1, &port) == 0 && port.state == IBV_PORT_ACTIVE);
    pd = ibv_alloc_pd(context);
    queue = ibv_create_cq(context, 256, NULL, NULL, 0);
    data = aligned_alloc(4096, BYTES);
    sealed = aligned_alloc(4096, 4096);
    slots = aligned_alloc(4096, 4096);
    EXPECT(pd && queue && data && sealed && slots);
    memset(slots, 0, 4096);
    data_region = ibv_reg_mr(pd, data, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    slot_region = ibv_reg_mr(pd, slots, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    sealed_region = ibv_reg_mr(pd, sealed, 4096, IBV_ACCESS_LOCAL_WRITE);
    EXPECT(data_region && slot_region && sealed_region);
    mine.data_key = data_region->rkey, mine.data = (uintptr_t)data;
    mine.slot_key = slot_region->rkey, mine.slots = (uintptr_t)slots;
    mine.sealed_key = sealed_region->rkey, mine.sealed = (uintptr_t)sealed;
    EXPECT(ibv_query_gid(context, 1, 0, &mine.gid) == 0);
    for (int i = 0; i < ALL; i++) {
        pairs[i] = make_pair();
        mine.qpns[i] = pairs[i]->qp_num;
    }
    send_all(&mine, sizeof mine);
    receive_all(&peer, sizeof peer);
    for (int i = 0; i < ALL; i++)
        join_pair(pairs[i], peer.qpns[i], port.active_mtu);
    meet();
}

static struct ibv_wc wait_for_completion(void)
{
    struct ibv_wc completion;
    uint64_t limit_ms = now_ms() + LIMIT_S * 1000;
    while (ibv_poll_cq(queue, 1, &completion) == 0)
        EXPECT(now_ms() < limit_ms);
    return completion;
}

static void post(int pair, struct ibv_send_wr work, struct ibv_sge sge)
{
    struct ibv_send_wr *bad;
    work.sg_list = &sge;
    work.num_sge = 1;
    EXPECT(ibv_post_send(pairs[pair], &work, &bad) == 0);
}

static struct ibv_send_wr writing(uint64_t wr_id, enum ibv_wr_opcode opcode, uint64_t address, uint32_t key)
{
    struct ibv_send_wr work = {.wr_id = wr_id, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
    work.wr.rdma.remote_addr = address;
    work.wr.rdma.rkey = key;
    return work;
}

static uint8_t pattern(uint32_t round, uint32_t at)
{
    return (uint8_t)(at * 7 + at / 251 + round * 31);
}

/* As NCCL sends: the receiver posts an empty receive and writes a slot of 64 bytes that says "clear to send"; the
 * sender waits for its last word, writes, and the last piece brings its size as immediate data. */
static void receive_rounds(uint32_t rounds, const uint32_t *sizes)
{
    for (uint32_t round = 0; round < rounds; round++) {
        int pair = (int)(round % QUEUE_PAIRS);
        struct ibv_recv_wr empty = {.wr_id = round}, *bad;
        uint64_t slot[8] = {round, sizes[round], 3, 4, 5, round + 1};
        struct ibv_send_wr clear = writing(99, IBV_WR_RDMA_WRITE, peer.slots + 64 * (round % SLOTS), peer.slot_key);
        memset(data, 0, BYTES);
        EXPECT(ibv_post_recv(pairs[pair], &empty, &bad) == 0);
        clear.send_flags |= IBV_SEND_INLINE;
        post(pair, clear, (struct ibv_sge){.addr = (uintptr_t)slot, .length = 64});
        struct ibv_wc done = wait_for_completion();
        if (done.wr_id == 99)
            done = wait_for_completion();
        else
            EXPECT(wait_for_completion().wr_id == 99);
        EXPECT(done.status == IBV_WC_SUCCESS && done.opcode == IBV_WC_RECV_RDMA_WITH_IMM && done.wr_id == round);
        EXPECT(done.wc_flags & IBV_WC_WITH_IMM && ntohl(done.imm_data) == sizes[round]);
        EXPECT(done.qp_num == pairs[pair]->qp_num);
        for (uint32_t at = 0; at < sizes[round]; at++)
            EXPECT(data[at] == pattern(round, at));
        EXPECT(sizes[round] == BYTES || data[sizes[round]] == 0);
    }
}

static void send_rounds(uint32_t rounds, const uint32_t *sizes)
{
    for (uint32_t round = 0; round < rounds; round++) {
        int pair = (int)(round % QUEUE_PAIRS);
        volatile uint64_t *slot = &slots[8 * (round % SLOTS)];
        uint64_t limit_ms = now_ms() + LIMIT_S * 1000;
        struct ibv_wc none;
        while (__atomic_load_n(&slot[5], __ATOMIC_ACQUIRE) != round + 1) {
            EXPECT(now_ms() < limit_ms);
            EXPECT(ibv_poll_cq(queue, 1, &none) == 0);
        }
        EXPECT(slot[0] == round && slot[1] == sizes[round] && slot[4] == 5);
        for (uint32_t at = 0; at < sizes[round]; at++)
            data[at] = pattern(round, at);
        uint32_t half = sizes[round] / 2;
        struct ibv_send_wr first = writing(7, IBV_WR_RDMA_WRITE, peer.data, peer.data_key);
        struct ibv_send_wr last = writing(round, IBV_WR_RDMA_WRITE_WITH_IMM, peer.data + half, peer.data_key);
        first.send_flags = 0;
        last.imm_data = htonl(sizes[round]);
        post(pair, first, (struct ibv_sge){(uintptr_t)data, half, data_region->lkey});
        post(pair, last, (struct ibv_sge){(uintptr_t)data + half, sizes[round] - half, data_region->lkey});
        struct ibv_wc done = wait_for_completion();
        EXPECT(done.status == IBV_WC_SUCCESS && done.opcode == IBV_WC_RDMA_WRITE && done.wr_id == round);
    }
}

static void play_writes(void)
{
    static const uint32_t sizes[] = {8, 1024, 1025, 65536, 0, BYTES, 1, 4097, BYTES, 40000, 16, 700001, 3, BYTES,
                                     5, 262144, 99, BYTES - 1, 2048, 8};
    uint32_t rounds = sizeof sizes / sizeof *sizes;
    if (is_server)
        receive_rounds(rounds, sizes);
    else
        send_rounds(rounds, sizes);
    meet();
    printf("writes ok\n");
}

/* The receive is posted late: the sender is told so and waits, and the message arrives in two pieces of memory. */
static void play_sends(void)
{
    uint32_t length = 5000;
    if (is_server) {
        struct ibv_sge parts[2] = {{(uintptr_t)data, 3000, data_region->lkey},
                                   {(uintptr_t)data + 10000, 3000, data_region->lkey}};
        struct ibv_recv_wr receive = {.wr_id = 5, .sg_list = parts, .num_sge = 2}, *bad;
        poll(NULL, 0, 30);
        EXPECT(ibv_post_recv(pairs[0], &receive, &bad) == 0);
        struct ibv_wc done = wait_for_completion();
        EXPECT(done.status == IBV_WC_SUCCESS && done.opcode == IBV_WC_RECV && done.byte_len == length);
        for (uint32_t at = 0; at < length; at++)
            EXPECT(data[at < 3000 ? at : at + 7000] == pattern(1, at));
    } else {
        for (uint32_t at = 0; at < length; at++)
            data[at] = pattern(1, at);
        struct ibv_send_wr work = {.wr_id = 6, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
        post(0, work, (struct ibv_sge){(uintptr_t)data, length, data_region->lkey});
        struct ibv_wc done = wait_for_completion();
        EXPECT(done.status == IBV_WC_SUCCESS && done.opcode == IBV_WC_SEND && done.wr_id == 6);
    }
    meet();
    printf("sends ok\n");
}

/* Writes a little with this key to this place, and expects the status; a good write after it is flushed. */
static void expect_refusal(int pair, uint64_t address, uint32_t rkey, uint32_t lkey, enum ibv_wc_status status)
{
    struct ibv_sge sge = {(uintptr_t)data, 4000, lkey};
    post(pair, writing(1, IBV_WR_RDMA_WRITE, address, rkey), sge);
    struct ibv_wc done = wait_for_completion();
    EXPECT(done.status == status && done.wr_id == 1 && done.qp_num == pairs[pair]->qp_num);
    EXPECT(pairs[pair]->state == IBV_QPS_ERR);
    sge.lkey = data_region->lkey;
    post(pair, writing(2, IBV_WR_RDMA_WRITE, peer.data, peer.data_key), sge);
    done = wait_for_completion();
    EXPECT(done.status == IBV_WC_WR_FLUSH_ERR && done.wr_id == 2);
}

static void play_keys(void)
{
    struct ibv_async_event event;
    if (is_server) {
        memset(data, 0x55, BYTES);
        memset(sealed, 0x55, 4096);
    }
    meet();
    if (!is_server) {
        uint32_t mine = data_region->lkey;
        expect_refusal(QUEUE_PAIRS, peer.data, peer.data_key ^ 1, mine, IBV_WC_REM_ACCESS_ERR);
        expect_refusal(QUEUE_PAIRS + 1, peer.data + BYTES - 3999, peer.data_key, mine, IBV_WC_REM_ACCESS_ERR);
        expect_refusal(QUEUE_PAIRS + 2, peer.sealed, peer.sealed_key, mine, IBV_WC_REM_ACCESS_ERR);
        expect_refusal(QUEUE_PAIRS + 3, peer.data, peer.data_key, mine ^ 1, IBV_WC_LOC_PROT_ERR);
    }
    meet();
    for (int i = 0; is_server && i < 3; i++) {
        EXPECT(ibv_get_async_event(context, &event) == 0 && event.event_type == IBV_EVENT_QP_ACCESS_ERR);
        EXPECT(event.element.qp == pairs[QUEUE_PAIRS + i]);
        ibv_ack_async_event(&event);
    }
    for (uint32_t at = 0; is_server && at < BYTES; at++)
        EXPECT(data[at] == 0x55 && sealed[at % 4096] == 0x55);
    printf("keys ok\n");
}

static void play_loss(void)
{
    if (is_server) {
        ibv_close_device(context); /* which writes down what was counted */
        _exit(0);
    }
    char end;
    EXPECT(recv(talk, &end, 1, 0) == 0); /* it has gone */
    uint64_t began_ms = now_ms();
    struct ibv_sge sge = {(uintptr_t)data, 100, data_region->lkey};
    post(1, writing(11, IBV_WR_RDMA_WRITE, peer.data, peer.data_key), sge);
    struct ibv_wc done = wait_for_completion();
    EXPECT(done.status == IBV_WC_RETRY_EXC_ERR && done.wr_id == 11);
    printf("lost after %llu ms: %s\n", (unsigned long long)(now_ms() - began_ms), ibv_wc_status_str(done.status));
}

/* exchange DEVICE watch: waits for the link to go and to come back, and says so. */
static int watch_link(void)
{
    struct ibv_async_event event;
    printf("watching\n");
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        EXPECT(ibv_get_async_event(context, &event) == 0 && event.element.port_num == 1);
        printf("%s\n", ibv_event_type_str(event.event_type));
        fflush(stdout);
        ibv_ack_async_event(&event);
    }
    return 0;
}

int main(int count, char **arguments)
{
    EXPECT(count == 3);
    open_device(arguments[1]);
    if (strcmp(arguments[2], "watch") == 0)
        return watch_link();
    is_server = strcmp(arguments[2], "serve") == 0;
    connect_to(arguments[2]);
    open_all();
    play_writes();
    play_sends();
    play_keys();
    fflush(stdout);
    play_loss();
    return 0;
}
