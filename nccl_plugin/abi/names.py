"""NCCL's names for the parts of its profiler interface, and ours for the same.

A name of NCCL's that stands nowhere here stops the reader: a new release has something that we have not looked at.
"""

MEMBERS = {
    "ceColl": "ce_coll",
    "ceCollBatch": "ce_batch",
    "ceCollSync": "ce_sync",
    "coll": "coll",
    "collApi": "coll_api",
    "groupApi": "group_api",
    "kernelCh": "kernel_channel",
    "kernelLaunch": "kernel_launch",
    "kernelPhase": "kernel_phase",
    "netPlugin": "net_plugin",
    "p2p": "p2p",
    "p2pApi": "p2p_api",
    "proxyOp": "proxy_op",
    "proxyStep": "proxy_step",
}

_SAME = ("algo", "count", "data", "func", "id", "name", "op", "peer", "pid", "proto", "rank", "root", "step")
FIELDS = {name: name for name in _SAME} | {
    "batchSize": "batch",
    "buff": "buffer",
    "ceSeqNum": "ce_seq",
    "channelId": "channel",
    "chunkSize": "chunk",
    "commHash": "comm_id",
    "datatype": "dtype",
    "graphCaptured": "captured",
    "groupDepth": "depth",
    "intraBatchSync": "intra_sync",
    "isCollnet": "collnet",
    "isComplete": "complete",
    "isNvls": "nvls",
    "isSend": "send",
    "isSymColl": "symmetric",
    "kernelVariant": "variant",
    "nChannels": "channels",
    "nMaxChannels": "channels",  # v1 to v3
    "nRanks": "ranks",
    "nSteps": "steps",
    "nWarps": "warps",
    "numBatches": "batches",
    "numOps": "ops",
    "pTimer": "gpu_ns",
    "parentGroup": "group",
    "parentObj": "parent",
    "phaseId": "phase",
    "phaseName": "name",
    "recvBuff": "recv",
    "sendBuff": "send",
    "seqNumber": "seq",
    "stream": "stream",
    "syncStrategy": "sync",
    "totalBytes": "bytes",
    "trafficBytes": "traffic",
    "type": "type",
    "useIntraSync": "intra_sync",
    "userTag": "tag",
}

DESCRIPTOR = MEMBERS | FIELDS

# The arguments of a state: ours is one flat union.
ARGUMENTS = {
    "kernelCh.pTimer": "gpu_ns",
    "netPlugin.data": "data",
    "proxyCtrl.appendedProxyOps": "appended",
    "proxyOp.steps": "steps",
    "proxyOp.transSize": "bytes",
    "proxyStep.transSize": "bytes",
}

TABLE = {
    "finalize": "finalize",
    "init": "init",
    "name": "name",
    "recordEventState": "record",
    "startEvent": "start",
    "stopEvent": "stop",
}

EVENTS = {
    "ncclProfileCeBatch": "ABI_CE_BATCH",
    "ncclProfileCeColl": "ABI_CE_COLL",
    "ncclProfileCeSync": "ABI_CE_SYNC",
    "ncclProfileColl": "ABI_COLL",
    "ncclProfileCollApi": "ABI_COLL_API",
    "ncclProfileGroup": "ABI_GROUP",
    "ncclProfileGroupApi": "ABI_GROUP_API",
    "ncclProfileKernelCh": "ABI_KERNEL_CHANNEL",
    "ncclProfileKernelLaunch": "ABI_KERNEL_LAUNCH",
    "ncclProfileKernelPhase": "ABI_KERNEL_PHASE",
    "ncclProfileNetPlugin": "ABI_NET_PLUGIN",
    "ncclProfileP2p": "ABI_P2P",
    "ncclProfileP2pApi": "ABI_P2P_API",
    "ncclProfileProxyCtrl": "ABI_PROXY_CTRL",
    "ncclProfileProxyOp": "ABI_PROXY_OP",
    "ncclProfileProxyStep": "ABI_PROXY_STEP",
}

STATES = {
    "ncclProfilerCeBatchComplete": "ABI_CE_BATCH_COMPLETE",
    "ncclProfilerCeBatchStart": "ABI_CE_BATCH_START",
    "ncclProfilerCeCollComplete": "ABI_CE_COLL_COMPLETE",
    "ncclProfilerCeCollStart": "ABI_CE_COLL_START",
    "ncclProfilerCeSyncComplete": "ABI_CE_SYNC_COMPLETE",
    "ncclProfilerCeSyncStart": "ABI_CE_SYNC_START",
    "ncclProfilerGroupEndApiStart": "ABI_GROUP_END_START",
    "ncclProfilerGroupStartApiStop": "ABI_GROUP_START_STOP",
    "ncclProfilerKernelChStop": "ABI_KERNEL_STOP",
    "ncclProfilerKernelPhaseStop": "ABI_PHASE_STOP",
    "ncclProfilerNetPluginUpdate": "ABI_NET_PLUGIN_UPDATE",
    "ncclProfilerProxyCtrlActive": "ABI_CTRL_ACTIVE",
    "ncclProfilerProxyCtrlAppend": "ABI_CTRL_APPEND",
    "ncclProfilerProxyCtrlAppendEnd": "ABI_CTRL_APPEND_END",
    "ncclProfilerProxyCtrlIdle": "ABI_CTRL_IDLE",
    "ncclProfilerProxyCtrlSleep": "ABI_CTRL_SLEEP",
    "ncclProfilerProxyCtrlWakeup": "ABI_CTRL_WAKEUP",
    "ncclProfilerProxyOpInProgress_v4": "ABI_OP_IN_PROGRESS",
    "ncclProfilerProxyOpRecvDone": "ABI_OP_RECV_DONE",
    "ncclProfilerProxyOpRecvPosted": "ABI_OP_RECV_POSTED",
    "ncclProfilerProxyOpRecvReceived": "ABI_OP_RECV_RECEIVED",
    "ncclProfilerProxyOpRecvTransmitted": "ABI_OP_RECV_TRANSMITTED",
    "ncclProfilerProxyOpSendDone": "ABI_OP_SEND_DONE",
    "ncclProfilerProxyOpSendPosted": "ABI_OP_SEND_POSTED",
    "ncclProfilerProxyOpSendRemFifoWait": "ABI_OP_SEND_FIFO_WAIT",
    "ncclProfilerProxyOpSendTransmitted": "ABI_OP_SEND_TRANSMITTED",
    "ncclProfilerProxyStepRecvFlushWait": "ABI_RECV_FLUSH_WAIT",
    "ncclProfilerProxyStepRecvGPUWait": "ABI_RECV_GPU_WAIT",
    "ncclProfilerProxyStepRecvWait": "ABI_RECV_WAIT",
    "ncclProfilerProxyStepSendGPUWait": "ABI_SEND_GPU_WAIT",
    "ncclProfilerProxyStepSendPeerWait_v4": "ABI_SEND_PEER_WAIT",
    "ncclProfilerProxyStepSendWait": "ABI_SEND_WAIT",
}
