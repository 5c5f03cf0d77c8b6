/* Gives every thread a ring of its own for as long as it lives, and writes records into it. */
#define _GNU_SOURCE

#include "plugin.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Asked for by their oldest version, since the linker would ask for that of the machine we build on. */
#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#else
#define OLDEST "GLIBC_2.17"
#endif
__asm__(".symver pthread_key_create, pthread_key_create@" OLDEST);
__asm__(".symver pthread_getspecific, pthread_getspecific@" OLDEST);
__asm__(".symver pthread_setspecific, pthread_setspecific@" OLDEST);

struct producer producers[MOST_RINGS];

static pthread_key_t key;
static int prepared; /* 0 not yet, 1 the key exists, -1 there is none */

/* A thread ends: its ring goes back, with what it holds still readable. */
static void give_back(void *value)
{
    struct producer *producer = value;

    if (producer->number == 0 || producer->session != session.serial)
        return;
    STORE(producer->ring->callbacks, producer->calls);
    STORE(producer->ring->thread, 0);
    __atomic_store_n(&producer->taken, 0, __ATOMIC_RELEASE);
}

static void forget_in_child(void)
{
    pthread_setspecific(key, NULL);
    session_forget();
}

static bool make_key(void)
{
    return pthread_key_create(&key, give_back) == 0 && pthread_atfork(NULL, NULL, forget_in_child) == 0;
}

bool producer_prepare_threads(void)
{
    if (prepared == 0)
        prepared = make_key() ? 1 : -1;
    return prepared == 1;
}

static struct producer *take_free(void)
{
    for (uint32_t i = 1; i < session.rings; i++) {
        uint32_t *taken = &producers[i].taken, vacant = 0;

        if (LOAD(*taken) == 0
            && __atomic_compare_exchange_n(taken, &vacant, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return &producers[i];
    }
    ADD(session.status->shared_threads, 1);
    return &producers[0];
}

struct producer *producer_attach(void)
{
    struct producer *producer = take_free();

    if (producer->number != 0) {
        producer->thread = (uint32_t)syscall(SYS_gettid);
        STORE(producer->ring->taken_ticks, clock_ticks());
        STORE(producer->ring->thread, producer->thread);
    }
    pthread_setspecific(key, producer);
    return producer;
}

struct producer *producer_current(void)
{
    struct producer *producer = pthread_getspecific(key);

    return UNLIKELY(producer == NULL || producer->session != session.serial) ? producer_attach() : producer;
}

void producer_account(struct producer *producer, uint64_t began)
{
    const uint64_t spent = clock_ticks() - began;
    const uint64_t calls = LOAD(producer->sampled_calls) + 1;
    const uint64_t ticks = LOAD(producer->sampled_ticks) + spent;

    if (spent > session.ticks_per_second / 50000) /* 20 us: the scheduler's doing, not ours */
        return;
    STORE(producer->sampled_calls, calls);
    STORE(producer->sampled_ticks, ticks);
    STORE(producer->ring->callbacks, LOAD(producer->calls));
    STORE(producer->ring->sampled_callbacks, calls);
    STORE(producer->ring->sampled_ticks, ticks);
}

/* The shared ring has many writers: a slot in which another one still writes, or which one has overtaken us to, is left
 * alone, and the record is lost. */
struct wire_record *record_claim_shared(struct producer *producer, uint32_t *stamp)
{
    const uint64_t number = ADD(producer->ring->head, 1);
    struct wire_record *record = &producer->records[number % session.ring_records];
    uint32_t before = LOAD(record->stamp);

    *stamp = (uint32_t)(number / session.ring_records + 1);
    if (before < *stamp /* not busy either */
        && __atomic_compare_exchange_n(&record->stamp, &before, WIRE_BUSY, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
        __atomic_thread_fence(__ATOMIC_RELEASE);
        return record;
    }
    ADD(producer->ring->lost, 1);
    return NULL;
}
