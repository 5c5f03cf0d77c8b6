/* NCCL's names and numbers as our codes. A name that we do not know is code 0, never an error. */
#include "plugin.h"

#include <string.h>

/* Jobs use few words again and again, so the last one is tried first. */
static uint8_t find(const char *name, const char *const *names, uint8_t count, uint8_t *last)
{
    const uint8_t guess = LOAD(*last);

    if (name == NULL)
        return 0;
    if (strcmp(name, names[guess]) == 0)
        return guess;
    for (uint8_t code = 1; code < count; code++)
        if (strcmp(name, names[code]) == 0) {
            STORE(*last, code);
            return code;
        }
    return 0;
}

static const char *const FUNCS[WIRE_FUNCS] = {
    [WIRE_FUNC_UNKNOWN] = "", [WIRE_ALL_REDUCE] = "AllReduce", [WIRE_ALL_GATHER] = "AllGather",
    [WIRE_REDUCE_SCATTER] = "ReduceScatter", [WIRE_BROADCAST] = "Broadcast", [WIRE_REDUCE] = "Reduce",
    [WIRE_SEND] = "Send", [WIRE_RECV] = "Recv", [WIRE_ALL_TO_ALL] = "AlltoAll", [WIRE_GATHER] = "Gather",
    [WIRE_SCATTER] = "Scatter",
};

static const char *const DTYPES[WIRE_DTYPES] = {
    [WIRE_DTYPE_UNKNOWN] = "", [WIRE_INT8] = "ncclInt8", [WIRE_UINT8] = "ncclUint8", [WIRE_INT32] = "ncclInt32",
    [WIRE_UINT32] = "ncclUint32", [WIRE_INT64] = "ncclInt64", [WIRE_UINT64] = "ncclUint64",
    [WIRE_FLOAT16] = "ncclFloat16", [WIRE_FLOAT32] = "ncclFloat32", [WIRE_FLOAT64] = "ncclFloat64",
    [WIRE_BFLOAT16] = "ncclBfloat16", [WIRE_FLOAT8E4M3] = "ncclFloat8e4m3", [WIRE_FLOAT8E5M2] = "ncclFloat8e5m2",
};

static const char *const ALGOS[WIRE_ALGOS] = {
    [WIRE_ALGO_UNKNOWN] = "", [WIRE_TREE] = "TREE", [WIRE_RING] = "RING", [WIRE_COLLNET_DIRECT] = "COLLNET_DIRECT",
    [WIRE_COLLNET_CHAIN] = "COLLNET_CHAIN", [WIRE_NVLS] = "NVLS", [WIRE_NVLS_TREE] = "NVLS_TREE", [WIRE_PAT] = "PAT",
};

static const char *const PROTOS[WIRE_PROTOS] = {
    [WIRE_PROTO_UNKNOWN] = "", [WIRE_LL] = "LL", [WIRE_LL128] = "LL128", [WIRE_SIMPLE] = "SIMPLE",
};

uint8_t word_func(const char *name)
{
    static uint8_t last;

    return find(name, FUNCS, WIRE_FUNCS, &last);
}

uint8_t word_dtype(const char *name)
{
    static uint8_t last;

    return find(name, DTYPES, WIRE_DTYPES, &last);
}

uint8_t word_algo(const char *name)
{
    static uint8_t last;

    return find(name, ALGOS, WIRE_ALGOS, &last);
}

uint8_t word_proto(const char *name)
{
    static uint8_t last;

    return find(name, PROTOS, WIRE_PROTOS, &last);
}

/* v1 knows functions, types, algorithms and protocols by NCCL's own numbers. */
uint8_t number_func(uint8_t number)
{
    static const uint8_t codes[] = {WIRE_BROADCAST,  WIRE_REDUCE, WIRE_ALL_GATHER, WIRE_REDUCE_SCATTER,
                                    WIRE_ALL_REDUCE, 0,           WIRE_SEND,       WIRE_RECV};

    return number < sizeof codes ? codes[number] : 0;
}

uint8_t number_dtype(uint8_t number)
{
    static const uint8_t codes[] = {WIRE_INT8,    WIRE_UINT8,   WIRE_INT32,   WIRE_UINT32,   WIRE_INT64,
                                    WIRE_UINT64,  WIRE_FLOAT16, WIRE_FLOAT32, WIRE_FLOAT64,  WIRE_BFLOAT16,
                                    WIRE_FLOAT8E4M3, WIRE_FLOAT8E5M2};

    return number < sizeof codes ? codes[number] : 0;
}

uint8_t number_algo(uint8_t number) { return number + 1 < WIRE_ALGOS ? (uint8_t)(number + 1) : 0; }

uint8_t number_proto(uint8_t number) { return number + 1 < WIRE_PROTOS ? (uint8_t)(number + 1) : 0; }

uint64_t dtype_bytes(uint8_t dtype)
{
    static const uint8_t bytes[WIRE_DTYPES] = {
        [WIRE_INT8] = 1,    [WIRE_UINT8] = 1,    [WIRE_INT32] = 4,    [WIRE_UINT32] = 4,
        [WIRE_INT64] = 8,   [WIRE_UINT64] = 8,   [WIRE_FLOAT16] = 2,  [WIRE_FLOAT32] = 4,
        [WIRE_FLOAT64] = 8, [WIRE_BFLOAT16] = 2, [WIRE_FLOAT8E4M3] = 1, [WIRE_FLOAT8E5M2] = 1,
    };

    return dtype < WIRE_DTYPES ? bytes[dtype] : 0;
}
