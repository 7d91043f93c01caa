/* The file about machine code: how to get from a place in a function to its caller, and its name.
 *
 * Where the sampler does not know the way, it leaves a copy of the stack here. A process outside of the
 * job follows it by the unwind tables of the libraries, and adds what the sampler needs to find that way
 * itself from then on. So the job never opens a library's file.
 */
#ifndef SONDE_MACHINE_CODE_H
#define SONDE_MACHINE_CODE_H

#include "format/format.h"

#define SONDE_STACK_BYTES 32768 /* of a thread's stack that are looked at */

/* What the caller's stack pointer is counted from. */
enum {
    SONDE_FROM_STACK,
    SONDE_FROM_FRAME,
    SONDE_FROM_CHAIN, /* no table: follow the frame pointers */
    SONDE_FROM_SAVED, /* it is in memory, at `caller` from the frame pointer; the frame pointer is at `frame` from
                         itself. So do functions that align their stack, for vector registers mostly. */
    SONDE_FROM_SIGNAL, /* a signal came: the kernel has saved all registers on the stack */
    SONDE_FROM_NOWHERE /* a thread begins there: it has no caller */
};

/* What the walk does at this code. */
enum { SONDE_CODE_PLAIN, SONDE_CODE_CALLS /* how Python calls C */, SONDE_CODE_EVAL, SONDE_CODE_UNKNOWN };

/* A piece of code with one rule and one name. Saved registers lie at an offset from the caller's stack
 * pointer; SONDE_KEPT: the register itself still has the value. */
#define SONDE_KEPT INT32_MIN
typedef struct {
    uint64_t begin, end; /* addresses in the job */
    int32_t caller;      /* the caller's stack pointer, less what it is counted from */
    int32_t place;       /* where the place in the caller is saved */
    int32_t frame;       /* where the caller's frame pointer is saved */
    uint16_t from, kind;
    uint32_t func, file; /* text ids */
    uint64_t text_hash;
} sonde_machine_code;

_Static_assert(sizeof(sonde_machine_code) == 48, "machine code layout");

/* A thread at one moment: its registers, and the top of its stack. */
typedef struct {
    uint64_t pc, sp, fp;
    uint64_t link;  /* aarch64: where the innermost function returns to, unless it has saved that */
    uint64_t bytes; /* of the stack, from `sp` on */
    uint8_t stack[SONDE_STACK_BYTES];
} sonde_stack_bytes;

/* Who asks; each has a place for a question. */
enum sonde_machine_asker { SONDE_ASKED_BY_SAMPLER, SONDE_ASKED_BY_HEAP, SONDE_MACHINE_ASKERS };

typedef struct {
    uint32_t waits; /* atomic: the copy below waits to be followed */
    uint32_t pad;
    uint64_t unknown; /* the address at which the way was not known */
    sonde_stack_bytes copy;
} sonde_machine_question;

typedef struct {
    uint64_t magic;
    uint32_t version, entries;
    uint32_t count; /* atomic: pieces that are complete; only the process outside adds */
    uint32_t lost;  /* atomic: pieces that found no room */
    sonde_machine_question asked[SONDE_MACHINE_ASKERS];
    sonde_machine_code code[];
} sonde_machine_table;

_Static_assert(sizeof(sonde_machine_question) == 56 + SONDE_STACK_BYTES, "machine layout");
_Static_assert(offsetof(sonde_machine_table, code) == 24 + 2 * (56 + SONDE_STACK_BYTES), "machine layout");

uint64_t sonde_machine_bytes(uint32_t entries);

/* Write the header into zeroed memory. */
void sonde_machine_init(sonde_machine_table *table, uint32_t entries);

/* Returns 0 if this memory is such a table, else -EBADMSG. */
int sonde_machine_verify(const sonde_machine_table *table, uint64_t mem_bytes);

/* Does a copy of this asker wait? */
int sonde_machine_waits(const sonde_machine_table *table, enum sonde_machine_asker asker);

/* Leave a copy to be followed, unless one waits already. One thread at a time for each asker. */
void sonde_machine_ask(sonde_machine_table *table, enum sonde_machine_asker asker, const sonde_stack_bytes *copy,
                       uint64_t unknown);

/* Take that copy. Returns 1, or 0 if there is none. For one process, outside of the job. */
int sonde_machine_take(sonde_machine_table *table, enum sonde_machine_asker asker, sonde_stack_bytes *copy,
                       uint64_t *unknown);

/* Add a piece. Returns 0 or -ENOSPC. For that same process. */
int sonde_machine_add(sonde_machine_table *table, const sonde_machine_code *code);

#endif
