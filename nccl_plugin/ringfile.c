/* Makes the ring file: a name of its own, all its space allocated and touched, its tables in place, our lock on it. */
#define _GNU_SOURCE

#include "plugin.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static const char NO_PLACE[] =
    "no ring file can be made: LOCKSTEP_RING_DIR, /run/lockstep/rings, or /dev/shm with 1 GiB free";
static const char NO_ROOM[] = "no room for the ring file, or no lock on it";

struct layout {
    struct wire_header header; /* its sections */
    uint64_t bytes;
};

static struct wire_section place(struct layout *layout, uint32_t count, uint32_t stride)
{
    const struct wire_section section = {.offset = layout->bytes, .count = count, .stride = stride};

    layout->bytes += ((uint64_t)count * stride + WIRE_PAGE - 1) / WIRE_PAGE * WIRE_PAGE;
    return section;
}

enum { BESIDE_RECORDS = sizeof(struct wire_ring) + WIRE_RING_OPERATIONS * sizeof(struct wire_operation)
                        + WIRE_RING_TRANSFERS * sizeof(struct wire_transfer) };

/* A few rings, and all the room there is for their records: 64 MiB hold six of 166,000. */
static void plan_rings(uint64_t bytes)
{
    const uint64_t fit = bytes / (BESIDE_RECORDS + WIRE_RING_RECORDS * sizeof(struct wire_record));

    session.rings = fit > MOST_RINGS ? MOST_RINGS : fit < MIN_RINGS ? MIN_RINGS : (uint32_t)fit;
    session.ring_records = (uint32_t)((bytes / session.rings - BESIDE_RECORDS) / sizeof(struct wire_record));
    if (session.ring_records < WIRE_RING_RECORDS)
        session.ring_records = WIRE_RING_RECORDS;
}

static struct layout plan(uint32_t mib)
{
    struct layout layout = {.bytes = WIRE_PAGE};
    struct wire_header *header = &layout.header;

    header->requests = place(&layout, 1, sizeof(struct wire_request));
    header->status = place(&layout, 1, sizeof(struct wire_status));
    header->clocks = place(&layout, WIRE_CLOCK_PAIRS, sizeof(struct wire_clock_pair));
    header->comms = place(&layout, WIRE_COMMS, sizeof(struct wire_comm));
    header->rows = place(&layout, WIRE_ROWS, sizeof(struct wire_row));
    plan_rings(((uint64_t)mib << 20) - layout.bytes - WIRE_PAGE * 4);
    header->rings = place(&layout, session.rings, sizeof(struct wire_ring));
    header->records = place(&layout, session.rings * session.ring_records, sizeof(struct wire_record));
    header->operations = place(&layout, session.rings * WIRE_RING_OPERATIONS, sizeof(struct wire_operation));
    header->transfers = place(&layout, session.rings * WIRE_RING_TRANSFERS, sizeof(struct wire_transfer));
    return layout;
}

/* NCCL itself lives on shared memory, and a container's may be small: we take a part only where there is plenty. */
static bool has_plenty(int directory)
{
    struct statvfs space;

    return fstatvfs(directory, &space) == 0 && (uint64_t)space.f_bavail * space.f_frsize >= UINT64_C(1) << 30;
}

static int open_in_shared_memory(int flags)
{
    int directory;

    if (mkdir("/dev/shm/lockstep", 0700) == 0)
        chmod("/dev/shm/lockstep", 01777);
    directory = open("/dev/shm/lockstep", flags | O_NOFOLLOW);
    if (directory < 0 || has_plenty(directory))
        return directory;
    close(directory);
    return -1;
}

/* The given directory and no other; else the host's, else one in shared memory, which we make when it is missing. */
static int open_directory(void)
{
    const char *given = getenv("LOCKSTEP_RING_DIR");
    const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
    int directory;

    if (given != NULL && given[0] != '\0')
        return open(given, flags);
    directory = open("/run/lockstep/rings", flags);
    if (directory >= 0 && faccessat(directory, ".", W_OK | X_OK, 0) == 0)
        return directory;
    if (directory >= 0)
        close(directory);
    return open_in_shared_memory(flags);
}

/* A new file in its directory; kept together so that a failure can take it back. */
struct new_file {
    int directory;
    int file;
    char name[64];
};

