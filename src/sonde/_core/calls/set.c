/* Sets of pointers. */
#include "calls/calls.h"

#include <stdlib.h>

static void put(sonde_set *set, size_t hash, void *item)
{
    size_t at = hash & (set->size - 1);
    while (set->slots[at] != NULL)
        at = (at + 1) & (set->size - 1);
    set->slots[at] = item;
}

int sonde_set_reserve(sonde_set *set, size_t (*hash_of)(const void *item))
{
    if (2 * (set->used + 1) <= set->size)
        return 0;
    sonde_set larger = {.size = set->size ? 2 * set->size : 64, .used = set->used};
    larger.slots = calloc(larger.size, sizeof *larger.slots);
    if (larger.slots == NULL)
        return -1;
    for (size_t i = 0; i < set->size; i++)
        if (set->slots[i] != NULL)
            put(&larger, hash_of(set->slots[i]), set->slots[i]);
    free(set->slots);
    *set = larger;
    return 0;
}

int sonde_set_add(sonde_set *set, size_t (*hash_of)(const void *item), void *item)
{
    if (sonde_set_reserve(set, hash_of) < 0)
        return -1;
    put(set, hash_of(item), item);
    set->used++;
    return 0;
}

void sonde_set_remove(sonde_set *set, size_t (*hash_of)(const void *item), size_t at)
{
    size_t mask = set->size - 1;
    set->slots[at] = NULL;
    set->used--;
    /* The ones behind it may stand there only because it was in their way: put them in again. */
    for (size_t next = (at + 1) & mask; set->slots[next] != NULL; next = (next + 1) & mask) {
        void *item = set->slots[next];
        set->slots[next] = NULL;
        put(set, hash_of(item), item);
    }
}

void sonde_set_clear(sonde_set *set, void (*release)(void *item))
{
    sonde_set gone = *set;
    *set = (sonde_set){0};
    for (size_t i = 0; release != NULL && i < gone.size; i++)
        if (gone.slots[i] != NULL)
            release(gone.slots[i]);
    free(gone.slots);
}
