/* The sampled blocks that are alive. */
#ifndef SONDE_BLOCKS_H
#define SONDE_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

#define SONDE_BLOCK_SLOTS (1u << 16)
#define SONDE_MOST_BLOCKS (SONDE_BLOCK_SLOTS / 2)
#define SONDE_FILTER_BYTES (1u << 16)

typedef struct {
    uintptr_t address;
    uint64_t size;  /* as it was asked for */
    int64_t bytes;  /* what it stands for: all blocks of which this one was drawn */
    uint32_t blocks;
    uint32_t node;  /* where it was allocated, and its type if that is known */
} sonde_block;

typedef struct {
    sonde_block slot[SONDE_BLOCK_SLOTS];
    uint32_t used;
} sonde_blocks;

/* How many blocks there are by a hash of their addresses: where it is 0, there is none. The hot path
 * reads it without a lock: whoever frees a block has got it from the thread that allocated it. Neighbours
 * share a place, so that a program that frees what it has just allocated finds its places in the cache;
 * blocks that lie a power of two apart do not. */
static inline uint32_t sonde_filter_place(uintptr_t address)
{
    return (uint32_t)((address ^ address >> 10) >> 10) & (SONDE_FILTER_BYTES - 1);
}

/* Add a block that is not there. Returns 0, or -ENOSPC. One thread at a time. */
int sonde_blocks_add(sonde_blocks *blocks, uint8_t *filter, const sonde_block *block);

/* Find a block; NULL if it is not there. Void after the next change. */
sonde_block *sonde_blocks_find(sonde_blocks *blocks, uintptr_t address);

/* Take a block out. Returns 0, or -ENOENT. */
int sonde_blocks_take(sonde_blocks *blocks, uint8_t *filter, uintptr_t address, sonde_block *block);

#endif
