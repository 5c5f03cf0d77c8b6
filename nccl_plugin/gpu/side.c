/* One copy of NCCL in the rank program: how it is opened, called, and how its plugin's control page is written. */
#define _GNU_SOURCE

#include "rank.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);

    if (found == NULL)
        give_up("NCCL has no such function", name);
    return found;
}

/* C forbids to cast data pointers to function pointers, POSIX promises that it works. */
#define BIND(member, name) (*(void **)&side->nccl.member = symbol(library, name))

static void bind_nccl(struct side *side, const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* local: each copy keeps to its own variables */

    if (library == NULL)
        give_up("cannot open NCCL", dlerror());
    BIND(get_version, "ncclGetVersion");
    BIND(get_id, "ncclGetUniqueId");
    BIND(init, "ncclCommInitRank");
    BIND(split, "ncclCommSplit");
    BIND(destroy, "ncclCommDestroy");
    BIND(group_start, "ncclGroupStart");
    BIND(group_end, "ncclGroupEnd");
    BIND(all_reduce, "ncclAllReduce");
    BIND(all_gather, "ncclAllGather");
    BIND(reduce_scatter, "ncclReduceScatter");
    BIND(broadcast, "ncclBroadcast");
    BIND(send, "ncclSend");
    BIND(recv, "ncclRecv");
}

/* Rank 0 writes the id under another name and renames it, so that nobody reads half of one. */
static struct nccl_id share_id(const struct side *side)
{
    char path[512], unfinished[520];
    struct nccl_id id;
    FILE *file;

    snprintf(path, sizeof path, "%s/%s.id", program.folder, side->name);
    snprintf(unfinished, sizeof unfinished, "%s.new", path);
    if (program.rank == 0) {
        NCCL(side->nccl.get_id(&id));
        file = fopen(unfinished, "wb");
        if (file == NULL || fwrite(&id, sizeof id, 1, file) != 1 || fclose(file) != 0 || rename(unfinished, path) != 0)
            give_up("cannot write", path);
        return id;
    }
    while ((file = fopen(path, "rb")) == NULL)
        usleep(1000);
    if (fread(&id, sizeof id, 1, file) != 1)
        give_up("cannot read", path);
    fclose(file);
    return id;
}

static int open_ring(void)
{
    const char *folder = getenv("LOCKSTEP_RING_DIR");
    DIR *listing = folder == NULL ? NULL : opendir(folder);
    const struct dirent *entry;
    char own[16], path[768];
    int ring = -1;

    snprintf(own, sizeof own, "%d-", (int)getpid());
    while (listing != NULL && ring < 0 && (entry = readdir(listing)) != NULL)
        if (strncmp(entry->d_name, own, strlen(own)) == 0) {
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
            ring = open(path, O_RDWR | O_CLOEXEC);
        }
    if (listing != NULL)
        closedir(listing);
    return ring;
}

/* The environment is the process's: what a side sets is for its own plugin, which reads it when NCCL loads it. */
static void set_environment(char *pairs)
{
    for (char *pair = strtok(pairs, ","); pair != NULL; pair = strtok(NULL, ",")) {
        char *value = strchr(pair, '=');

        if (value == NULL)
            give_up("not KEY=VALUE", pair);
        *value++ = '\0';
        setenv(pair, value, 1);
    }
}

void side_open(char *description)
{
    const char *name = strsep(&description, ","), *library = strsep(&description, ","), *plugin = strsep(&description, ",");
    struct side *side = &program.sides[program.side_count++];
    int version;

    if (plugin == NULL || program.side_count >= MAX_SIDES)
        give_up("a side is NAME,LIBRARY,PLUGIN and there are at most 15", name);
    snprintf(side->name, sizeof side->name, "%s", name);
    setenv("NCCL_PROFILER_PLUGIN", plugin, 1);
    if (description != NULL)
        set_environment(description);
    bind_nccl(side, library);
    NCCL(side->nccl.get_version(&version));
    NCCL(side->nccl.init(&side->comm, program.ranks, share_id(side), program.rank));
    side->ring = strcmp(plugin, "none") == 0 ? -1 : open_ring();
    program.side = side;
    call(WIRE_ALL_REDUCE, side->comm, 8);
    synchronize();
    printf("{\"side\": \"%s\", \"nccl\": %d, \"ring\": %s}\n", side->name, version, side->ring < 0 ? "false" : "true");
}

