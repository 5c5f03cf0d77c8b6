/* ibv_modify_qp() as the program sees it: on its way from INIT to RTR, a queue pair that the plan names gets the flow
 * label from which its driver derives the planned source port. Whatever goes wrong on our side, the plain call follows. */
#define _GNU_SOURCE
#include "mlx5.h"
#include "providers.h"
#include "queue_pairs.h"

#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <string.h>
#include <unistd.h>

enum { ROCE_PORT = 4791 };

typedef int modify_fn(struct ibv_qp *, struct ibv_qp_attr *, int);
typedef int query_fn(struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *);
typedef int gid_fn(struct ibv_context *, uint8_t, int, union ibv_gid *);

static char plan_path[LOCKSTEP_PATH_BYTES] = LOCKSTEP_PLAN;
static char report_directory[LOCKSTEP_PATH_BYTES] = LOCKSTEP_REPORTS;
static _Atomic(modify_fn *) next_modify;
static _Atomic(query_fn *) next_query;
static _Atomic(gid_fn *) next_gid;
static _Atomic uint64_t newest_generation;

/* The library behind us by its name: NCCL looks symbols up by handle, so "the next one in line" may be nobody. */
static void find_verbs(void)
{
    static const char version[] = "IBVERBS_1.1";
    void *library = dlopen("libibverbs.so.1", RTLD_NOW);
    modify_fn *modify = NULL;
    query_fn *query = NULL;
    gid_fn *gid = NULL;
    if (library == NULL)
        return;
    *(void **)&modify = dlvsym(library, "ibv_modify_qp", version);
    *(void **)&query = dlvsym(library, "ibv_query_qp", version);
    *(void **)&gid = dlvsym(library, "ibv_query_gid", version);
    atomic_store(&next_query, query);
    atomic_store(&next_gid, gid);
    atomic_store(&next_modify, modify);
}

__attribute__((constructor)) static void read_settings(void)
{
    size_t length;
    lockstep_read_setting("LOCKSTEP_PATHS_FILE", plan_path);
    lockstep_read_setting("LOCKSTEP_PATHS_REPORT_DIR", report_directory);
    length = strlen(plan_path);
    if (length == 0 || length + sizeof ".queue-pairs" > sizeof plan_path)
        plan_path[0] = '\0';
    else
        memcpy(plan_path + length, ".queue-pairs", sizeof ".queue-pairs");
}

struct asked {
    struct ibv_qp *qp;
    struct ibv_qp_attr *attributes;
    struct lockstep_pair pair;
    struct lockstep_lookup found;
    uint32_t label;
    const char *outcome; /* NULL: no word about it */
};

static bool is_on_its_way(const struct ibv_qp_attr *attributes, int mask)
{
    return mask & IBV_QP_STATE && attributes->qp_state == IBV_QPS_RTR && mask & IBV_QP_AV &&
           attributes->ah_attr.is_global;
}

/* NCCL's accepting side opens queue pairs that grant atomics; they carry answers, the plan's lines are for data. */
static bool carries_data(struct ibv_qp *qp)
{
    query_fn *query = atomic_load(&next_query);
    struct ibv_qp_attr attributes = {0};
    struct ibv_qp_init_attr made = {0};
    if (query == NULL || query(qp, &attributes, IBV_QP_ACCESS_FLAGS, &made) != 0)
        return true;
    return !(attributes.qp_access_flags & IBV_ACCESS_REMOTE_ATOMIC);
}

/* A GID of RoCE v2 is an IPv6 address, with IPv4 mapped into it as everywhere here. */
static bool read_pair(struct asked *asked)
{
    gid_fn *query = atomic_load(&next_gid);
    const struct ibv_ah_attr *way = &asked->attributes->ah_attr;
    union ibv_gid local;
    if (query == NULL || query(asked->qp->context, way->port_num, way->grh.sgid_index, &local) != 0)
        return false;
    memcpy(&asked->pair.source, local.raw, sizeof asked->pair.source);
    memcpy(&asked->pair.destination, way->grh.dgid.raw, sizeof asked->pair.destination);
    return true;
}

static void choose(struct asked *asked, int plan)
{
    if (!lockstep_look_up(plan, &asked->pair, 0, &asked->found)) {
        asked->outcome = "damaged";
        return;
    }
    if (asked->found.lines == 0 || !carries_data(asked->qp))
        return;
    if (lockstep_is_stale(&newest_generation, asked->found.generation)) {
        asked->outcome = "stale";
    } else if (asked->attributes->ah_attr.grh.flow_label != 0) {
        asked->outcome = "bound";
    } else if (!lockstep_is_mlx5(asked->qp->context->device) &&
               !lockstep_takes_labels(asked->qp->context->device->name)) {
        asked->outcome = "unsupported";
    } else {
        uint32_t wanted = lockstep_count_pair(&asked->pair) % asked->found.lines; /* a second round begins anew */
        if (wanted == 0 || lockstep_look_up(plan, &asked->pair, wanted, &asked->found))
            asked->label = lockstep_label_of(asked->found.port);
    }
}

static void prepare(struct asked *asked)
{
    int plan = plan_path[0] && read_pair(asked) ? lockstep_open_plan(plan_path) : -1;
    if (plan < 0)
        return;
    choose(asked, plan);
    close(plan);
}

/* The program's own structure, put back afterwards: a copy would have the size that our header knows, not theirs. */
static int modify_with_label(struct asked *asked, modify_fn *next, int mask)
{
    struct ibv_global_route *route = &asked->attributes->ah_attr.grh;
    route->flow_label = asked->label;
    int problem = next(asked->qp, asked->attributes, mask);
    route->flow_label = 0;
    asked->outcome = problem == 0 ? "enforced" : "unsupported";
    if (problem)
        return next(asked->qp, asked->attributes, mask);
    struct lockstep_promise promise = {asked->qp, asked->pair, asked->found.generation, asked->found.port};
    if (lockstep_is_mlx5(asked->qp->context->device) && lockstep_promise(&promise))
        asked->outcome = NULL; /* known when it sends */
    return 0;
}

static void report(const struct asked *asked)
{
    struct lockstep_end local = {.address = asked->pair.source, .port = asked->label ? asked->found.port : 0};
    struct lockstep_end remote = {.address = asked->pair.destination, .port = ROCE_PORT};
    lockstep_report(report_directory, &local, &remote, asked->found.generation, asked->outcome);
}

/* A queue pair of mlx5 begins to send: now its port can be asked for. */
static void keep_promise(struct ibv_qp *qp)
{
    struct lockstep_promise promise;
    if (!lockstep_take_promise(qp, &promise))
        return;
    struct asked asked = {.qp = qp, .pair = promise.pair, .found = {promise.generation, 1, promise.port}, .label = 1};
    asked.outcome = lockstep_ask_mlx5(qp, promise.port) ? "enforced" : "unsupported";
    report(&asked);
}

__attribute__((visibility("default"))) int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask)
{
    struct asked asked = {.qp = qp, .attributes = attributes};
    int kept = errno;
    if (atomic_load(&next_modify) == NULL)
        find_verbs();
    modify_fn *next = atomic_load(&next_modify);
    if (next == NULL)
        return ENOSYS;
    if (is_on_its_way(attributes, mask))
        prepare(&asked);
    errno = kept;
    int problem = asked.label ? modify_with_label(&asked, next, mask) : next(qp, attributes, mask);
    kept = errno;
    if (asked.outcome)
        report(&asked);
    if (problem == 0 && mask & IBV_QP_STATE && attributes->qp_state == IBV_QPS_RTS)
        keep_promise(qp);
    errno = kept;
    return problem;
}
