/* Throws random sequences of callbacks at the plugin from several threads, on all versions at once, sensible and not.
 *
 * usage: fuzz PATH_OF_THE_PLUGIN SECONDS SEED; the same seed gives every thread the same choices again.
 * Ends with 1 when a callback fails, or when what always holds of the ring file does not.
 */
#define _POSIX_C_SOURCE 200809L

#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 6, KEPT = 256, CONTEXTS = 32 };

/* Shared by all threads, so that each uses what others began; read and written whole. */
static void *handles[KEPT];
static void *contexts[CONTEXTS];
static const struct lockstep_profiler *tables[NEWEST_VERSION + 1];
static struct nccl nccls[NEWEST_VERSION + 1];
static struct ringfile file;
static double end_s; /* of this run */

struct player {
    uint64_t random;
    uint64_t calls;
    uint64_t seq;
    unsigned number;
    unsigned char *descriptors[NEWEST_VERSION + 1]; /* not a byte longer than the version's, for the sanitizer */
    unsigned char *arguments;
};

static uint64_t draw(struct player *player)
{
    player->random ^= player->random << 13;
    player->random ^= player->random >> 7;
    player->random ^= player->random << 17;
    return player->random;
}

static uint64_t below(struct player *player, uint64_t limit) { return draw(player) % limit; }

static bool chance(struct player *player, unsigned percent) { return below(player, 100) < percent; }

/* --- what is drawn --- */

static const char *draw_word(struct player *player)
{
    static const char *const words[] = {"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Send", "Recv",
                                        "ncclFloat32", "ncclInt8", "ncclBfloat16", "RING", "TREE", "SIMPLE", "LL128",
                                        "", "Unheard", "ncclFloat32ncclFloat32ncclFloat32ncclFloat32", NULL};

    return words[below(player, sizeof words / sizeof *words)];
}

/* Small ones mostly, and those at which counters turn. */
static uint64_t draw_number(struct player *player)
{
    static const uint64_t odd[] = {0, 7, 8, 9, 255, 256, 4095, 4096, 65535, 65536, INT32_MAX, UINT32_MAX, INT64_MAX,
                                   UINT64_MAX};

    return chance(player, 80) ? below(player, 12)
           : chance(player, 80) ? odd[below(player, sizeof odd / sizeof *odd)]
                                : draw(player);
}

static void *load(void **place) { return __atomic_load_n(place, __ATOMIC_ACQUIRE); }

static void keep(void **place, void *value) { __atomic_store_n(place, value, __ATOMIC_RELEASE); }

/* Mostly one that was given out; else none, one with a bit changed, or any number. */
static void *draw_handle(struct player *player)
{
    const uintptr_t given = (uintptr_t)load(&handles[below(player, KEPT)]);

    return chance(player, 90) ? (void *)given
           : chance(player, 30) ? NULL
           : chance(player, 70) ? (void *)(given ^ UINT64_C(1) << below(player, 64))
                                : (void *)draw(player);
}

static void *draw_context(struct player *player)
{
    const uintptr_t given = (uintptr_t)load(&contexts[below(player, CONTEXTS)]);

    return chance(player, 95) ? (void *)given
           : chance(player, 50) ? (void *)(given ^ UINT64_C(1) << below(player, 64))
                                : (void *)draw(player);
}

static struct event draw_event(struct player *player)
{
    static const unsigned usual[] = {ABI_COLL, ABI_P2P, ABI_PROXY_OP, ABI_PROXY_OP, ABI_PROXY_STEP, ABI_PROXY_STEP,
                                     ABI_PROXY_STEP, ABI_KERNEL_CHANNEL, ABI_COLL_API, ABI_GROUP_API};
    const struct event event = {
        .type = chance(player, 90) ? usual[below(player, 10)] : UINT64_C(1) << below(player, 64),
        .parent = draw_handle(player),
        .group = draw_handle(player),
        .func = draw_word(player),
        .dtype = draw_word(player),
        .algo = draw_word(player),
        .proto = draw_word(player),
        .seq = chance(player, 90) ? player->seq++ : draw_number(player),
        .count = draw_number(player),
        .gpu_ns = draw_number(player),
        .root = (int)draw_number(player),
        .peer = (int)draw_number(player),
        .channels = (int)draw_number(player),
        .channel = (int)draw_number(player),
        .pid = chance(player, 90) ? (int)getpid() : (int)draw_number(player),
        .steps = (int)draw_number(player),
        .chunk = (int)draw_number(player),
        .send = (int)below(player, 3),
        .step = (int)draw_number(player),
        .captured = chance(player, 10),
    };

    return event;
}

/* --- what is done --- */

static int draw_version(struct player *player)
{
    return chance(player, 70) ? NEWEST_VERSION : 1 + (int)below(player, NEWEST_VERSION);
}

static void fuzz_start(struct player *player)
{
    const int version = draw_version(player);
    const struct comm comm = {.nccl = &nccls[version], .id = COMM_ID + below(player, 4), .rank = (int)below(player, 3)};
    const struct event event = draw_event(player);
    void *handle = &handle;

    write_descriptor(version, player->descriptors[version], &comm, &event);
    EQUAL(tables[version]->start(draw_context(player), &handle, player->descriptors[version]), LOCKSTEP_SUCCESS);
    CHECK(handle != &handle);
    if (handle != NULL)
        keep(&handles[below(player, KEPT)], handle);
}