void side_use(const char *name)
{
    for (int i = 0; i < program.side_count; i++)
        if (strcmp(program.sides[i].name, name) == 0) {
            program.side = &program.sides[i];
            return;
        }
    give_up("no such side", name);
}

/* As the collector does it: the fields first, then the stamp. */
void side_request(uint32_t level, uint32_t share)
{
    struct wire_header header;
    struct wire_request request;
    const int ring = program.side->ring;

    if (ring < 0)
        return;
    if (pread(ring, &header, sizeof header, 0) != (ssize_t)sizeof header)
        give_up("cannot read the ring file", program.side->name);
    if (pread(ring, &request, sizeof request, (off_t)header.requests.offset) != (ssize_t)sizeof request)
        give_up("cannot read the request", program.side->name);
    request = (struct wire_request){.stamp = request.stamp, .level = level, .share = share};
    if (pwrite(ring, &request, sizeof request, (off_t)header.requests.offset) < 0)
        give_up("cannot write the request", program.side->name);
    request.stamp++;
    if (pwrite(ring, &request.stamp, sizeof request.stamp, (off_t)header.requests.offset) < 0)
        give_up("cannot write the request's stamp", program.side->name);
}

static void send_and_receive(nccl_comm comm, size_t count, int to, int from, size_t place)
{
    const struct nccl *nccl = &program.side->nccl;

    NCCL(nccl->send((const float *)program.send + place * count, count, NCCL_FLOAT32, to, comm, program.stream));
    NCCL(nccl->recv((float *)program.recv + place * count, count, NCCL_FLOAT32, from, comm, program.stream));
    program.side->calls[WIRE_SEND]++;
    program.side->calls[WIRE_RECV]++;
}

static void exchange(enum wire_func func, nccl_comm comm, size_t count)
{
    const int rank = program.rank, ranks = program.ranks;

    NCCL(program.side->nccl.group_start());
    if (func == WIRE_SEND)
        send_and_receive(comm, count, (rank + 1) % ranks, (rank + ranks - 1) % ranks, 0);
    for (int peer = 0; func == WIRE_ALL_TO_ALL && peer < ranks; peer++) /* with itself too: NCCL loses count of kernel times there */
        send_and_receive(comm, count / (size_t)ranks, peer, peer, (size_t)peer);
    NCCL(program.side->nccl.group_end());
}

/* `bytes` is the size of the larger buffer. WIRE_SEND is a ring of sends and receives. */
void call(enum wire_func func, nccl_comm comm, size_t bytes)
{
    const struct nccl *nccl = &program.side->nccl;
    const size_t count = bytes / sizeof(float), share = count / (size_t)program.ranks;
    void *const send = program.send, *const recv = program.recv;

    if (func == WIRE_SEND || func == WIRE_ALL_TO_ALL) {
        exchange(func, comm, count);
        return;
    }
    program.side->calls[func]++;
    if (func == WIRE_ALL_REDUCE)
        NCCL(nccl->all_reduce(send, recv, count, NCCL_FLOAT32, NCCL_SUM, comm, program.stream));
    else if (func == WIRE_ALL_GATHER)
        NCCL(nccl->all_gather(send, recv, share, NCCL_FLOAT32, comm, program.stream));
    else if (func == WIRE_REDUCE_SCATTER)
        NCCL(nccl->reduce_scatter(send, recv, share, NCCL_FLOAT32, NCCL_SUM, comm, program.stream));
    else
        NCCL(nccl->broadcast(send, recv, count, NCCL_FLOAT32, 0, comm, program.stream));
}
