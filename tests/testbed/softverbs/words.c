/* What numbers of verbs are called, in rdma-core's words where programs of ours compare them. */
#include "softverbs.h"

SOFT_EXPORT const char *ibv_wc_status_str(enum ibv_wc_status status)
{
    static const char *const names[] = {
        [IBV_WC_SUCCESS] = "success",
        [IBV_WC_LOC_LEN_ERR] = "local length error",
        [IBV_WC_LOC_QP_OP_ERR] = "local QP operation error",
        [IBV_WC_LOC_PROT_ERR] = "local protection error",
        [IBV_WC_WR_FLUSH_ERR] = "Work Request Flushed Error",
        [IBV_WC_REM_INV_REQ_ERR] = "remote invalid request error",
        [IBV_WC_REM_ACCESS_ERR] = "remote access error",
        [IBV_WC_REM_OP_ERR] = "remote operation error",
        [IBV_WC_RETRY_EXC_ERR] = "transport retry counter exceeded",
        [IBV_WC_RNR_RETRY_EXC_ERR] = "RNR retry counter exceeded",
    };
    return status < sizeof names / sizeof *names && names[status] ? names[status] : "unknown";
}

SOFT_EXPORT const char *ibv_event_type_str(enum ibv_event_type event)
{
    static const char *const names[] = {
        [IBV_EVENT_CQ_ERR] = "CQ error",
        [IBV_EVENT_QP_FATAL] = "local work queue catastrophic error",
        [IBV_EVENT_QP_REQ_ERR] = "invalid request local work queue error",
        [IBV_EVENT_QP_ACCESS_ERR] = "local access violation work queue error",
        [IBV_EVENT_PORT_ACTIVE] = "port active",
        [IBV_EVENT_PORT_ERR] = "port error",
    };
    return event < sizeof names / sizeof *names && names[event] ? names[event] : "unknown";
}

SOFT_EXPORT const char *ibv_port_state_str(enum ibv_port_state state)
{
    return state == IBV_PORT_ACTIVE ? "active" : state == IBV_PORT_DOWN ? "down" : "invalid state";
}

SOFT_EXPORT const char *ibv_node_type_str(enum ibv_node_type type)
{
    return type == IBV_NODE_CA ? "InfiniBand channel adapter" : "unknown";
}
