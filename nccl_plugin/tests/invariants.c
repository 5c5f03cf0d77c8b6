/* What always holds of a ring file that nobody writes at the moment. */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

static void check_section(const struct ringfile *file, const struct wire_section *section, uint64_t count, size_t bytes)
{
    EQUAL(section->count, count);
    CHECK(section->stride >= bytes && section->offset >= sizeof(struct wire_header) && section->offset % 8 == 0);
    CHECK(section->offset + (uint64_t)section->count * section->stride <= file->size);
}

static void check_header(const struct ringfile *file)
{
    const struct wire_header *header = header_of(file);
    const uint64_t rings = header->rings.count;

    CHECK(file->size >= sizeof *header && memcmp(header->magic, WIRE_MAGIC, 8) == 0);
    EQUAL(header->version, WIRE_VERSION);
    EQUAL(header->ready, 1);
    EQUAL(header->file_bytes, file->size);
    CHECK(rings >= 2 && header->tag <= 0xffff);
    CHECK(header->clock_kind >= WIRE_CLOCK_TSC && header->clock_kind <= WIRE_CLOCK_REPLAY);
    check_section(file, &header->requests, 1, sizeof(struct wire_request));
    check_section(file, &header->status, 1, sizeof(struct wire_status));
    check_section(file, &header->clocks, WIRE_CLOCK_PAIRS, sizeof(struct wire_clock_pair));
    check_section(file, &header->comms, WIRE_COMMS, sizeof(struct wire_comm));
    check_section(file, &header->rows, WIRE_ROWS, sizeof(struct wire_row));
    check_section(file, &header->rings, rings, sizeof(struct wire_ring));
    check_section(file, &header->records, rings * (uint32_t)ring_records(file), sizeof(struct wire_record));
    CHECK(ring_records(file) >= WIRE_RING_RECORDS);
    check_section(file, &header->operations, rings * WIRE_RING_OPERATIONS, sizeof(struct wire_operation));
    check_section(file, &header->transfers, rings * WIRE_RING_TRANSFERS, sizeof(struct wire_transfer));
}

/* In the shared ring (number 0) a record may be missing where two threads met. */
static void check_ring(const struct ringfile *file, unsigned number)
{
    const struct wire_ring *ring = ring_at(file, number);
    uint64_t missing = 0;

    for (uint64_t at = oldest_number(file, number); at < ring->head; at++) {
        const struct wire_record *record = record_at(file, number, at);

        if (number == 0 && record->stamp != at / ring_records(file) + 1) {
            missing++;
            continue;
        }
        EQUAL(record->stamp, at / ring_records(file) + 1);
        CHECK(record->kind >= WIRE_ENQUEUED && record->kind <= WIRE_CALLBACK);
        CHECK(record->comm < WIRE_COMMS || record->comm == WIRE_NO_COMM);
    }
    CHECK(missing <= ring->lost);
    CHECK(number == 0 || ring->lost == 0);
    CHECK(ring->sampled_callbacks <= ring->callbacks);
}

/* Counts the open transfers of every operation that still has its place. */
static void count_parts(const struct ringfile *file, uint16_t *open)
{
    const struct wire_header *header = header_of(file);

    for (unsigned place = 0; place < header->transfers.count; place++) {
        const struct wire_transfer *transfer = transfer_at(file, place);
        const uint64_t slot = transfer->operation & 0xffff;

        if (transfer->handle == 0)
            continue;
        EQUAL(transfer->handle >> WIRE_TAG_SHIFT, header->tag);
        EQUAL(transfer->handle & 0xffff, place);
        CHECK(transfer->comm < WIRE_COMMS || transfer->comm == WIRE_NO_COMM);
        CHECK(transfer->wait >> 56 < WIRE_WAITS);
        if (transfer->last_ticks == 0 && transfer->pid == 0 && slot < header->operations.count
            && operation_at(file, slot)->handle == transfer->operation)
            open[slot]++;
    }
}

/* A transfer that lost its place while another thread ended it, which only hostile callers do, counts down twice. */
static void check_operation(const struct wire_operation *operation, unsigned open_transfers, bool overwritten)
{
    CHECK(operation->open <= operation->began);
    CHECK(open_transfers <= operation->open || overwritten);
    CHECK(operation->func < WIRE_FUNCS && operation->dtype < WIRE_DTYPES);
    CHECK(operation->algo < WIRE_ALGOS && operation->proto < WIRE_PROTOS);
    CHECK(operation->comm < WIRE_COMMS || operation->comm == WIRE_NO_COMM);
    CHECK(operation->row < WIRE_ROWS || operation->row == WIRE_BUSY);
}

static void check_operations(const struct ringfile *file)
{
    const struct wire_header *header = header_of(file);
    uint16_t *open = calloc(header->operations.count, sizeof *open);

    CHECK(open != NULL);
    count_parts(file, open);
    for (unsigned place = 0; place < header->operations.count; place++) {
        const struct wire_operation *operation = operation_at(file, place);

        if (operation->handle == 0)
            continue;
        EQUAL(operation->handle >> WIRE_TAG_SHIFT, header->tag);
        EQUAL(operation->handle & 0xffff, place);
        check_operation(operation, open[place], status_of(file)->overwritten > 0);
    }
    free(open);
}

static void check_rows(const struct ringfile *file)
{
    for (unsigned place = 0; place < header_of(file)->rows.count; place++) {
        const struct wire_row *row = row_at(file, place);

        if (row->key == 0 || row->key == UINT64_MAX) /* never used, or given up with its communicator */
            continue;
        CHECK((row->key >> 40) - 1 < WIRE_COMMS);
        CHECK((row->key >> 32 & 0xff) < WIRE_FUNCS);
    }
}

void check_file(const struct ringfile *file)
{
    check_header(file);
    for (unsigned number = 0; number < header_of(file)->rings.count; number++)
        check_ring(file, number);
    check_operations(file);
    check_rows(file);
    CHECK(status_of(file)->level <= WIRE_TRACE && status_of(file)->share <= 65536 && status_of(file)->epoch >= 1);
}
