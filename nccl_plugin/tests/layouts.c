/* Descriptors as each version of NCCL's profiler interface lays them out, by numbers read out of NVIDIA's binaries. */
#include "harness.h"

#include <string.h>

enum { ABSENT = -1 };

static const struct field {
    unsigned types;
    size_t member; /* of struct event */
    uint8_t bytes;
    int8_t at[NEWEST_VERSION]; /* v1 first */
} fields[] = {
#define IN(name) offsetof(struct event, name)
    {ABI_COLL, IN(seq), 8, {40, 40, 40, 24, 24, 24, 24}},
    {ABI_COLL, IN(count), 8, {72, 72, 72, 56, 56, 56, 56}},
    {ABI_COLL, IN(root), 4, {80, 80, 80, 64, 64, 64, 64}},
    {ABI_COLL, IN(channels), 1, {104, 104, 96, 80, 80, 80, 80}},
    {ABI_COLL, IN(func), 8, {ABSENT, 48, 48, 32, 32, 32, 32}},
    {ABI_COLL, IN(dtype), 8, {ABSENT, 88, 88, 72, 72, 72, 72}},
    {ABI_COLL, IN(algo), 8, {ABSENT, 112, 104, 88, 88, 88, 88}},
    {ABI_COLL, IN(proto), 8, {ABSENT, 120, 112, 96, 96, 96, 96}},
    {ABI_COLL, IN(group), 8, {ABSENT, ABSENT, ABSENT, ABSENT, 104, 104, 104}},
    {ABI_P2P, IN(func), 8, {ABSENT, 40, 40, 24, 24, 24, 24}},
    {ABI_P2P, IN(dtype), 8, {ABSENT, 56, 56, 40, 40, 40, 40}},
    {ABI_P2P, IN(count), 8, {64, 64, 64, 48, 48, 48, 48}},
    {ABI_P2P, IN(peer), 4, {72, 72, 72, 56, 56, 56, 56}},
    {ABI_P2P, IN(channels), 1, {ABSENT, ABSENT, ABSENT, 60, 60, 60, 60}},
    {ABI_P2P, IN(group), 8, {ABSENT, ABSENT, ABSENT, ABSENT, 64, 64, 64}},
    {ABI_PROXY_OP, IN(pid), 4, {24, 24, 24, 24, 24, 24, 24}},
    {ABI_PROXY_OP, IN(channel), 1, {28, 28, 28, 28, 28, 28, 28}},
    {ABI_PROXY_OP, IN(peer), 4, {32, 32, 32, 32, 32, 32, 32}},
    {ABI_PROXY_OP, IN(steps), 4, {36, 36, 36, 36, 36, 36, 36}},
    {ABI_PROXY_OP, IN(chunk), 4, {40, 40, 40, 40, 40, 40, 40}},
    {ABI_PROXY_OP, IN(send), 4, {44, 44, 44, 44, 44, 44, 44}},
    {ABI_PROXY_STEP, IN(step), 4, {24, 24, 24, 24, 24, 24, 24}},
    {ABI_KERNEL_CHANNEL | ABI_KERNEL_PHASE, IN(channel), 1, {ABSENT, ABSENT, 24, 24, 24, 24, 24}},
    {ABI_KERNEL_CHANNEL, IN(gpu_ns), 8, {ABSENT, ABSENT, ABSENT, 32, 32, 32, 32}},
    {ABI_KERNEL_PHASE, IN(gpu_ns), 8, {ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, 40}},
    {ABI_GROUP_API, IN(captured), 1, {ABSENT, ABSENT, ABSENT, ABSENT, 24, 24, 24}},
    {ABI_COLL_API | ABI_P2P_API, IN(func), 8, {ABSENT, ABSENT, ABSENT, ABSENT, 24, 24, 24}},
    {ABI_COLL_API | ABI_P2P_API, IN(count), 8, {ABSENT, ABSENT, ABSENT, ABSENT, 32, 32, 32}},
    {ABI_COLL_API | ABI_P2P_API, IN(dtype), 8, {ABSENT, ABSENT, ABSENT, ABSENT, 40, 40, 40}},
    {ABI_COLL_API, IN(root), 4, {ABSENT, ABSENT, ABSENT, ABSENT, 48, 48, 48}},
    {ABI_COLL_API, IN(captured), 1, {ABSENT, ABSENT, ABSENT, ABSENT, 64, 64, 64}},
    {ABI_P2P_API, IN(captured), 1, {ABSENT, ABSENT, ABSENT, ABSENT, 56, 56, 56}},
    {ABI_CE_COLL, IN(seq), 8, {ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, 24, 24}},
    {ABI_CE_COLL, IN(func), 8, {ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, 32, 32}},
    {ABI_CE_COLL, IN(count), 8, {ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, 56, 56}},
    {ABI_CE_COLL, IN(dtype), 8, {ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, 72, 72}},
#undef IN
};

