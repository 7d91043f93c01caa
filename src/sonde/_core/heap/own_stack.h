/* The Python stack of the calling thread, read inside of an allocator. */
#ifndef SONDE_OWN_STACK_H
#define SONDE_OWN_STACK_H

#include "stacks/frames.h"

#define SONDE_CODE_SLOTS (1u << 12)
#define SONDE_LINE_SLOTS (1u << 13)

typedef struct {
    uintptr_t address; /* of the code object; 0: none */
    uint32_t id;       /* never used twice */
    sonde_frame_key key;
} sonde_known_code;

typedef struct {
    uint32_t code, unit;
    int32_t line;
} sonde_known_line;

typedef struct {
    uint32_t code, unit, node;
} sonde_known_step;

/* What is known of code objects, lines, and the last stack. All zero at first. */
typedef struct {
    sonde_known_code code[SONDE_CODE_SLOTS];
    sonde_known_line line[SONDE_LINE_SLOTS];
    sonde_known_step path[SONDE_MAX_DEPTH]; /* of the last stack, the outermost first */
    int path_n;
    uint32_t last_code;
} sonde_own_stacks;

/* Where stacks and their texts are kept. */
typedef struct {
    sonde_nodes_handle nodes; /* with an index */
    const sonde_intern_handle *text;
    uint32_t empty_text, cut_text, outside_text;
    uint64_t cut; /* stacks whose outermost frames were left out */
} sonde_stack_home;

/* Return the node of the stack that the calling thread is at; `state` is its own thread state, or NULL
 * if it has none. 0: there is no room. Allocates nothing and calls nothing that does. One thread at
 * a time; the GIL is not needed, because a thread's own frames hold their code objects. */
uint32_t sonde_own_stack(sonde_own_stacks *known, sonde_stack_home *home, PyThreadState *state);

/* Forget a code object that is about to be destroyed. */
void sonde_own_stack_forget(sonde_own_stacks *known, uintptr_t code);

#endif
