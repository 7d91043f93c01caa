/* Rows of fixed width in memory that several processes map.
 *
 * A ticket is the number of a row; its slot is ticket modulo capacity. The slot's sequence word
 * tells whose row it holds and whether it is complete, so nobody ever waits: a writer that finds
 * the slot busy drops its row and counts it, and a reader that finds a sequence other than it
 * expects skips the row.
 *
 * A ring may have spare slots: they follow the others in a file that takes room only where it was
 * written. While rows wait because nobody archives them, new rows go there, so that the others are
 * not overwritten. Which slots are used now is one word that writers read; a reader looks in both
 * places, so it does not matter when a writer sees that word change.
 */
#include "format/format.h"

#include <errno.h>
#include <string.h>

static const char ring_magic[8] = {'S', 'O', 'N', 'D', 'E', 'R', 'N', 'G'};

static sonde_slot *slot_of(const sonde_ring_handle *ring, uint64_t ticket)
{
    return (sonde_slot *)(ring->slots + (ticket & (ring->capacity - 1)) * ring->slot_bytes);
}

static sonde_slot *spare_of(const sonde_ring_handle *ring, uint64_t ticket)
{
    uint64_t at = ring->capacity + (ticket & (ring->spare - 1));
    return (sonde_slot *)(ring->slots + at * ring->slot_bytes);
}

static uint64_t header_bytes_for(uint32_t schema_bytes)
{
    uint64_t bytes = sizeof(sonde_ring) + (uint64_t)schema_bytes;
    return (bytes + SONDE_PAGE - 1) / SONDE_PAGE * SONDE_PAGE;
}

uint64_t sonde_ring_bytes(uint64_t capacity, uint32_t row_bytes, uint32_t schema_bytes)
{
    if (capacity < 2 || (capacity & (capacity - 1)) || capacity > (uint64_t)1 << 40)
        return 0;
    if (row_bytes == 0 || row_bytes % 8 || row_bytes > SONDE_MAX_ROW_BYTES)
        return 0;
    if (schema_bytes > 1u << 20)
        return 0;
    return header_bytes_for(schema_bytes) + capacity * (sizeof(sonde_slot) + row_bytes);
}

/* The check of a header; `schema` is what follows it. */
static uint32_t header_check(const sonde_ring *ring, const void *schema)
{
    sonde_ring copy;
    memcpy(&copy, ring, offsetof(sonde_ring, spare));
    copy.check = 0;
    uint64_t parts[3] = {
        sonde_check_bytes(&copy, offsetof(sonde_ring, spare)),
        sonde_check_bytes(schema, ring->schema_bytes),
        ring->spare,
    };
    return sonde_check_bytes(parts, ring->spare ? sizeof parts : 2 * sizeof *parts);
}

int sonde_ring_add_spare(void *mem, uint64_t mem_bytes, uint64_t spare)
{
    sonde_ring *ring = mem;
    uint64_t bytes = sonde_ring_bytes(ring->capacity, ring->row_bytes, ring->schema_bytes);
    if (spare < 4 || (spare & (spare - 1)) || ring->capacity < 16 ||
        (mem_bytes - bytes) / ring->slot_bytes < spare)
        return -EINVAL;
    ring->spare = spare;
    ring->check = header_check(ring, ring + 1);
    return 0;
}

int sonde_ring_init(void *mem, uint64_t mem_bytes, uint64_t capacity, uint32_t row_bytes,
                    const void *schema, uint32_t schema_bytes)
{
    uint64_t bytes = sonde_ring_bytes(capacity, row_bytes, schema_bytes);
    if (bytes == 0 || bytes > mem_bytes)
        return -EINVAL;
    sonde_ring *ring = mem;
    memcpy(ring->magic, ring_magic, sizeof ring_magic);
    ring->version = SONDE_FORMAT_VERSION;
    ring->header_bytes = (uint32_t)header_bytes_for(schema_bytes);
    ring->capacity = capacity;
    ring->row_bytes = row_bytes;
    ring->slot_bytes = (uint32_t)sizeof(sonde_slot) + row_bytes;
    ring->schema_bytes = schema_bytes;
    memcpy(ring + 1, schema, schema_bytes);
    ring->check = header_check(ring, ring + 1);
    return 0;
}

