/* The ring file read back: where things are in it, and what always holds of it. */
#define _POSIX_C_SOURCE 200809L

#include "harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- files --- */

static bool is_ring_of(const char *name, int pid)
{
    int owner, end = 0;
    unsigned long long created_ns;

    return sscanf(name, "%d-%llu.ring%n", &owner, &created_ns, &end) == 2 && name[end] == '\0' && end > 0
           && (pid == 0 || owner == pid);
}

/* How many ring files of a process there are (of all with pid 0); the newest one's path. */
static int find_files(int pid, char *newest)
{
    const char *directory = getenv("LOCKSTEP_RING_DIR");
    char best[256] = "";
    int found = 0;
    DIR *listing = opendir(directory);

    if (listing == NULL)
        return 0;
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        if (!is_ring_of(entry->d_name, pid))
            continue;
        found++;
        if (strcmp(entry->d_name, best) > 0)
            snprintf(best, sizeof best, "%s", entry->d_name);
    }
    closedir(listing);
    snprintf(newest, PATH_BYTES, "%s/%s", directory, best);
    return found;
}

int count_files(void)
{
    char path[PATH_BYTES];

    return find_files(0, path);
}

struct ringfile read_file_of(int pid)
{
    struct ringfile file;
    struct stat facts;

    EQUAL(find_files(pid, file.path), 1);
    const int descriptor = open(file.path, O_RDONLY | O_NOFOLLOW);
    CHECK(descriptor >= 0 && fstat(descriptor, &facts) == 0);
    EQUAL(facts.st_mode & 07777, 0600);
    file.size = (size_t)facts.st_size;
    file.bytes = mmap(NULL, file.size, PROT_READ, MAP_SHARED, descriptor, 0);
    CHECK(file.bytes != MAP_FAILED);
    close(descriptor);
    return file;
}

struct ringfile read_own_file(void)
{
    return read_file_of((int)getpid());
}

void close_file(struct ringfile *file)
{
    munmap((void *)file->bytes, file->size);
    file->bytes = NULL;
}

/* --- places --- */

const struct wire_header *header_of(const struct ringfile *file)
{
    return (const struct wire_header *)file->bytes;
}

static const void *element(const struct ringfile *file, const struct wire_section *section, uint64_t number)
{
    CHECK(number < section->count);
    return file->bytes + section->offset + number * section->stride;
}

const struct wire_status *status_of(const struct ringfile *file)
{
    return element(file, &header_of(file)->status, 0);
}

const struct wire_comm *comm_at(const struct ringfile *file, unsigned place)
{
    return element(file, &header_of(file)->comms, place);
}

const struct wire_ring *ring_at(const struct ringfile *file, unsigned number)
{
    return element(file, &header_of(file)->rings, number);
}

const struct wire_row *row_at(const struct ringfile *file, unsigned place)
{
    return element(file, &header_of(file)->rows, place);
}

uint64_t ring_records(const struct ringfile *file)
{
    return header_of(file)->records.count / header_of(file)->rings.count;
}

const struct wire_record *record_at(const struct ringfile *file, unsigned ring, uint64_t number)
{
    const uint64_t count = ring_records(file);

    return element(file, &header_of(file)->records, ring * count + number % count);
}

const struct wire_operation *operation_at(const struct ringfile *file, uint64_t place)
{
    return element(file, &header_of(file)->operations, place);
}

const struct wire_operation *operation_of(const struct ringfile *file, const void *handle)
{
    const struct wire_operation *operation = operation_at(file, (uintptr_t)handle & 0xffff);

    EQUAL(operation->handle, (uintptr_t)handle);
    return operation;
}

const struct wire_transfer *transfer_at(const struct ringfile *file, uint64_t place)
{
    return element(file, &header_of(file)->transfers, place);
}

const struct wire_transfer *transfer_of(const struct ringfile *file, const void *handle)
{
    const struct wire_transfer *transfer = transfer_at(file, (uintptr_t)handle & 0xffff);

    EQUAL(transfer->handle, (uintptr_t)handle);
    return transfer;
}

/* --- searching --- */

unsigned place_of_comm(const struct ringfile *file, uint64_t id)
{
    for (unsigned place = 0; place < header_of(file)->comms.count; place++)
        if (comm_at(file, place)->incarnation != 0 && comm_at(file, place)->id == id)
            return place;
    return WIRE_NO_COMM;
}

const struct wire_row *find_row(const struct ringfile *file, uint64_t comm_id, unsigned func, int peer)
{
    const uint64_t comm = place_of_comm(file, comm_id);
    const uint64_t key = (comm + 1) << 40 | (uint64_t)func << 32 | (uint32_t)peer;

    for (unsigned place = 0; place < header_of(file)->rows.count; place++)
        if (row_at(file, place)->key == key)
            return row_at(file, place);
    check_that(false, __FILE__, __LINE__, "there is a row for this communicator, function and peer");
    return NULL;
}

uint64_t oldest_number(const struct ringfile *file, unsigned ring)
{
    const uint64_t head = ring_at(file, ring)->head;

    return head > ring_records(file) ? head - ring_records(file) : 0;
}

const struct wire_record *find_record(const struct ringfile *file, unsigned kind, unsigned number)
{
    unsigned passed = 0;

    for (unsigned i = 0; i < header_of(file)->rings.count; i++)
        for (uint64_t at = oldest_number(file, i); at < ring_at(file, i)->head; at++)
            if (record_at(file, i, at)->kind == kind && passed++ == number)
                return record_at(file, i, at);
    return NULL;
}

unsigned count_records(const struct ringfile *file, unsigned kind)
{
    unsigned found = 0;

    for (unsigned i = 0; i < header_of(file)->rings.count; i++)
        for (uint64_t at = oldest_number(file, i); at < ring_at(file, i)->head; at++)
            found += record_at(file, i, at)->kind == kind;
    return found;
}

unsigned count_open_transfers(const struct ringfile *file)
{
    unsigned open = 0;

    for (unsigned place = 0; place < header_of(file)->transfers.count; place++)
        open += transfer_at(file, place)->handle != 0 && transfer_at(file, place)->last_ticks == 0
                && (transfer_at(file, place)->flags & WIRE_FLAG_KERNEL) == 0;
    return open;
}

uint64_t sum_of_heads(const struct ringfile *file)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < header_of(file)->rings.count; i++)
        sum += ring_at(file, i)->head;
    return sum;
}

uint64_t duration_of(uint32_t packed)
{
    return (uint64_t)(packed & 0x7ffffff) << (packed >> 27);
}
