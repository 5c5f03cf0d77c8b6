/* A fake libibverbs.so.1: remembers how it was asked to modify a queue pair, and knows one address. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <string.h>

_Thread_local uint32_t fake_label;
_Thread_local unsigned fake_calls, fake_access;
bool fake_refuses_labels;

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask)
{
    (void)qp, (void)mask;
    fake_calls++;
    fake_label = attributes->ah_attr.grh.flow_label;
    return fake_refuses_labels && fake_label ? EINVAL : 0;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask, struct ibv_qp_init_attr *made)
{
    (void)qp, (void)mask, (void)made;
    attributes->qp_access_flags = fake_access;
    return 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
    static const uint8_t address[] = {0xff, 0xff, 10, 0, 0, 1};
    (void)context, (void)port, (void)index;
    memset(gid, 0, sizeof *gid);
    memcpy(&gid->raw[10], address, sizeof address);
    return 0;
}