static void fuzz_stop(struct player *player)
{
    EQUAL(tables[draw_version(player)]->stop(draw_handle(player)), LOCKSTEP_SUCCESS);
}

static void fuzz_record(struct player *player)
{
    const int state = chance(player, 95) ? (int)below(player, 34) - 1 : (int)draw_number(player);
    const uint64_t value = draw_number(player);
    const int version = draw_version(player);
    /* v1 to v3 have 16 bytes, v4 to v7 eight: given so that the last one ends where the memory does. */
    unsigned char *arguments = player->arguments + (version < 4 ? 0 : 8);

    memcpy(arguments, &value, sizeof value);
    EQUAL(tables[version]->record(draw_handle(player), state, chance(player, 10) ? NULL : arguments), LOCKSTEP_SUCCESS);
}

static void fuzz_open_or_close(struct player *player)
{
    void **place = &contexts[below(player, CONTEXTS)];

    if (chance(player, 50)) {
        EQUAL(tables[NEWEST_VERSION]->finalize(load(place)), LOCKSTEP_SUCCESS);
    } else {
        const struct comm comm = open_comm(&nccls[draw_version(player)], COMM_ID + below(player, 4), 0, 4);

        keep(place, comm.context);
    }
}

/* One thread alone writes requests, as there is one collector. */
static void fuzz_request(struct player *player)
{
    const struct wire_request request = {
        .stamp = (uint32_t)player->calls | 1,
        .level = chance(player, 90) ? (uint32_t)below(player, WIRE_TRACE + 1) : (uint32_t)draw_number(player),
        .share = chance(player, 90) ? (uint32_t)below(player, 65537) : (uint32_t)draw_number(player),
        .budget_ppm = (uint32_t)draw_number(player),
    };

    write_request(&file, request);
}

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void *play(void *argument)
{
    struct player *player = argument;

    for (; player->calls % 1024 != 0 || now_s() < end_s; player->calls++) {
        const uint64_t what = below(player, 10000);

        if (what < 4000)
            fuzz_start(player);
        else if (what < 6500)
            fuzz_stop(player);
        else if (what < 9990)
            fuzz_record(player);
        else if (what < 9998 || player->number != 0)
            fuzz_open_or_close(player);
        else
            fuzz_request(player);
    }
    return NULL;
}

/* --- from beginning to end --- */

static void prepare(struct player *player, unsigned number, uint64_t seed)
{
    *player = (struct player){.random = (seed + 1) * UINT64_C(0x9E3779B97F4A7C15) + number, .number = number};
    for (int version = OLDEST_VERSION; version <= NEWEST_VERSION; version++)
        CHECK((player->descriptors[version] = malloc(descriptor_bytes(version))) != NULL);
    CHECK((player->arguments = malloc(16)) != NULL);
}

static void release(struct player *player)
{
    for (int version = OLDEST_VERSION; version <= NEWEST_VERSION; version++)
        free(player->descriptors[version]);
    free(player->arguments);
}

static uint64_t fuzz(int seconds, uint64_t seed)
{
    struct player players[THREADS];
    uint64_t calls = 0;

    end_s = now_s() + seconds;
    for (unsigned i = 0; i < THREADS; i++)
        prepare(&players[i], i, seed);
    run_threads(THREADS, play, players, sizeof *players);
    for (unsigned i = 0; i < THREADS; i++) {
        calls += players[i].calls;
        release(&players[i]);
    }
    return calls;
}

static void load_tables(void)
{
    for (int version = OLDEST_VERSION; version <= NEWEST_VERSION; version++) {
        nccls[version] = load_plugin(version);
        tables[version] = nccls[version].table;
    }
}

static void live(int seconds, const char *seed)
{
    setenv("LOCKSTEP_SAMPLE", "0.5", 1);
    setenv("LOCKSTEP_KERNEL", "on", 1);
    setenv("LOCKSTEP_RING_MIB", "4", 1); /* fewer rings than threads, so that some share one */
    load_tables();
    contexts[0] = open_comm(&nccls[NEWEST_VERSION], COMM_ID, 0, 4).context;
    file = read_own_file();
    const uint64_t calls = fuzz(seconds, strtoull(seed, NULL, 10)), records = sum_of_heads(&file);
    check_file(&file);
    CHECK(records > 0 && status_of(&file)->stale > 0);
    close_file(&file);
    printf("fuzz: %llu callbacks with seed %s, %llu records, all held\n", (unsigned long long)calls, seed,
           (unsigned long long)records);
    exit(EXIT_SUCCESS);
}

/* The plugin lives in a child, so that somebody is left to clean up. */
int main(int argc, char **argv)
{
    char directory[PATH_BYTES];
    int status = -1;

    if (argc != 4) {
        fprintf(stderr, "usage: %s PATH_OF_THE_PLUGIN SECONDS SEED\n", argv[0]);
        return 2;
    }
    plugin_path = argv[1];
    make_directory(directory);
    setenv("LOCKSTEP_RING_DIR", directory, 1);
    const pid_t child = fork();
    if (child == 0)
        live(atoi(argv[2]), argv[3]);
    const bool held = child > 0 && waitpid(child, &status, 0) == child && status == 0;
    remove_directory(directory);
    if (!held)
        printf("fuzz: FAILED with seed %s: status 0x%x\n", argv[3], (unsigned)status);
    return held ? EXIT_SUCCESS : EXIT_FAILURE;
}
