/* The instruction that a frame is at: does it call something, and by which name? */
#ifndef SONDE_CALL_PLACE_H
#define SONDE_CALL_PLACE_H

#include "stacks/frames.h"
#include "kernel/read_memory.h"

/* Before 3.11 instructions and frames look otherwise. */
#define SONDE_HAS_C_CALLS (SONDE_HAS_FRAMES && PY_VERSION_HEX >= 0x030b0000)

#define SONDE_MOST_VALUES 48 /* that a frame is working with */
#define SONDE_NAME_BYTES 64

enum sonde_call_kind {
    SONDE_NOTHING,
    SONDE_CALL_OF_NAME,  /* name(…) or value.name(…) */
    SONDE_CALL_OF_LOCAL, /* of what a variable holds */
    SONDE_IN_LOCAL,      /* … in variable */
    SONDE_IN_VALUE,      /* variable in … */
    SONDE_OPERATOR,      /* left + right, left[right], … */
    SONDE_DEED,          /* no call: raise, {**} (a dictionary or [*] a list takes in another one), while (a loop
                          * that does nothing but ask) */
};

/* Where an operand of an operator comes from; its value lies among those that the frame works with. */
typedef struct {
    enum { SONDE_TEMPORARY, SONDE_VARIABLE, SONDE_CONSTANT } from;
    uint32_t local;     /* number of the variable */
    uintptr_t constant; /* address of the constant */
} sonde_operand;

typedef struct {
    uint32_t code; /* sonde_code.id */
    int32_t unit;
    enum sonde_call_kind kind;
    uint32_t local;         /* number of the variable */
    int32_t locals, values; /* how many of them the frame has */
    char name[SONDE_NAME_BYTES]; /* of an operator: its method, as in `__add__`; of a deed: itself */
    sonde_operand left, right; /* of left[right:stop]: from where */
    sonde_operand stop;
    int slices; /* it is left[right:stop] */
    uintptr_t object; /* what was found there last: the function, or the type of the container */
    uint32_t text;    /* and its name; 0: nothing */
} sonde_call_place;

/* Return what is known of an instruction: it is read once, and remembered until another one needs its
 * room. Native thread only. */
sonde_call_place *sonde_call_place_find(const sonde_code *code, int32_t unit);

/* Read a str that is ASCII, with a zero at its end; `to` has SONDE_NAME_BYTES. Returns 0 or -1. */
int sonde_read_str(char *to, uintptr_t from);

#endif
