/* Bytes to ids: append-only, shared between processes, without a lock.
 *
 * An insert reserves room, fills it, and only then publishes the id in the hash index with one
 * compare-and-swap. Two threads that insert the same bytes at once waste one entry; the index
 * names one of the two. A process that dies in the middle leaves an entry that nothing points to.
 */
#include "format/format.h"

#include <errno.h>
#include <string.h>

static const char intern_magic[8] = {'S', 'O', 'N', 'D', 'E', 'I', 'N', 'T'};

/* A reservation that loses this many races in a row counts as "full", so that every loop here is
 * bounded. */
#define RESERVE_TRIES 1024

enum { NEAR_SLOTS = 4096, NEAR_TRIES = 8 };

static uint32_t slots_for(uint32_t entries)
{
    uint32_t slots = 2;
    while (slots < 2 * entries)
        slots *= 2;
    return slots;
}

uint64_t sonde_intern_bytes(uint32_t entries, uint64_t data_bytes)
{
    if (entries == 0 || entries > 1u << 28 || data_bytes == 0 || data_bytes > (uint64_t)1 << 40)
        return 0;
    return SONDE_PAGE + (uint64_t)entries * sizeof(sonde_entry) +
           (uint64_t)slots_for(entries) * sizeof(uint32_t) + data_bytes;
}

static uint32_t header_check(const sonde_intern *table)
{
    sonde_intern copy;
    memcpy(&copy, table, offsetof(sonde_intern, pad0));
    copy.check = 0;
    return sonde_check_bytes(&copy, offsetof(sonde_intern, pad0));
}

int sonde_intern_init(void *mem, uint64_t mem_bytes, uint32_t entries, uint64_t data_bytes)
{
    uint64_t bytes = sonde_intern_bytes(entries, data_bytes);
    if (bytes == 0 || bytes > mem_bytes)
        return -EINVAL;
    sonde_intern *table = mem;
    memcpy(table->magic, intern_magic, sizeof intern_magic);
    table->version = SONDE_FORMAT_VERSION;
    table->header_bytes = SONDE_PAGE;
    table->entries = entries;
    table->slots = slots_for(entries);
    table->data_bytes = data_bytes;
    table->check = header_check(table);
    return 0;
}

int sonde_intern_open(sonde_intern_handle *table, const void *mem, uint64_t mem_bytes)
{
    sonde_intern head;
    if (mem_bytes < sizeof head)
        return -EBADMSG;
    memcpy(&head, mem, sizeof head); /* what is checked here is what is used later */
    if (memcmp(head.magic, intern_magic, sizeof intern_magic))
        return -EBADMSG;
    if (head.version > SONDE_FORMAT_VERSION)
        return -EPROTO;
    uint64_t bytes = sonde_intern_bytes(head.entries, head.data_bytes);
    if (bytes == 0 || bytes > mem_bytes || head.header_bytes != SONDE_PAGE ||
        head.slots != slots_for(head.entries) || head.check != header_check(&head))
        return -EBADMSG;
    sonde_entry *entry = (sonde_entry *)((char *)mem + SONDE_PAGE);
    uint32_t *slot = (uint32_t *)(entry + head.entries);
    *table = (sonde_intern_handle){.shared = (sonde_intern *)mem,
                                   .entry = entry,
                                   .slot = slot,
                                   .data = (char *)(slot + head.slots),
                                   .entries = head.entries,
                                   .slots = head.slots,
                                   .data_bytes = head.data_bytes};
    return 0;
}

static sonde_entry *entry_of(const sonde_intern_handle *table, uint32_t id)
{
    return &table->entry[id - 1];
}

/* Where an entry's bytes are, or NULL if they would leave the table. Both numbers are read once. */
static const char *find_bytes(const sonde_intern_handle *table, const sonde_entry *entry,
                              uint32_t *bytes_n)
{
    uint64_t offset = sonde_load_relaxed(&entry->offset);
    uint32_t bytes = sonde_load_relaxed(&entry->bytes);
    if (offset > table->data_bytes || bytes > table->data_bytes - offset)
        return NULL;
    *bytes_n = bytes;
    return table->data + offset;
}