/* v1 numbers what the others spell. */
static const struct spelled {
    unsigned type;
    size_t member;
    uint8_t at;
    const char *words[12];
} spelled[] = {
    {ABI_COLL, offsetof(struct event, func), 48, {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"}},
    {ABI_P2P, offsetof(struct event, func), 40, {"", "", "", "", "", "", "Send", "Recv"}},
    {ABI_COLL, offsetof(struct event, dtype), 84,
     {"ncclInt8", "ncclUint8", "ncclInt32", "ncclUint32", "ncclInt64", "ncclUint64", "ncclFloat16", "ncclFloat32",
      "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"}},
    {ABI_P2P, offsetof(struct event, dtype), 56,
     {"ncclInt8", "ncclUint8", "ncclInt32", "ncclUint32", "ncclInt64", "ncclUint64", "ncclFloat16", "ncclFloat32"}},
    {ABI_COLL, offsetof(struct event, algo), 106,
     {"TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"}},
    {ABI_COLL, offsetof(struct event, proto), 107, {"LL", "LL128", "SIMPLE"}},
};

size_t descriptor_bytes(int version)
{
    static const size_t bytes[] = {0, 120, 128, 120, 104, 112, 112, 136};

    return bytes[version];
}

static uint8_t number_of(const struct spelled *row, const char *word)
{
    for (uint8_t i = 0; word != NULL && i < 12; i++)
        if (row->words[i] != NULL && strcmp(row->words[i], word) == 0)
            return i;
    return 0xff; /* a word that v1 has no number for */
}

static void write_numbers_of_v1(unsigned char *descriptor, const struct event *event)
{
    for (size_t i = 0; i < sizeof spelled / sizeof *spelled; i++) {
        const char *word;

        if (spelled[i].type != event->type)
            continue;
        memcpy(&word, (const char *)event + spelled[i].member, sizeof word);
        descriptor[spelled[i].at] = number_of(&spelled[i], word);
    }
}

static void write_identity(int version, unsigned char *descriptor, const struct comm *comm, const struct event *event)
{
    if (version < 5)
        descriptor[0] = (unsigned char)event->type;
    else
        memcpy(descriptor, &event->type, 8);
    memcpy(descriptor + 8, &event->parent, 8);
    memcpy(descriptor + 16, &comm->rank, 4);
    if (version < 4 && (event->type == ABI_COLL || event->type == ABI_P2P)) {
        static const char *const name = "world";

        memcpy(descriptor + 24, &name, 8);
        memcpy(descriptor + 32, &comm->id, 8);
    }
}

/* Fills the rest with what NCCL's shims leave there: their own stack. */
void write_descriptor(int version, unsigned char *descriptor, const struct comm *comm, const struct event *event)
{
    memset(descriptor, 0xa5, descriptor_bytes(version));
    write_identity(version, descriptor, comm, event);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const int at = fields[i].at[version - 1];

        if ((fields[i].types & event->type) != 0 && at != ABSENT)
            memcpy(descriptor + at, (const char *)event + fields[i].member, fields[i].bytes);
    }
    if (version == 1)
        write_numbers_of_v1(descriptor, event);
}
