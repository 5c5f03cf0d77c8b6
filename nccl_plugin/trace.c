/* One record per callback, as it came: what level `trace` adds. */
#include "trace.h"

enum { START, STOP, STATE };

static void emit(struct producer *producer, const struct wire_callback *callback, uint32_t comm)
{
    uint32_t stamp;
    struct wire_record *record = record_begin(producer, &stamp);

    if (record == NULL)
        return;
    record->kind = WIRE_CALLBACK;
    record->flags = 0;
    record->comm = (uint16_t)comm;
    record->callback = *callback;
    record_end(producer, record, stamp);
}

static void fill_by_type(struct wire_callback *callback, const struct event *event)
{
    switch (event->type) {
    case ABI_COLL:
    case ABI_COLL_API:
        callback->coll.seq = event->seq;
        callback->coll.count = event->count;
        callback->coll.func = event->func;
        callback->coll.dtype = event->dtype;
        callback->coll.algo = event->algo;
        callback->coll.proto = event->proto;
        callback->coll.channels = event->channels;
        callback->coll.warps = event->warps;
        callback->coll.captured = event->captured;
        break;
    case ABI_P2P:
    case ABI_P2P_API:
        callback->p2p.count = event->count;
        callback->p2p.peer = event->peer;
        callback->p2p.func = event->func;
        callback->p2p.dtype = event->dtype;
        callback->p2p.channels = event->channels;
        callback->p2p.captured = event->captured;
        break;
    case ABI_PROXY_OP:
        callback->transfer.peer = event->peer;
        callback->transfer.steps = event->steps;
        callback->transfer.chunk = event->chunk;
        callback->transfer.pid = event->pid;
        callback->transfer.send = (uint32_t)event->send;
        break;
    default: callback->one.value = event->value; break;
    }
}

void trace_start(struct producer *producer, uint64_t now, const struct event *event, uint32_t comm, uint64_t handle)
{
    struct wire_callback callback = {
        .ticks = now,
        .handle = handle,
        .parent = event->parent,
        .thread = producer->thread,
        .phase = START,
        .type = (uint8_t)__builtin_ctzll(event->type | UINT64_C(1) << 63),
        .channel = event->channel,
    };

    fill_by_type(&callback, event);
    emit(producer, &callback, comm);
}

void trace_stop(struct producer *producer, uint64_t now, uint64_t handle)
{
    const struct wire_callback callback = {.ticks = now, .handle = handle, .thread = producer->thread, .phase = STOP};

    emit(producer, &callback, WIRE_NO_COMM);
}

void trace_state(struct producer *producer, uint64_t now, uint64_t handle, int state, uint64_t argument)
{
    const struct wire_callback callback = {.ticks = now, .handle = handle, .thread = producer->thread, .phase = STATE,
                                           .state = (uint8_t)state, .one.value = argument};

    emit(producer, &callback, WIRE_NO_COMM);
}