/* An entry's check holds for its own id only: one that stands in another's place is damage. */
static uint32_t bind(uint32_t id, uint32_t check)
{
    uint64_t both = (uint64_t)id << 32 | check;
    return sonde_check_bytes(&both, sizeof both);
}

const void *sonde_intern_get(const sonde_intern_handle *table, uint32_t id, uint32_t *bytes_n)
{
    if (id == 0 || id > table->entries)
        return NULL;
    const sonde_entry *entry = entry_of(table, id);
    /* Acquire: the checksum is written last, so when it is there, so is the rest. */
    uint32_t check = sonde_load_acquire(&entry->check);
    if (check == 0)
        return NULL;
    const char *data = find_bytes(table, entry, bytes_n);
    return data != NULL && bind(id, sonde_check_bytes(data, *bytes_n)) == check ? data : NULL;
}

static int same(const sonde_intern_handle *table, uint32_t id, uint32_t check, const void *bytes,
                uint32_t bytes_n)
{
    const sonde_entry *entry = entry_of(table, id);
    if (sonde_load_acquire(&entry->check) != bind(id, check))
        return 0;
    uint32_t stored_n;
    const char *stored = find_bytes(table, entry, &stored_n);
    return stored != NULL && stored_n == bytes_n && memcmp(stored, bytes, bytes_n) == 0;
}

/* Reserve `bytes_n` data bytes and an id, fill both. 0 when full. */
static uint32_t insert(const sonde_intern_handle *table, uint32_t check, const void *bytes,
                       uint32_t bytes_n, enum sonde_text_share share)
{
    uint64_t room = table->data_bytes * share / 8, used = sonde_load_relaxed(&table->shared->used);
    /* The count is read before it is raised, so that refusals cannot make it wrap around. */
    if (sonde_load_relaxed(&table->shared->count) >= (uint64_t)table->entries * share / 8)
        return 0;
    for (int tries = 0;; tries++) {
        if (used > room || bytes_n > room - used || tries == RESERVE_TRIES)
            return 0;
        if (sonde_cas_relaxed(&table->shared->used, &used, used + bytes_n))
            break;
    }
    uint32_t id = sonde_add_relaxed(&table->shared->count, 1) + 1;
    if (id > table->entries)
        return 0;
    sonde_entry *entry = entry_of(table, id);
    memcpy(table->data + used, bytes, bytes_n);
    entry->offset = used;
    entry->bytes = bytes_n;
    /* Release: bytes, offset and length are stored before the checksum that vouches for them. */
    sonde_store_release(&entry->check, bind(id, check));
    return id;
}

/* The slots that a text may have, in order. The first ones are near the beginning of the index, so a
 * table with few texts takes few pages of its file. */
static uint32_t *slot_at(const sonde_intern_handle *table, uint32_t check, uint32_t probe)
{
    uint32_t slots = probe < NEAR_TRIES && table->slots > NEAR_SLOTS ? NEAR_SLOTS : table->slots;
    return &table->slot[(check + probe) & (slots - 1)];
}

uint32_t sonde_intern_put_within(const sonde_intern_handle *table, const void *bytes,
                                 uint32_t bytes_n, enum sonde_text_share share)
{
    uint32_t check = sonde_check_bytes(bytes, bytes_n);
    uint32_t fresh = 0;
    for (uint32_t probe = 0; probe < table->slots; probe++) {
        uint32_t *slot = slot_at(table, check, probe);
        /* Acquire: the id is read before the entry that it names. */
        uint32_t id = sonde_load_acquire(slot);
        if (id == 0) {
            if (fresh == 0 && (fresh = insert(table, check, bytes, bytes_n, share)) == 0)
                break;
            /* Release: the entry is stored before the id that names it. */
            if (sonde_cas_release(slot, &id, fresh))
                return fresh;
        }
        if (id != 0 && id <= table->entries && same(table, id, check, bytes, bytes_n))
            return id;
    }
    sonde_add_relaxed(&table->shared->lost, 1);
    return 0;
}

uint32_t sonde_intern_put(const sonde_intern_handle *table, const void *bytes, uint32_t bytes_n)
{
    return sonde_intern_put_within(table, bytes, bytes_n, SONDE_TEXTS_OURS);
}
