/* Steps of sampled transfers. NCCL keeps up to eight of a transfer open, so their waits overlap: time is charged to the
 * oldest unfinished one alone, whose wait is what holds the transfer up. */
#include "plugin.h"

enum { FREE, OPEN, DONE };

/* Where a wait's time goes: gpu, peer, wire, flush. */
static const uint8_t CHARGED_TO[WIRE_WAITS] = {
    [WIRE_WAIT_GPU] = 0,  [WIRE_WAIT_PEER] = 1,  [WIRE_WAIT_WIRE] = 2,
    [WIRE_WAIT_RECV] = 1, [WIRE_WAIT_FLUSH] = 3, [WIRE_WAIT_RECV_GPU] = 0,
};

static struct wire_open_step *place_of(struct wire_transfer *transfer, uint32_t step)
{
    return &transfer->ahead[step % WIRE_STEPS_AHEAD];
}

static bool is_head(const struct wire_transfer *transfer, const struct wire_open_step *step)
{
    return LOAD(step->state) == OPEN && LOAD(step->step) == LOAD(transfer->head_step);
}

static void show_wait(struct wire_transfer *transfer, uint8_t wait, uint64_t now)
{
    STORE(transfer->wait, (uint64_t)wait << 56 | wire_since(now));
}

void steps_settle(struct wire_transfer *transfer, uint64_t now)
{
    const struct wire_open_step *head = place_of(transfer, LOAD(transfer->head_step));
    const uint8_t wait = LOAD(head->wait);
    const uint64_t since = LOAD(transfer->charged_ticks);

    if (is_head(transfer, head) && wait > WIRE_WAIT_UNKNOWN && wait < WIRE_WAITS && now > since)
        STORE(transfer->wait_ticks[CHARGED_TO[wait]], LOAD(transfer->wait_ticks[CHARGED_TO[wait]]) + (now - since));
    STORE(transfer->charged_ticks, now);
}

/* The oldest step still open holds the transfer up from now on; when there is none, whatever comes next. */
static void next_head(struct wire_transfer *transfer, uint64_t now)
{
    struct wire_open_step *head = place_of(transfer, LOAD(transfer->head_step) + 1);

    if (LOAD(head->state) != OPEN || LOAD(head->step) != LOAD(transfer->head_step) + 1) {
        head = NULL;
        for (int i = 0; i < WIRE_STEPS_AHEAD; i++) {
            struct wire_open_step *step = &transfer->ahead[i];

            if (LOAD(step->state) == OPEN && (head == NULL || LOAD(step->step) < LOAD(head->step)))
                head = step;
        }
    }
    if (head != NULL)
        STORE(transfer->head_step, LOAD(head->step));
    show_wait(transfer, head == NULL ? (uint8_t)WIRE_WAIT_UNKNOWN : LOAD(head->wait), now);
}

/* A step may begin again without having ended (the receive found no room yet): it keeps the time of its first try. */
uint64_t step_begin(uint64_t now, uint64_t parent, int32_t number)
{
    struct wire_transfer *transfer = transfer_of(parent);
    struct wire_open_step *step;
    const uint32_t place = (uint32_t)number % WIRE_STEPS_AHEAD;

    if (transfer == NULL || number < 0)
        return 0;
    step = place_of(transfer, place);
    if (LOAD(step->state) != OPEN || LOAD(step->step) != (uint32_t)number) {
        const struct wire_open_step *head = place_of(transfer, LOAD(transfer->head_step));

        steps_settle(transfer, now);
        for (int i = 1; i < WIRE_MARKS; i++)
            STORE(step->marks[i], 0);
        STORE(step->marks[0], now);
        STORE(step->bytes, 0);
        STORE(step->wait, (uint8_t)WIRE_WAIT_UNKNOWN);
        STORE(step->step, (uint32_t)number);
        STORE(step->state, (uint8_t)OPEN);
        if (!is_head(transfer, head))
            STORE(transfer->head_step, (uint32_t)number);
    }
    STORE(transfer->flags, (uint8_t)(LOAD(transfer->flags) | WIRE_FLAG_STEPS));
    return handle_of(WIRE_HANDLE_STEP, handle_generation(parent), handle_slot(parent))
           | UINT64_C(1) << WIRE_SAMPLED_SHIFT | (uint64_t)place << WIRE_STEP_SHIFT;
}

