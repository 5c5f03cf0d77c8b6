/* The packets of RoCE v2 that RC queue pairs exchange, as the InfiniBand specification lays them out (volume 1, chapter
 * 9), so that a packet dump shows them. The invariant checksum at their end is left zero: UDP has one of its own. */
#ifndef LOCKSTEP_SOFTVERBS_WIRE_H
#define LOCKSTEP_SOFTVERBS_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SOFT_PSN_MASK = 0xffffff,
    SOFT_HEADER_BYTES = 12 + 16 + 4, /* BTH, RETH, immediate data */
    SOFT_ICRC_BYTES = 4,
};

/* Opcodes of reliable connections; _FIRST, _MIDDLE, _LAST, _LAST_IMM, _ONLY, _ONLY_IMM follow each other. */
enum soft_opcode { SOFT_SEND = 0x00, SOFT_WRITE = 0x06, SOFT_ACKNOWLEDGE = 0x11 };
enum soft_position { SOFT_FIRST, SOFT_MIDDLE, SOFT_LAST, SOFT_LAST_IMM, SOFT_ONLY, SOFT_ONLY_IMM, SOFT_POSITIONS };

/* Syndromes of an acknowledgement. */
enum {
    SOFT_ACK = 0x1f, /* without credits */
    SOFT_RNR = 0x20,
    SOFT_NAK_SEQUENCE = 0x60,
    SOFT_NAK_INVALID = 0x61,
    SOFT_NAK_ACCESS = 0x62,
};

struct soft_packet {
    uint8_t opcode, syndrome;
    bool wants_ack;
    uint32_t destination, psn; /* psn: 24 bits */
    uint64_t address;
    uint32_t rkey, length, imm; /* imm: in the order of the network */
    const uint8_t *payload;
    size_t payload_bytes;
};

bool soft_is_first(const struct soft_packet *packet);
bool soft_is_last(const struct soft_packet *packet);
bool soft_has_imm(const struct soft_packet *packet);
bool soft_is_write(const struct soft_packet *packet);

/* Writes the headers of a packet into `bytes`, at least SOFT_HEADER_BYTES; returns their length. */
size_t soft_encode(const struct soft_packet *packet, uint8_t *bytes);
/* Reads a packet, whose payload stays where it is; false for what is none of ours. */
bool soft_decode(const uint8_t *bytes, size_t length, struct soft_packet *packet);

/* How far apart two packet sequence numbers are, as 24-bit numbers that go round. */
int32_t soft_psn_distance(uint32_t from, uint32_t to);

/* Linux's rule (include/rdma/ib_verbs.h): the source port of a flow label, and the label where none is given. */
uint16_t soft_label_port(uint32_t label);
uint32_t soft_default_label(uint32_t local_qpn, uint32_t remote_qpn);

#endif