int sonde_ring_open(sonde_ring_handle *ring, const void *mem, uint64_t mem_bytes)
{
    sonde_ring head;
    if (mem_bytes < sizeof head)
        return -EBADMSG;
    memcpy(&head, mem, sizeof head); /* what is checked here is what is used later */
    if (memcmp(head.magic, ring_magic, sizeof ring_magic))
        return -EBADMSG;
    if (head.version > SONDE_FORMAT_VERSION)
        return -EPROTO;
    uint64_t bytes = sonde_ring_bytes(head.capacity, head.row_bytes, head.schema_bytes);
    if (bytes == 0 || bytes > mem_bytes || head.slot_bytes != sizeof(sonde_slot) + head.row_bytes ||
        head.header_bytes != header_bytes_for(head.schema_bytes) ||
        head.check != header_check(&head, (const sonde_ring *)mem + 1) ||
        (head.spare & (head.spare - 1)) || (mem_bytes - bytes) / head.slot_bytes < head.spare ||
        (head.spare && head.capacity < 16))
        return -EBADMSG;
    *ring = (sonde_ring_handle){.shared = (sonde_ring *)mem,
                                .slots = (char *)mem + head.header_bytes,
                                .capacity = head.capacity,
                                .spare = head.spare,
                                .row_bytes = head.row_bytes,
                                .slot_bytes = head.slot_bytes,
                                .schema_bytes = head.schema_bytes};
    return 0;
}

static uint64_t seed_of(uint64_t ticket, uint32_t nulls) { return ticket ^ (uint64_t)nulls << 32; }

uint64_t sonde_ring_reach(const sonde_ring_handle *ring)
{
    return ring->capacity + (sonde_load_relaxed(&ring->shared->was_spare) ? ring->spare : 0);
}

/* Now and then: do new rows belong to the spare slots? Relaxed: see the top of this file. */
static void choose_slots(const sonde_ring_handle *ring, uint64_t ticket)
{
    sonde_ring *shared = ring->shared;
    /* Negative if we were asleep, and later rows have been archived. */
    int64_t waiting = (int64_t)(ticket - sonde_load_relaxed(&shared->archived));
    if (waiting >= (int64_t)(ring->capacity / 2) && !sonde_load_relaxed(&shared->is_spare)) {
        sonde_store_relaxed(&shared->was_spare, 1);
        sonde_store_relaxed(&shared->is_spare, 1);
    } else if (waiting < (int64_t)(ring->capacity / 4)) {
        sonde_store_relaxed(&shared->is_spare, 0);
    }
}

static sonde_slot *choose_slot(const sonde_ring_handle *ring, uint64_t ticket)
{
    if ((ticket & (ring->capacity / 8 - 1)) == 0)
        choose_slots(ring, ticket);
    return sonde_load_relaxed(&ring->shared->is_spare) ? spare_of(ring, ticket) : slot_of(ring, ticket);
}

