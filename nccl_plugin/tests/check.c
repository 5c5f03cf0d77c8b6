/* Checks that say what did not hold, and threads that do one thing at a time. */
#define _POSIX_C_SOURCE 200809L

#include "harness.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static atomic_ulong made;

void check_that(bool holds, const char *file, int line, const char *statement)
{
    atomic_fetch_add_explicit(&made, 1, memory_order_relaxed);
    if (holds)
        return;
    printf("    %s:%d: does not hold: %s\n", file, line, statement);
    fflush(stdout);
    _Exit(EXIT_FAILURE);
}

void check_equal(uint64_t actual, uint64_t expected, const char *file, int line, const char *expression)
{
    atomic_fetch_add_explicit(&made, 1, memory_order_relaxed);
    if (actual == expected)
        return;
    printf("    %s:%d: %s is %" PRIu64 " (0x%" PRIx64 "), not %" PRIu64 " (0x%" PRIx64 ")\n", file, line, expression,
           actual, actual, expected, expected);
    fflush(stdout);
    _Exit(EXIT_FAILURE);
}

unsigned long checks_made(void)
{
    return atomic_load(&made);
}

void skip_scenario(const char *reason)
{
    printf("    NOT RUN: %s\n", reason);
    fflush(stdout);
    _Exit(getenv("LOCKSTEP_CI") == NULL ? EXIT_SUCCESS : EXIT_FAILURE);
}

/* --- threads --- */

struct worker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    void (*job)(void *); /* NULL: idle */
    void *argument;
    bool dismissed;
};

static void *serve(void *argument)
{
    struct worker *worker = argument;

    pthread_mutex_lock(&worker->lock);
    while (!worker->dismissed) {
        if (worker->job == NULL) {
            pthread_cond_wait(&worker->changed, &worker->lock);
            continue;
        }
        worker->job(worker->argument);
        worker->job = NULL;
        pthread_cond_broadcast(&worker->changed);
    }
    pthread_mutex_unlock(&worker->lock);
    return NULL;
}

struct worker *hire(void)
{
    struct worker *worker = calloc(1, sizeof *worker);

    CHECK(worker != NULL);
    pthread_mutex_init(&worker->lock, NULL);
    pthread_cond_init(&worker->changed, NULL);
    CHECK(pthread_create(&worker->thread, NULL, serve, worker) == 0);
    return worker;
}

void work(struct worker *worker, void (*job)(void *), void *argument)
{
    pthread_mutex_lock(&worker->lock);
    worker->argument = argument;
    worker->job = job;
    pthread_cond_broadcast(&worker->changed);
    while (worker->job != NULL)
        pthread_cond_wait(&worker->changed, &worker->lock);
    pthread_mutex_unlock(&worker->lock);
}

void dismiss(struct worker *worker)
{
    pthread_mutex_lock(&worker->lock);
    worker->dismissed = true;
    pthread_cond_broadcast(&worker->changed);
    pthread_mutex_unlock(&worker->lock);
    pthread_join(worker->thread, NULL);
    pthread_cond_destroy(&worker->changed);
    pthread_mutex_destroy(&worker->lock);
    free(worker);
}

void run_threads(int count, void *(*body)(void *), void *arguments, size_t argument_bytes)
{
    pthread_t *threads = calloc((size_t)count, sizeof *threads);

    CHECK(threads != NULL);
    for (int i = 0; i < count; i++)
        CHECK(pthread_create(&threads[i], NULL, body, (char *)arguments + (size_t)i * argument_bytes) == 0);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    free(threads);
}
