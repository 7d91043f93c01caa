/* The sampled blocks that are alive: a hash table in which a removal leaves no trace. */
#include "heap/blocks.h"
#include "format/ordering.h"

#include <errno.h>

enum { STUCK = 255 }; /* a count of the filter that can no longer be trusted to fall */

static uint32_t home_of(uintptr_t address)
{
    return (uint32_t)((uint64_t)(address >> 4) * 0x9e3779b97f4a7c15u >> 40) & (SONDE_BLOCK_SLOTS - 1);
}

static uint32_t next_of(uint32_t at) { return (at + 1) & (SONDE_BLOCK_SLOTS - 1); }

/* Relaxed, here and below: see blocks.h. */
static void count(uint8_t *filter, uintptr_t address, int change)
{
    uint8_t *place = &filter[sonde_filter_place(address)];
    if (*place != STUCK)
        sonde_store_relaxed(place, (uint8_t)(*place + change));
}

static uint32_t find_slot(const sonde_blocks *blocks, uintptr_t address)
{
    uint32_t at = home_of(address);
    while (blocks->slot[at].address != 0 && blocks->slot[at].address != address)
        at = next_of(at);
    return at;
}

int sonde_blocks_add(sonde_blocks *blocks, uint8_t *filter, const sonde_block *block)
{
    if (blocks->used >= SONDE_MOST_BLOCKS)
        return -ENOSPC;
    blocks->slot[find_slot(blocks, block->address)] = *block;
    blocks->used++;
    count(filter, block->address, 1);
    return 0;
}

sonde_block *sonde_blocks_find(sonde_blocks *blocks, uintptr_t address)
{
    sonde_block *slot = &blocks->slot[find_slot(blocks, address)];
    return slot->address == 0 ? NULL : slot;
}

int sonde_blocks_take(sonde_blocks *blocks, uint8_t *filter, uintptr_t address, sonde_block *block)
{
    uint32_t hole = find_slot(blocks, address);
    if (blocks->slot[hole].address == 0)
        return -ENOENT;
    *block = blocks->slot[hole];
    count(filter, address, -1);
    blocks->used--;
    /* Blocks behind it that could stand nearer to their home move up. */
    for (uint32_t at = next_of(hole); blocks->slot[at].address != 0; at = next_of(at)) {
        uint32_t home = home_of(blocks->slot[at].address);
        if (((at - home) & (SONDE_BLOCK_SLOTS - 1)) >= ((at - hole) & (SONDE_BLOCK_SLOTS - 1))) {
            blocks->slot[hole] = blocks->slot[at];
            hole = at;
        }
    }
    blocks->slot[hole].address = 0;
    return 0;
}
