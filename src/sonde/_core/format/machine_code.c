/* The file about machine code: see machine_code.h. */
#include "format/machine_code.h"
#include "format/ordering.h"

#include <errno.h>
#include <string.h>

#define MAGIC 0x65646f6365646e73u /* "sndecode" */
#define VERSION 3

uint64_t sonde_machine_bytes(uint32_t entries)
{
    return sizeof(sonde_machine_table) + (uint64_t)entries * sizeof(sonde_machine_code);
}

void sonde_machine_init(sonde_machine_table *table, uint32_t entries)
{
    table->version = VERSION;
    table->entries = entries;
    table->magic = MAGIC;
}

int sonde_machine_verify(const sonde_machine_table *table, uint64_t mem_bytes)
{
    int is_sound = mem_bytes >= sizeof *table && table->magic == MAGIC && table->version == VERSION &&
                   sonde_machine_bytes(table->entries) <= mem_bytes;
    return is_sound ? 0 : -EBADMSG;
}

int sonde_machine_waits(const sonde_machine_table *table, enum sonde_machine_asker asker)
{
    return sonde_load_acquire(&table->asked[asker].waits) != 0; /* acquire: the last copy was taken before */
}

void sonde_machine_ask(sonde_machine_table *table, enum sonde_machine_asker asker, const sonde_stack_bytes *copy,
                       uint64_t unknown)
{
    sonde_machine_question *question = &table->asked[asker];
    if (sonde_machine_waits(table, asker))
        return;
    question->unknown = unknown;
    memcpy(&question->copy, copy, offsetof(sonde_stack_bytes, stack) + copy->bytes);
    /* Release: the copy is complete before it is said to be there. */
    sonde_store_release(&question->waits, 1);
}

int sonde_machine_take(sonde_machine_table *table, enum sonde_machine_asker asker, sonde_stack_bytes *copy,
                       uint64_t *unknown)
{
    sonde_machine_question *question = &table->asked[asker];
    if (!sonde_machine_waits(table, asker))
        return 0;
    *unknown = question->unknown;
    *copy = question->copy;
    memset(&question->copy, 0, sizeof question->copy); /* a stack may hold secrets; nobody needs it twice */
    sonde_store_release(&question->waits, 0); /* release: see above */
    return copy->bytes <= sizeof copy->stack;
}

int sonde_machine_add(sonde_machine_table *table, const sonde_machine_code *code)
{
    uint32_t count = table->count;
    if (count >= table->entries) {
        sonde_add_relaxed(&table->lost, 1);
        return -ENOSPC;
    }
    memcpy(&table->code[count], code, sizeof *code);
    /* Release: the piece is complete before it is counted. */
    sonde_store_release(&table->count, count + 1);
    return 0;
}