static struct new_file create_file(uint64_t created_ns)
{
    struct new_file made = {.directory = open_directory(), .file = -1};

    snprintf(made.name, sizeof made.name, "%u-%llu.ring", session.pid, (unsigned long long)created_ns);
    if (made.directory >= 0)
        made.file = openat(made.directory, made.name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    return made;
}

/* Beyond this limit the kernel does not refuse but sends a signal that ends the job. */
static bool may_grow_to(uint64_t bytes)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur >= bytes;
}

/* Space that is allocated now cannot run out later, when running out would be a SIGBUS in the job. */
static void *map_file(int file, uint64_t bytes)
{
    void *start;

    if (!may_grow_to(bytes) || posix_fallocate(file, 0, (off_t)bytes) != 0)
        return NULL;
    start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (start == MAP_FAILED)
        return NULL;
    guard_memory(start, bytes);
    memset(start, 0, bytes);
    return start;
}

static bool lock_file(int file)
{
    /* A record lock is the process's own: a forked child does not inherit it, and a reader learns from the kernel
     * who holds it. It goes when the process ends, however it ends. */
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    return fcntl(file, F_SETLK, &whole) == 0;
}

static void point_into(char *start, const struct layout *layout)
{
    const struct wire_header *header = &layout->header;

    session.header = (struct wire_header *)start;
    session.request = (struct wire_request *)(start + header->requests.offset);
    session.status = (struct wire_status *)(start + header->status.offset);
    session.clocks = (struct wire_clock_pair *)(start + header->clocks.offset);
    session.comms = (struct wire_comm *)(start + header->comms.offset);
    session.rows = (struct wire_row *)(start + header->rows.offset);
    session.records = (struct wire_record *)(start + header->records.offset);
    session.operations = (struct wire_operation *)(start + header->operations.offset);
    session.transfers = (struct wire_transfer *)(start + header->transfers.offset);
    for (uint32_t i = 0; i < session.rings; i++)
        producers[i] = (struct producer){
            .ring = (struct wire_ring *)(start + header->rings.offset) + i,
            .records = session.records + (size_t)i * session.ring_records,
            .operations = session.operations + (size_t)i * WIRE_RING_OPERATIONS,
            .transfers = session.transfers + (size_t)i * WIRE_RING_TRANSFERS,
            .number = i,
            .taken = i == 0,
            .stamp = 1,
            .session = session.serial,
        };
}

static void fill_header(const struct layout *layout, uint64_t created_ns)
{
    struct wire_header *header = session.header;

    *header = layout->header;
    memcpy(header->magic, WIRE_MAGIC, sizeof header->magic);
    header->version = WIRE_VERSION;
    header->file_bytes = layout->bytes;
    header->created_ns = created_ns;
    header->pid = session.pid;
    header->tag = (uint32_t)(session.tag >> WIRE_TAG_SHIFT);
    header->clock_kind = clock_kind;
    header->api_version = session.api_version;
    identity_fill(header);
}

/* Leave nothing behind but the reason. */
static const char *take_back(const struct new_file *made, const char *problem)
{
    if (made->file >= 0) {
        unlinkat(made->directory, made->name, 0);
        close(made->file);
    }
    if (made->directory >= 0)
        close(made->directory);
    return problem;
}

/* Where there is no room for what was asked for, half of it, and so on. The file stays open until the process ends:
 * closing it would drop the lock. */
bool ringfile_create(uint32_t mib, const char **problem)
{
    struct layout layout = {.bytes = 0};
    struct wire_clock_pair now;
    struct new_file made;
    void *start = NULL;

    clock_read_pair(&now);
    made = create_file(now.unix_ns);
    for (; made.file >= 0 && start == NULL && mib >= LEAST_MIB && lock_file(made.file); mib /= 2) {
        layout = plan(mib);
        start = map_file(made.file, layout.bytes);
    }
    if (start == NULL) {
        *problem = take_back(&made, made.file < 0 ? NO_PLACE : NO_ROOM);
        return false;
    }
    close(made.directory);
    point_into(start, &layout);
    fill_header(&layout, now.unix_ns);
    clock_publish_pair(&now);
    return true;
}