struct meaning {
    uint8_t wait;
    uint8_t mark;       /* which moment it is; 0: none that is kept */
    bool has_bytes;     /* NCCL knows the size of the transfer from here on */
};

static struct meaning meaning_of(int state)
{
    switch (state) {
    case ABI_SEND_GPU_WAIT: return (struct meaning){WIRE_WAIT_GPU, 0, false};
    case ABI_SEND_PEER_WAIT: return (struct meaning){WIRE_WAIT_PEER, 1, false};
    case ABI_SEND_WAIT: return (struct meaning){WIRE_WAIT_WIRE, 2, true};
    case ABI_RECV_WAIT: return (struct meaning){WIRE_WAIT_RECV, 0, false};
    case ABI_RECV_FLUSH_WAIT: return (struct meaning){WIRE_WAIT_FLUSH, 1, true};
    case ABI_RECV_GPU_WAIT: return (struct meaning){WIRE_WAIT_RECV_GPU, 2, false};
    default: return (struct meaning){WIRE_WAIT_UNKNOWN, 0, false};
    }
}

static struct wire_open_step *step_of(struct wire_transfer *transfer, uint64_t handle)
{
    struct wire_open_step *step =
        transfer == NULL ? NULL : &transfer->ahead[handle >> WIRE_STEP_SHIFT & (WIRE_STEPS_AHEAD - 1)];

    return step != NULL && LOAD(step->state) == OPEN ? step : NULL;
}

void step_enters(uint64_t now, uint64_t handle, int state, uint64_t bytes)
{
    struct wire_transfer *transfer = transfer_of(handle);
    struct wire_open_step *step = step_of(transfer, handle);
    const struct meaning meaning = meaning_of(state);

    if (step == NULL || meaning.wait == WIRE_WAIT_UNKNOWN || meaning.wait == LOAD(step->wait))
        return; /* waiting for the peer is reported again on every try */
    if (is_head(transfer, step)) {
        steps_settle(transfer, now);
        show_wait(transfer, meaning.wait, now);
    }
    STORE(step->wait, meaning.wait);
    if (meaning.mark != 0 && LOAD(step->marks[meaning.mark]) == 0)
        STORE(step->marks[meaning.mark], now);
    if (meaning.has_bytes && LOAD(step->bytes) == 0) {
        STORE(step->bytes, bytes);
        STORE(transfer->bytes, LOAD(transfer->bytes) + bytes);
    }
}

static void report(struct producer *producer, const struct wire_transfer *transfer, const struct wire_open_step *step)
{
    const uint64_t posted = LOAD(step->marks[0]);
    uint32_t stamp;
    struct wire_record *record = record_begin(producer, &stamp);

    if (record == NULL)
        return;
    record->kind = WIRE_STEP_CLOSED;
    record->flags = LOAD(transfer->flags);
    record->comm = LOAD(transfer->comm);
    record->step = (struct wire_step_closed){
        .operation = LOAD(transfer->operation),
        .posted_ticks = posted,
        .bytes = LOAD(step->bytes),
        .step = LOAD(step->step),
        .peer = LOAD(transfer->peer),
        .channel = LOAD(transfer->channel),
    };
    for (int i = 1; i < WIRE_MARKS; i++) {
        const uint64_t mark = LOAD(step->marks[i]);

        record->step.marks[i - 1] = mark == 0 ? WIRE_BUSY : duration_pack(mark - posted);
    }
    record_end(producer, record, stamp);
}

void step_end(struct producer *producer, uint64_t now, uint64_t handle)
{
    struct wire_transfer *transfer = transfer_of(handle);
    struct wire_open_step *step = step_of(transfer, handle);
    const bool head = step != NULL && is_head(transfer, step);

    if (step == NULL)
        return;
    if (head)
        steps_settle(transfer, now);
    STORE(step->marks[WIRE_MARKS - 1], now);
    report(producer, transfer, step);
    STORE(step->state, (uint8_t)DONE);
    STORE(transfer->done_steps, LOAD(transfer->done_steps) + 1);
    if (head)
        next_head(transfer, now);
}
