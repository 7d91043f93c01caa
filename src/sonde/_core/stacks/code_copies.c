/* The copies of a function's instructions that threads run: see code_copies.h.
 *
 * A code object has a list of them, and a frame has a number in that list. A thread keeps its number and
 * its copies for as long as it lives, so where a copy is has to be read once for each thread and function.
 */
#include "stacks/code_copies.h"
#include "kernel/read_memory.h"

#if SONDE_HAS_FRAMES && HAS_CODE_COPIES

#define SETS 1024u
#define PLACES 4u /* in a set: functions of one stack do not push each other out */
#define MOST_COPIES (1 << 20)

typedef struct {
    uint64_t thread;
    uint32_t code; /* sonde_code.id; 0: nothing is here */
    int32_t number;
    uintptr_t instructions;
} known_copy;

static known_copy known[SETS][PLACES];
static uint32_t oldest[SETS]; /* the place that is used next */

/* Read where a copy begins; 0 if there is none. */
static uintptr_t read_copy(const sonde_code *code, int32_t number)
{
    uintptr_t list = 0, list_after = 0, found = 0;
    Py_ssize_t size = 0;
    uintptr_t word = code->address + offsetof(PyCodeObject, co_tlbc);
    if (sonde_read_memory(&list, word, sizeof list) < 0)
        return 0;
    sonde_piece pieces[] = {
        {&size, list + offsetof(_PyCodeArray, size), sizeof size},
        {&found, list + offsetof(_PyCodeArray, entries) + (size_t)number * sizeof found, sizeof found},
        /* Once more: a list that grows is replaced by a longer one, and its memory is used again. */
        {&list_after, word, sizeof list_after},
    };
    if (sonde_read_pieces(pieces, 3) < 0 || list_after != list || number >= size)
        return 0;
    /* An address that is used again by now would have been that of another code object. */
    return sonde_load_relaxed(&code->alive) ? found : 0;
}

int64_t sonde_code_copies_unit(const raw_frame *frame, const sonde_code *code, uint64_t thread)
{
    int32_t number = frame->tlbc_index;
    if (number == 0)
        return unit_from(frame, find_instructions(code->address));
    if (number < 0 || number > MOST_COPIES)
        return INT64_MIN;
    uint64_t hash = (thread * 31 + code->id) * 0x9e3779b97f4a7c15u;
    uint32_t set = (uint32_t)(hash >> 40) % SETS;
    for (uint32_t i = 0; i < PLACES; i++) {
        const known_copy *at = &known[set][i];
        if (at->code == code->id && at->thread == thread && at->number == number)
            return unit_from(frame, at->instructions);
    }
    uintptr_t instructions = read_copy(code, number);
    if (instructions == 0)
        return INT64_MIN;
    known[set][oldest[set]++ % PLACES] = (known_copy){thread, code->id, number, instructions};
    return unit_from(frame, instructions);
}

#endif