int sonde_ring_append(const sonde_ring_handle *ring, const uint64_t *row, uint32_t nulls)
{
    uint64_t ticket = sonde_add_relaxed(&ring->shared->head, 1);
    uint64_t done = 2 * (ticket + 1);
    uint32_t words = ring->row_bytes / 8;
    sonde_slot *slot = ring->spare ? choose_slot(ring, ticket) : slot_of(ring, ticket);
    uint64_t seen = sonde_load_relaxed(&slot->seq);
    /* Odd: an earlier writer is asleep in the middle of this slot. Larger: we were asleep, and a
     * later row is already here. Either way ours is the row that is lost. Acquire: we take the
     * slot after its last writer's bytes. */
    if ((seen & 1) || seen >= done || !sonde_cas_acquire(&slot->seq, &seen, done - 1)) {
        sonde_add_relaxed(&ring->shared->dropped, 1);
        return -EAGAIN;
    }
    /* The busy number is visible before any byte of the row: a reader that sees a new byte and
     * then reads seq again sees that number. */
    sonde_fence_release();
    uint64_t check = sonde_check_begin(seed_of(ticket, nulls));
    for (uint32_t i = 0; i < words; i++) {
        sonde_store_relaxed(&slot->row[i], row[i]);
        check = sonde_check_word(check, i, row[i]);
    }
    sonde_store_relaxed(&slot->nulls, nulls);
    sonde_store_relaxed(&slot->check, sonde_check_end(check));
    /* Release: every byte of the row is stored before the number that says it is complete. */
    sonde_store_release(&slot->seq, done);
    return 0;
}

/* Find the slot that has the row of a ticket, and what its sequence word says. If there is none:
 * a word that is larger if the row was overwritten. */
static const sonde_slot *find_slot(const sonde_ring_handle *ring, uint64_t ticket, uint64_t *seen)
{
    const sonde_slot *slot = slot_of(ring, ticket);
    /* Acquire: the number that says "complete" is read before the bytes it vouches for. */
    *seen = sonde_load_acquire(&slot->seq);
    if (*seen == 2 * (ticket + 1) || !ring->spare || !sonde_load_relaxed(&ring->shared->was_spare))
        return slot;
    const sonde_slot *spare = spare_of(ring, ticket);
    uint64_t second = sonde_load_acquire(&spare->seq); /* as above */
    if (second != 2 * (ticket + 1) && second < *seen)
        return slot;
    *seen = second;
    return spare;
}

enum sonde_slot_state sonde_ring_get(const sonde_ring_handle *ring, uint64_t ticket, uint64_t *row,
                                     uint32_t *nulls)
{
    uint64_t done = 2 * (ticket + 1);
    uint32_t words = ring->row_bytes / 8;
    uint64_t seen;
    const sonde_slot *slot = find_slot(ring, ticket, &seen);
    if (seen != done)
        return seen > done ? SONDE_ROW_LOST : SONDE_ROW_PENDING;
    *nulls = sonde_load_relaxed(&slot->nulls);
    uint64_t check = sonde_check_begin(seed_of(ticket, *nulls));
    for (uint32_t i = 0; i < words; i++) {
        row[i] = sonde_load_relaxed(&slot->row[i]);
        check = sonde_check_word(check, i, row[i]);
    }
    uint32_t stored = sonde_load_relaxed(&slot->check);
    /* The bytes are read before seq is read again; pairs with the writer's fence. */
    sonde_fence_acquire();
    if (sonde_load_relaxed(&slot->seq) != done)
        return SONDE_ROW_LOST;
    return stored == sonde_check_end(check) ? SONDE_ROW_OK : SONDE_ROW_CORRUPT;
}

uint64_t sonde_ring_settled(const sonde_ring_handle *ring, uint64_t first, uint64_t last)
{
    for (uint64_t ticket = first; ticket < last; ticket++) {
        uint64_t seen;
        (void)find_slot(ring, ticket, &seen);
        if (seen < 2 * (ticket + 1))
            return ticket;
    }
    return last;
}

void sonde_ring_free_slots(const sonde_ring_handle *ring)
{
    for (uint64_t i = 0; i < sonde_ring_reach(ring); i++) {
        sonde_slot *slot = (sonde_slot *)(ring->slots + i * ring->slot_bytes);
        /* Relaxed: nobody writes now. 0 means "never used", and the next writer takes the slot. */
        if (sonde_load_relaxed(&slot->seq) & 1)
            sonde_store_relaxed(&slot->seq, 0);
    }
}
