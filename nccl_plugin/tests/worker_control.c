/* What a rank is told while it runs, line by line; the end of the lines means that it is to leave.
 *
 *   late MS               it enqueues each step so much later, as with a slow data loader; 0: not any more
 *   pause MS              it enqueues the next step so much later, as with a checkpoint or garbage collection
 *   slow RATIO [SHARE]    compute takes so many times as long, in this share of the steps
 *   pace CHANNEL BYTES    its connections on this channel send at most so much a second; 0: without limit
 *   second STEP           from this step on it does what the second part of its job file says
 *   mismatch TIMES        its next operation has so many times the bytes that its peers have
 *   reversed              it enqueues the operations of each step in reverse order, as in a deadlock
 *   absent                it enqueues nothing any more
 *   stuck                 a kernel that runs goes no further
 *   heal                  as told in the beginning; who was absent stays away
 */
#define _GNU_SOURCE

#include "worker.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct faults faults = {.slow_permil = 1000, .slow_share = 1000, .second_from = LONG_MAX};

static void heal(void)
{
    atomic_store(&faults.late_ns, 0);
    atomic_store(&faults.slow_permil, 1000);
    atomic_store(&faults.slow_share, 1000);
    atomic_store(&faults.mismatch, 0);
    atomic_store(&faults.stuck, false);
    atomic_store(&faults.reversed, false);
    for (int channel = 0; channel < MOST_CHANNELS; channel++)
        pace_channel(channel, 0);
    wake_proxy();
}

static bool obey_word(const char *word)
{
    if (strcmp(word, "absent\n") == 0)
        atomic_store(&faults.absent, true);
    else if (strcmp(word, "stuck\n") == 0)
        atomic_store(&faults.stuck, true);
    else if (strcmp(word, "reversed\n") == 0)
        atomic_store(&faults.reversed, true);
    else if (strcmp(word, "heal\n") == 0)
        heal();
    else
        return false;
    return true;
}

static bool obey(const char *line)
{
    double number, share = 1;
    uint64_t bytes_per_s;
    int channel;

    if (sscanf(line, "late %lf", &number) == 1 && number >= 0)
        atomic_store(&faults.late_ns, (long)(number * 1e6));
    else if (sscanf(line, "pause %lf", &number) == 1 && number >= 0)
        atomic_store(&faults.pause_ns, (long)(number * 1e6));
    else if (sscanf(line, "slow %lf %lf", &number, &share) >= 1 && number > 0) {
        atomic_store(&faults.slow_permil, (long)(number * 1000));
        atomic_store(&faults.slow_share, (long)(share * 1000));
    } else if (sscanf(line, "mismatch %lf", &number) == 1 && number >= 2)
        atomic_store(&faults.mismatch, (long)number);
    else if (sscanf(line, "second %lf", &number) == 1 && job.nmixes > 1)
        atomic_store(&faults.second_from, (long)number);
    else if (sscanf(line, "pace %d %" SCNu64, &channel, &bytes_per_s) == 2)
        return pace_channel(channel, bytes_per_s) > 0;
    else
        return obey_word(line);
    return true;
}

void *run_control(void *file)
{
    char *line = NULL;
    size_t room = 0;

    while (getline(&line, &room, file) > 0)
        if (obey(line))
            printf("obeyed %s", line);
        else
            fprintf(stderr, "rank %d: what this means, or for whom, is not known: %s", job.rank, line);
    free(line);
    pthread_mutex_lock(&rank.lock);
    rank.is_leaving = true;
    pthread_cond_broadcast(&rank.changed);
    pthread_mutex_unlock(&rank.lock);
    wake_proxy();
    return NULL;
}
