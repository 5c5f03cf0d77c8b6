#include "wire.h"

#include <string.h>

enum { BTH_BYTES = 12, RETH_BYTES = 16, AETH_BYTES = 4, IMM_BYTES = 4, DEFAULT_PKEY = 0xffff };

static uint8_t position_of(const struct soft_packet *packet)
{
    return packet->opcode < SOFT_WRITE ? packet->opcode : (uint8_t)(packet->opcode - SOFT_WRITE);
}

bool soft_is_write(const struct soft_packet *packet)
{
    return packet->opcode >= SOFT_WRITE;
}

bool soft_is_first(const struct soft_packet *packet)
{
    uint8_t position = position_of(packet);
    return position == SOFT_FIRST || position >= SOFT_ONLY;
}

bool soft_is_last(const struct soft_packet *packet)
{
    return position_of(packet) >= SOFT_LAST;
}

bool soft_has_imm(const struct soft_packet *packet)
{
    uint8_t position = position_of(packet);
    return position == SOFT_LAST_IMM || position == SOFT_ONLY_IMM;
}

static void put(uint8_t *bytes, uint64_t value, size_t width)
{
    for (size_t i = 0; i < width; i++)
        bytes[i] = (uint8_t)(value >> (8 * (width - 1 - i)));
}

static uint64_t get(const uint8_t *bytes, size_t width)
{
    uint64_t value = 0;
    for (size_t i = 0; i < width; i++)
        value = value << 8 | bytes[i];
    return value;
}

static size_t put_request(const struct soft_packet *packet, uint8_t *bytes)
{
    size_t at = 0;
    if (soft_is_write(packet) && soft_is_first(packet)) {
        put(bytes, packet->address, 8);
        put(bytes + 8, packet->rkey, 4);
        put(bytes + 12, packet->length, 4);
        at = RETH_BYTES;
    }
    if (soft_has_imm(packet)) {
        memcpy(bytes + at, &packet->imm, IMM_BYTES);
        at += IMM_BYTES;
    }
    return at;
}

size_t soft_encode(const struct soft_packet *packet, uint8_t *bytes)
{
    bytes[0] = packet->opcode;
    bytes[1] = 0x40; /* migrated, no padding: payloads are cut to their length, not to words */
    put(bytes + 2, DEFAULT_PKEY, 2);
    put(bytes + 4, packet->destination, 4);
    put(bytes + 8, packet->psn & SOFT_PSN_MASK, 4);
    if (packet->wants_ack)
        bytes[8] = 0x80;
    if (packet->opcode != SOFT_ACKNOWLEDGE)
        return BTH_BYTES + put_request(packet, bytes + BTH_BYTES);
    put(bytes + BTH_BYTES, (uint64_t)packet->syndrome << 24 | (packet->psn & SOFT_PSN_MASK), AETH_BYTES);
    return BTH_BYTES + AETH_BYTES;
}

static bool get_request(const uint8_t *bytes, size_t length, struct soft_packet *packet)
{
    size_t at = 0;
    size_t reth = soft_is_write(packet) && soft_is_first(packet) ? RETH_BYTES : 0;
    size_t imm = soft_has_imm(packet) ? IMM_BYTES : 0;
    if (length < reth + imm)
        return false;
    if (reth) {
        packet->address = get(bytes, 8);
        packet->rkey = (uint32_t)get(bytes + 8, 4);
        packet->length = (uint32_t)get(bytes + 12, 4);
        at = reth;
    }
    if (imm)
        memcpy(&packet->imm, bytes + at, IMM_BYTES);
    packet->payload = bytes + at + imm;
    packet->payload_bytes = length - at - imm;
    return true;
}

bool soft_decode(const uint8_t *bytes, size_t length, struct soft_packet *packet)
{
    memset(packet, 0, sizeof *packet);
    if (length < BTH_BYTES + SOFT_ICRC_BYTES)
        return false;
    packet->opcode = bytes[0];
    packet->destination = (uint32_t)get(bytes + 5, 3);
    packet->wants_ack = bytes[8] & 0x80;
    packet->psn = (uint32_t)get(bytes + 9, 3);
    length -= BTH_BYTES + SOFT_ICRC_BYTES;
    if (packet->opcode < SOFT_WRITE + SOFT_POSITIONS)
        return get_request(bytes + BTH_BYTES, length, packet);
    if (packet->opcode != SOFT_ACKNOWLEDGE || length < AETH_BYTES)
        return false;
    packet->syndrome = bytes[BTH_BYTES];
    return true;
}

int32_t soft_psn_distance(uint32_t from, uint32_t to)
{
    return (int32_t)((to - from) << 8) >> 8;
}

uint16_t soft_label_port(uint32_t label)
{
    return (uint16_t)(((label & 0x3fff) ^ ((label & 0xfc000) >> 14)) | 0xc000);
}

uint32_t soft_default_label(uint32_t local_qpn, uint32_t remote_qpn)
{
    uint64_t mixed = (uint64_t)local_qpn * remote_qpn;
    mixed ^= mixed >> 20;
    mixed ^= mixed >> 40;
    return (uint32_t)(mixed & 0xfffff);
}
