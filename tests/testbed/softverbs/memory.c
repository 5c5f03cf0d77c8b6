/* Protection domains and memory regions; a key is good for one registration only, as it would be on a NIC. */
#include "softverbs.h"

#include <errno.h>
#include <stdlib.h>

struct soft_region {
    struct ibv_mr mr;
    uint64_t iova;
    unsigned access;
};

static struct soft_region *regions[SOFT_REGIONS];
static uint8_t generations[SOFT_REGIONS];
static uint32_t last_index;

uint8_t *soft_find(struct ibv_pd *pd, uint32_t key, uint64_t address, uint64_t bytes, unsigned access)
{
    uint32_t index = key >> 8;
    const struct soft_region *found = index < SOFT_REGIONS ? regions[index] : NULL;
    if (found == NULL || found->mr.lkey != key || found->mr.pd != pd || (found->access & access) != access)
        return NULL;
    if (address < found->iova || address - found->iova > found->mr.length ||
        bytes > found->mr.length - (address - found->iova))
        return NULL;
    return (uint8_t *)found->mr.addr + (address - found->iova);
}

/* Index 0 stays free: NCCL takes a key of 0 for none. */
static uint32_t find_free(void)
{
    for (uint32_t tried = 1; tried < SOFT_REGIONS; tried++) {
        uint32_t index = 1 + (last_index + tried - 1) % (SOFT_REGIONS - 1);
        if (regions[index] == NULL)
            return index;
    }
    return 0;
}

SOFT_EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
                                            unsigned access)
{
    unsigned writes = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    struct soft_region *made = calloc(1, sizeof *made);
    pthread_mutex_lock(&soft_lock);
    uint32_t index = find_free();
    bool is_allowed = !(access & writes) || (access & IBV_ACCESS_LOCAL_WRITE);
    if (made == NULL || index == 0 || !is_allowed) {
        pthread_mutex_unlock(&soft_lock);
        free(made);
        errno = is_allowed ? ENOMEM : EINVAL;
        return NULL;
    }
    made->iova = iova;
    made->access = access;
    made->mr = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = address, .length = length, .handle = index};
    made->mr.lkey = made->mr.rkey = index << 8 | ++generations[index];
    regions[index] = made;
    last_index = index;
    pthread_mutex_unlock(&soft_lock);
    return &made->mr;
}

SOFT_EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *address, size_t length, uint64_t iova, int access)
{
    return ibv_reg_mr_iova2(pd, address, length, iova, (unsigned)access);
}

SOFT_EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
    return ibv_reg_mr_iova2(pd, address, length, (uintptr_t)address, (unsigned)access);
}

/* Memory of a GPU cannot be reached from here; NCCL asks with a descriptor of -1 and takes this for an answer. */
SOFT_EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                                             int access)
{
    (void)pd, (void)offset, (void)length, (void)iova, (void)fd, (void)access;
    errno = EOPNOTSUPP;
    return NULL;
}

SOFT_EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
    pthread_mutex_lock(&soft_lock);
    regions[mr->lkey >> 8] = NULL;
    pthread_mutex_unlock(&soft_lock);
    free(mr);
    return 0;
}

SOFT_EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    struct ibv_pd *made = calloc(1, sizeof *made);
    if (made)
        made->context = context;
    return made;
}

SOFT_EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
    free(pd);
    return 0;
}
