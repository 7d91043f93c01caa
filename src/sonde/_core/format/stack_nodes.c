/* Stacks as a tree in a file: a node is a frame under its caller.
 *
 * One thread writes. A node is filled in, then its checksum is stored, then the count is raised;
 * from then on only its sums change. So a reader in another process needs no lock, and a job that
 * is killed leaves every node whole.
 */
#include "format/format.h"

#include <errno.h>
#include <string.h>

static const char nodes_magic[8] = {'S', 'O', 'N', 'D', 'E', 'N', 'O', 'D'};

uint64_t sonde_nodes_bytes(uint32_t entries)
{
    if (entries == 0 || entries > 1u << 28)
        return 0;
    return SONDE_PAGE + (uint64_t)entries * sizeof(sonde_node);
}

static uint32_t header_check(const sonde_nodes *table)
{
    sonde_nodes copy;
    memcpy(&copy, table, offsetof(sonde_nodes, pad0));
    copy.check = 0;
    return sonde_check_bytes(&copy, offsetof(sonde_nodes, pad0));
}

void sonde_nodes_head(sonde_nodes *table, uint32_t entries)
{
    memcpy(table->magic, nodes_magic, sizeof nodes_magic);
    table->version = SONDE_FORMAT_VERSION;
    table->header_bytes = SONDE_PAGE;
    table->entries = entries;
    table->node_bytes = sizeof(sonde_node);
    table->check = header_check(table);
}

int sonde_nodes_init(void *mem, uint64_t mem_bytes, uint32_t entries)
{
    uint64_t bytes = sonde_nodes_bytes(entries);
    if (bytes == 0 || bytes > mem_bytes)
        return -EINVAL;
    sonde_nodes_head(mem, entries);
    return 0;
}

int sonde_nodes_open(sonde_nodes_handle *table, const void *mem, uint64_t mem_bytes)
{
    sonde_nodes head;
    if (mem_bytes < sizeof head)
        return -EBADMSG;
    memcpy(&head, mem, sizeof head); /* what is checked here is what is used later */
    if (memcmp(head.magic, nodes_magic, sizeof nodes_magic))
        return -EBADMSG;
    if (head.version > SONDE_FORMAT_VERSION)
        return -EPROTO;
    uint64_t bytes = sonde_nodes_bytes(head.entries);
    if (bytes == 0 || bytes > mem_bytes || head.header_bytes != SONDE_PAGE ||
        head.node_bytes != sizeof(sonde_node) || head.check != header_check(&head))
        return -EBADMSG;
    *table = (sonde_nodes_handle){.shared = (sonde_nodes *)mem,
                                  .node = (sonde_node *)((char *)mem + SONDE_PAGE),
                                  .entries = head.entries};
    return 0;
}

sonde_node *sonde_nodes_at(const sonde_nodes_handle *table, uint32_t id)
{
    return &table->node[id - 1];
}

/* Return the checksum of all that never changes in a node, and of its id: a node in the place of
 * another is damage. */
static uint32_t node_check(uint32_t id, const sonde_node *node)
{
    uint64_t words[4] = {
        (uint64_t)node->parent << 32 | node->func,
        (uint64_t)node->file << 32 | (uint32_t)node->line,
        (uint64_t)(uint32_t)node->first_line << 32 | id,
        node->hash,
    };
    return sonde_check(id, words, 4);
}

int sonde_nodes_get(const sonde_nodes_handle *table, uint32_t id, sonde_node *node)
{
    if (id == 0 || id > table->entries)
        return -ENOENT;
    const sonde_node *shared = sonde_nodes_at(table, id);
    /* Acquire: the checksum is written last, so when it is there, so is the rest. */
    uint32_t check = sonde_load_acquire(&shared->check);
    memcpy(node, shared, offsetof(sonde_node, samples));
    node->samples = sonde_load_relaxed(&shared->samples);
    node->wall_ns = sonde_load_relaxed(&shared->wall_ns);
    node->cpu_ns = sonde_load_relaxed(&shared->cpu_ns);
    node->gil_ns = sonde_load_relaxed(&shared->gil_ns);
    /* A parent is older than its child, so no path is a circle. */
    return check != 0 && node->parent < id && check == node_check(id, node) ? 0 : -EBADMSG;
}

