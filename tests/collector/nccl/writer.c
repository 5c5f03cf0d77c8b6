/* Writes records at full speed as the plugin's threads do, for a reader to race: writer FILE RECORDS THREADS BURST.
 *
 * One thread has a ring of its own (number 1); several share number 0. Each word of a record follows from its number, so
 * that a record made of two is seen. After a burst of random length the writer rests a moment, so that the reader now
 * catches up and now is overtaken. FILE is a ring file that is already laid out. Prints a line when the ring has been
 * written twice over, waits there for its input, and prints at the end how many records were begun. */
#define _GNU_SOURCE

#include "wire.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 7 };

static struct wire_ring *ring;
static struct wire_record *records;
static uint64_t count, wanted, longest_burst;
static int is_shared;

static void fill(struct wire_record *record, uint64_t number)
{
    uint64_t *words = (uint64_t *)record + 1;

    record->kind = WIRE_STEP_CLOSED; /* no codes in it, which a reader would bring into their bounds */
    for (uint64_t i = 0; i < WORDS; i++)
        __atomic_store_n(&words[i], number * (2 * i + 1), __ATOMIC_RELAXED);
}

static void write_own(uint64_t number)
{
    struct wire_record *record = &records[number % count];

    __atomic_store_n(&record->stamp, WIRE_BUSY, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    fill(record, number);
    __atomic_store_n(&record->stamp, (uint32_t)(number / count + 1), __ATOMIC_RELEASE);
    __atomic_store_n(&ring->head, number + 1, __ATOMIC_RELEASE);
}

/* A slot in which another thread writes, or has written something newer, is left alone: that record is lost. */
static void write_shared(uint64_t number)
{
    struct wire_record *record = &records[number % count];
    const uint32_t stamp = (uint32_t)(number / count + 1);
    uint32_t before = __atomic_load_n(&record->stamp, __ATOMIC_RELAXED);

    if (before >= stamp
        || !__atomic_compare_exchange_n(&record->stamp, &before, WIRE_BUSY, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return;
    __atomic_thread_fence(__ATOMIC_RELEASE);
    fill(record, number);
    __atomic_store_n(&record->stamp, stamp, __ATOMIC_RELEASE);
}

static uint64_t random_below(uint64_t limit, uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state % limit;
}

/* Says so and goes on when the reader has read, so that it is there for the rest. */
static void tell_lapped(void)
{
    puts("lapped");
    fflush(stdout);
    getchar();
}

static void *run(void *seed)
{
    const struct timespec rest = {.tv_nsec = 100 * 1000};
    uint64_t state = (uint64_t)(uintptr_t)seed, left = 0;

    for (uint64_t number = 0; number < wanted; number++) {
        if (left-- == 0) {
            left = random_below(longest_burst, &state);
            nanosleep(&rest, NULL);
        }
        const uint64_t taken = is_shared ? __atomic_fetch_add(&ring->head, 1, __ATOMIC_RELAXED) : number;
        is_shared ? write_shared(taken) : write_own(taken);
        if (taken == 2 * count)
            tell_lapped();
    }
    return NULL;
}

static void map(const char *path)
{
    const int file = open(path, O_RDWR);
    const off_t bytes = lseek(file, 0, SEEK_END);
    char *start = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    const struct wire_header *header = (const struct wire_header *)start;

    if (start == MAP_FAILED)
        exit(1);
    count = header->records.count / header->rings.count;
    ring = (struct wire_ring *)(start + header->rings.offset) + !is_shared;
    records = (struct wire_record *)(start + header->records.offset) + (is_shared ? 0 : count);
}

int main(int arguments, char **argument)
{
    const int threads = arguments == 5 ? atoi(argument[3]) : 0;
    pthread_t thread[16];

    if (threads < 1 || threads > 16)
        return 2;
    is_shared = threads > 1;
    wanted = strtoull(argument[2], NULL, 10) / (uint64_t)threads;
    longest_burst = strtoull(argument[4], NULL, 10);
    map(argument[1]);
    for (int i = 0; i < threads; i++)
        pthread_create(&thread[i], NULL, run, (void *)(uintptr_t)(i + 88172645463325252u));
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    printf("%llu\n", (unsigned long long)ring->head);
    return 0;
}
