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

static uint32_t slots_for(uint32_t entries)
{
    uint32_t slots = 2;
    while (slots < 2 * entries)
        slots *= 2;
    return slots;
}

static sonde_entry *entry_of(const sonde_intern *table, uint32_t id)
{
    return (sonde_entry *)((char *)table + table->header_bytes) + (id - 1);
}

static uint32_t *slots_of(const sonde_intern *table)
{
    return (uint32_t *)entry_of(table, table->entries + 1);
}

static char *data_of(const sonde_intern *table)
{
    return (char *)(slots_of(table) + table->slots);
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

int sonde_intern_verify(const void *mem, uint64_t mem_bytes)
{
    const sonde_intern *table = mem;
    if (mem_bytes < sizeof *table || memcmp(table->magic, intern_magic, sizeof intern_magic))
        return -EBADMSG;
    if (table->version > SONDE_FORMAT_VERSION)
        return -EPROTO;
    uint64_t bytes = sonde_intern_bytes(table->entries, table->data_bytes);
    if (bytes == 0 || bytes > mem_bytes || table->header_bytes != SONDE_PAGE ||
        table->slots != slots_for(table->entries) || table->check != header_check(table))
        return -EBADMSG;
    return 0;
}

/* Bind a checksum to its id: an entry that stands in the place of another is damage. */
static uint32_t bind(uint32_t id, uint32_t check)
{
    uint64_t both = (uint64_t)id << 32 | check;
    return sonde_check_bytes(&both, sizeof both);
}

const void *sonde_intern_get(const sonde_intern *table, uint32_t id, uint32_t *bytes_n)
{
    if (id == 0 || id > table->entries)
        return NULL;
    const sonde_entry *entry = entry_of(table, id);
    /* Acquire: the checksum is written last, so when it is there, so is the rest. */
    uint32_t check = sonde_load_acquire(&entry->check);
    if (check == 0)
        return NULL;
    uint64_t offset = entry->offset;
    uint32_t bytes = entry->bytes;
    if (offset > table->data_bytes || bytes > table->data_bytes - offset)
        return NULL;
    const char *data = data_of(table) + offset;
    if (bind(id, sonde_check_bytes(data, bytes)) != check)
        return NULL;
    *bytes_n = bytes;
    return data;
}

static int same(const sonde_intern *table, uint32_t id, uint32_t check, const void *bytes,
                uint32_t bytes_n)
{
    const sonde_entry *entry = entry_of(table, id);
    return sonde_load_acquire(&entry->check) == bind(id, check) && entry->bytes == bytes_n &&
           entry->offset <= table->data_bytes && bytes_n <= table->data_bytes - entry->offset &&
           memcmp(data_of(table) + entry->offset, bytes, bytes_n) == 0;
}

/* Reserve `bytes_n` data bytes and an id, and fill both. Returns 0 when the table is full. */
static uint32_t insert(sonde_intern *table, uint32_t check, const void *bytes, uint32_t bytes_n)
{
    uint64_t used = sonde_load_relaxed(&table->used);
    for (int tries = 0;; tries++) {
        if (used > table->data_bytes || bytes_n > table->data_bytes - used || tries == RESERVE_TRIES)
            return 0;
        if (sonde_cas_relaxed(&table->used, &used, used + bytes_n))
            break;
    }
    /* Checked before it is raised, so that refusals cannot make it wrap around. */
    if (sonde_load_relaxed(&table->count) >= table->entries)
        return 0;
    uint32_t id = sonde_add_relaxed(&table->count, 1) + 1;
    if (id > table->entries)
        return 0;
    sonde_entry *entry = entry_of(table, id);
    memcpy(data_of(table) + used, bytes, bytes_n);
    entry->offset = used;
    entry->bytes = bytes_n;
    /* Release: bytes, offset and length are stored before the checksum that vouches for them. */
    sonde_store_release(&entry->check, bind(id, check));
    return id;
}

uint32_t sonde_intern_put(sonde_intern *table, const void *bytes, uint32_t bytes_n)
{
    uint32_t check = sonde_check_bytes(bytes, bytes_n);
    uint32_t *slots = slots_of(table);
    uint32_t fresh = 0;
    for (uint32_t probe = 0; probe < table->slots; probe++) {
        uint32_t *slot = &slots[(check + probe) & (table->slots - 1)];
        /* Acquire: the id is read before the entry that it names. */
        uint32_t id = sonde_load_acquire(slot);
        if (id == 0) {
            if (fresh == 0 && (fresh = insert(table, check, bytes, bytes_n)) == 0)
                break;
            /* Release: the entry is stored before the id that names it. */
            if (sonde_cas_release(slot, &id, fresh))
                return fresh;
        }
        if (id <= table->entries && same(table, id, check, bytes, bytes_n))
            return id;
    }
    sonde_add_relaxed(&table->lost, 1);
    return 0;
}
