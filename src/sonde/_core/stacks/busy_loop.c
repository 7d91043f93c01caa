/* A loop that does nothing but ask: `while not self.ready: pass`.
 *
 * It calls nothing, stores nothing and takes nothing from an iterator. So nothing in it can change what
 * it asks about: it ends only if another thread, or a handler of a signal, does. The instructions say
 * this for certain, whatever the source looks like. */
#define _GNU_SOURCE 1
#define PY_SSIZE_T_CLEAN
#include <Python.h> /* before all others, as it says itself */

#include "stacks/busy_loop.h"

#if PY_VERSION_HEX >= 0x030b0000 /* before, instructions look otherwise */

#include <string.h>

#define Py_BUILD_CORE 1
/* These headers hold their tables only for whoever asks. */
#if PY_VERSION_HEX >= 0x030d0000
#define NEED_OPCODE_METADATA 1
#include <internal/pycore_opcode_metadata.h>
#else
#define NEED_OPCODE_TABLES 1
#include <internal/pycore_opcode.h>
#endif
#undef Py_BUILD_CORE
#include <opcode.h>

typedef struct {
    int32_t at, next; /* code units */
    uint8_t op;
    uint32_t arg;
} instruction;

/* Read the instruction at `from`, with what extends its argument. Returns 0, or -1 at the end. */
static int read_instruction(const uint16_t *units, int32_t count, int32_t from, instruction *found)
{
    uint32_t extended = 0;
    for (int32_t at = from; at < count; at++) {
        uint8_t raw[2];
        memcpy(raw, &units[at], 2);
        uint8_t op = _PyOpcode_Deopt[raw[0]];
        uint32_t arg = raw[1] | extended << 8;
        if (op != EXTENDED_ARG) {
            *found = (instruction){from, at + 1 + _PyOpcode_Caches[op], op, arg};
            return 0;
        }
        extended = arg;
    }
    return -1;
}

static int jumps_back(uint8_t op)
{
#if PY_VERSION_HEX < 0x030c0000
    if (op == POP_JUMP_BACKWARD_IF_TRUE || op == POP_JUMP_BACKWARD_IF_FALSE || op == POP_JUMP_BACKWARD_IF_NONE ||
        op == POP_JUMP_BACKWARD_IF_NOT_NONE)
        return 1;
#endif
    return op == JUMP_BACKWARD;
}

static int jumps_ahead(uint8_t op)
{
#if PY_VERSION_HEX < 0x030c0000
    return op == JUMP_FORWARD || op == POP_JUMP_FORWARD_IF_TRUE || op == POP_JUMP_FORWARD_IF_FALSE ||
           op == POP_JUMP_FORWARD_IF_NONE || op == POP_JUMP_FORWARD_IF_NOT_NONE || op == JUMP_IF_TRUE_OR_POP ||
           op == JUMP_IF_FALSE_OR_POP;
#else
    return op == JUMP_FORWARD || op == POP_JUMP_IF_TRUE || op == POP_JUMP_IF_FALSE || op == POP_JUMP_IF_NONE ||
           op == POP_JUMP_IF_NOT_NONE;
#endif
}

static int loads(uint8_t op)
{
#if PY_VERSION_HEX >= 0x030e0000
    if (op == LOAD_FAST_BORROW || op == LOAD_FAST_BORROW_LOAD_FAST_BORROW || op == LOAD_SMALL_INT || op == NOT_TAKEN)
        return 1;
#endif
#if PY_VERSION_HEX >= 0x030d0000
    if (op == LOAD_FAST_LOAD_FAST || op == TO_BOOL)
        return 1;
#endif
#if PY_VERSION_HEX >= 0x030c0000
    if (op == LOAD_FAST_CHECK)
        return 1;
#endif
#if PY_VERSION_HEX < 0x030e0000
    if (op == BINARY_SUBSCR)
        return 1;
#endif
    return op == LOAD_FAST || op == LOAD_CONST || op == LOAD_GLOBAL || op == LOAD_NAME || op == LOAD_DEREF ||
           op == LOAD_ATTR;
}

/* A loop that returns has ended. */
static int returns(uint8_t op)
{
#if PY_VERSION_HEX >= 0x030c0000 && PY_VERSION_HEX < 0x030e0000
    if (op == RETURN_CONST)
        return 1;
#endif
    return op == RETURN_VALUE;
}

static int only_asks(uint8_t op)
{
    return returns(op) || loads(op) || jumps_ahead(op) || jumps_back(op) || op == NOP || op == COMPARE_OP || op == IS_OP ||
           op == CONTAINS_OP || op == UNARY_NOT || op == BINARY_OP || op == POP_TOP || op == COPY || op == SWAP;
}

int sonde_busy_loop(const uint16_t *units, int32_t count, int32_t unit)
{
    /* How far back instructions do nothing but ask, without a gap: a loop that begins there is one. */
    int32_t since = 0;
    instruction here;
    for (int32_t at = 0; read_instruction(units, count, at, &here) == 0; at = here.next) {
        if (!only_asks(here.op)) {
            if (here.next > unit)
                return 0;
            since = here.next;
            continue;
        }
        if (!jumps_back(here.op) || here.next <= unit)
            continue;
        int32_t target = here.next - (int32_t)here.arg;
        if (target <= unit) /* the innermost loop around it */
            return target >= since;
    }
    return 0;
}

#endif