uint64_t sonde_nodes_slots(const sonde_nodes_handle *table)
{
    uint64_t slots = 2;
    while (slots < 2 * (uint64_t)table->entries)
        slots *= 2;
    return slots;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t h = (a ^ b * 0x9e3779b97f4a7c15u) * 0xd6e8feb86659fd93u;
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93u;
    return h ^ h >> 29;
}

uint64_t sonde_hash_bytes(uint64_t hash, const void *bytes, size_t bytes_n)
{
    const uint8_t *from = bytes;
    for (size_t i = 0; i < bytes_n; i++)
        hash = (hash ^ from[i]) * 0x100000001b3u;
    return (hash ^ 0xff) * 0x100000001b3u; /* marks the end: "ab","c" is not "a","bc" */
}

static int same(const sonde_node *node, uint32_t parent, const sonde_frame_key *key)
{
    return node->parent == parent && node->func == key->func && node->file == key->file &&
           node->line == key->line && node->first_line == key->first_line;
}

static uint32_t insert(sonde_nodes_handle *table, uint32_t parent, const sonde_frame_key *key)
{
    if (table->count >= table->entries)
        return 0;
    uint32_t id = ++table->count;
    sonde_node *node = sonde_nodes_at(table, id);
    uint64_t above = parent ? sonde_nodes_at(table, parent)->hash : 0;
    sonde_node new = {
        .parent = parent,
        .func = key->func,
        .file = key->file,
        .line = key->line,
        .first_line = key->first_line,
        .hash = mix(mix(above, key->text_hash),
                    (uint64_t)(uint32_t)key->line << 32 | (uint32_t)key->first_line),
    };
    memcpy(node, &new, offsetof(sonde_node, samples));
    /* Release: everything is stored before the checksum that vouches for it, and that before the
     * count. */
    sonde_store_release(&node->check, node_check(id, &new));
    sonde_store_release(&table->shared->count, id);
    return id;
}

/* Find where a frame stands in the index, or should stand. The index is never full: it has twice
 * as many slots as there are nodes, and both the index and the number of nodes are private. */
static uint32_t *find_slot(const sonde_nodes_handle *table, uint32_t parent,
                           const sonde_frame_key *key)
{
    uint64_t slots = sonde_nodes_slots(table);
    uint64_t at = mix((uint64_t)parent << 32 | key->func,
                      mix((uint64_t)key->file << 32 | (uint32_t)key->line,
                          (uint32_t)key->first_line));
    for (;; at++) {
        uint32_t *slot = &table->index[at & (slots - 1)];
        if (*slot == 0 || same(sonde_nodes_at(table, *slot), parent, key))
            return slot;
    }
}

void sonde_nodes_index(sonde_nodes_handle *table)
{
    uint32_t count = sonde_load_acquire(&table->shared->count);
    table->count = count < table->entries ? count : table->entries;
    for (uint32_t id = 1; id <= table->count; id++) {
        const sonde_node *node = sonde_nodes_at(table, id);
        sonde_frame_key key = {node->func, node->file, node->line, node->first_line, 0};
        *find_slot(table, node->parent, &key) = id;
    }
}

uint32_t sonde_nodes_find(const sonde_nodes_handle *table, uint32_t parent, const sonde_frame_key *key)
{
    return *find_slot(table, parent, key);
}

uint32_t sonde_nodes_put(sonde_nodes_handle *table, uint32_t parent, const sonde_frame_key *key)
{
    uint32_t *slot = find_slot(table, parent, key);
    if (*slot == 0)
        *slot = insert(table, parent, key);
    return *slot;
}
