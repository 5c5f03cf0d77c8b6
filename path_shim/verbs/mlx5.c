#define _GNU_SOURCE
#include "mlx5.h"

#include <dlfcn.h>
#include <pthread.h>

enum { MOST_PROMISES = 1024 }; /* queue pairs between RTR and RTS at a time */

typedef bool supported_fn(struct ibv_device *);
typedef int modify_port_fn(struct ibv_qp *, uint16_t);

static struct lockstep_promise promises[MOST_PROMISES];
static pthread_mutex_t promising = PTHREAD_MUTEX_INITIALIZER;

/* libibverbs loads it for its devices; where it is not loaded, no device of it can be open. */
static void *find_symbol(const char *name)
{
    void *library = dlopen("libmlx5.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *found = library ? dlsym(library, name) : NULL;
    if (library)
        dlclose(library); /* it stays: others hold it */
    return found;
}

bool lockstep_is_mlx5(struct ibv_device *device)
{
    supported_fn *is_supported;
    *(void **)&is_supported = find_symbol("mlx5dv_is_supported");
    return is_supported && is_supported(device);
}

static struct lockstep_promise *find(const struct ibv_qp *qp)
{
    for (size_t i = 0; i < MOST_PROMISES; i++)
        if (promises[i].qp == qp)
            return &promises[i];
    return NULL;
}

bool lockstep_promise(const struct lockstep_promise *promise)
{
    pthread_mutex_lock(&promising);
    struct lockstep_promise *place = find(promise->qp); /* one that was left on its way, at the same address */
    if (place == NULL)
        place = find(NULL);
    if (place)
        *place = *promise;
    pthread_mutex_unlock(&promising);
    return place != NULL;
}

bool lockstep_take_promise(const struct ibv_qp *qp, struct lockstep_promise *promise)
{
    pthread_mutex_lock(&promising);
    struct lockstep_promise *place = find(qp);
    if (place) {
        *promise = *place;
        place->qp = NULL;
    }
    pthread_mutex_unlock(&promising);
    return place != NULL;
}

bool lockstep_ask_mlx5(struct ibv_qp *qp, uint16_t port)
{
    modify_port_fn *modify_port;
    *(void **)&modify_port = find_symbol("mlx5dv_modify_qp_udp_sport");
    return modify_port && modify_port(qp, port) == 0;
}
