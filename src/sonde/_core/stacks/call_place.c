/* The instruction that a frame is at: does it call something, and by which name? */
#define _GNU_SOURCE 1
#include "stacks/call_place.h"

#if SONDE_HAS_C_CALLS

#include "stacks/frame_layout.h"

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

#define MOST_UNITS 8192 /* of a function, up to the call */
#define KNOWN 512       /* places that are remembered; a power of two */
#define STEPS 64        /* instructions that a call may take to get its arguments ready */

typedef struct {
    uint8_t op;
    uint32_t arg;
} step;

/* Only the native thread uses these. */
static sonde_call_place known[KNOWN];
static uint16_t units[MOST_UNITS];

int sonde_read_str(char *to, uintptr_t from)
{
    PyASCIIObject head;
    if (!may_be_frame(from) || sonde_read_memory(&head, from, sizeof head) < 0 ||
        head.ob_base.ob_type != &PyUnicode_Type || !head.state.ascii || head.length < 1 ||
        head.length >= SONDE_NAME_BYTES)
        return -1;
    to[head.length] = 0;
    return sonde_read_memory(to, from + sizeof head, (size_t)head.length);
}

/* Put an instruction down: as two, if it is two in one. Returns how many. */
static int put_step(step *steps, int count, uint8_t op, uint32_t arg)
{
#if PY_VERSION_HEX >= 0x030d0000
    int loads_two = op == LOAD_FAST_LOAD_FAST;
#if PY_VERSION_HEX >= 0x030e0000
    loads_two |= op == LOAD_FAST_BORROW_LOAD_FAST_BORROW;
#endif
    if (loads_two || op == STORE_FAST_LOAD_FAST) {
        steps[count % STEPS] = (step){loads_two ? LOAD_FAST : STORE_FAST, arg >> 4};
        steps[(count + 1) % STEPS] = (step){LOAD_FAST, arg & 15};
        return 2;
    }
#endif
    steps[count % STEPS] = (step){op, arg};
    return 1;
}

/* Decode the instructions up to and including `unit`; the newest STEPS of them are kept, as in a ring.
 * Returns how many there were, or -1 if `unit` is not the start of one. */
static int decode(uintptr_t code, int32_t unit, step *steps)
{
    int count = 0;
    uint32_t extended = 0;
    size_t bytes = ((size_t)unit + 1) * sizeof *units;
    if (sonde_read_memory(units, code + offsetof(PyCodeObject, co_code_adaptive), bytes) < 0)
        return -1;
    int32_t at = 0;
    while (at <= unit) {
        uint8_t raw[2];
        memcpy(raw, &units[at], 2);
        uint8_t op = _PyOpcode_Deopt[raw[0]];
        uint32_t arg = raw[1] | extended << 8;
        extended = op == EXTENDED_ARG ? arg : 0;
        if (op != EXTENDED_ARG)
            count += put_step(steps, count, op, arg);
        if (at == unit)
            return op == EXTENDED_ARG ? -1 : count;
        at += 1 + _PyOpcode_Caches[op];
    }
    return -1;
}

static int loads_local(uint8_t op)
{
#if PY_VERSION_HEX >= 0x030e0000
    if (op == LOAD_FAST_BORROW)
        return 1;
#endif
#if PY_VERSION_HEX >= 0x030c0000
    if (op == LOAD_FAST_CHECK)
        return 1;
#endif
    return op == LOAD_FAST;
}

/* Return which of the code's names an instruction loads; -1: none. */
static int64_t find_name(const step *loader)
{
    if (loader->op == LOAD_NAME)
        return loader->arg;
    if (loader->op == LOAD_GLOBAL)
        return loader->arg >> 1;
#if PY_VERSION_HEX >= 0x030c0000
    return loader->op == LOAD_ATTR ? (int64_t)(loader->arg >> 1) : -1;
#else
    return loader->op == LOAD_ATTR || loader->op == LOAD_METHOD ? (int64_t)loader->arg : -1;
#endif
}

/* Return how many values a call takes from the stack besides the function; -1: it is no call. Steps
 * back over what belongs to the call itself. */
static int count_arguments(const step *steps, int *last)
{
    const step *call = &steps[*last % STEPS];
#if PY_VERSION_HEX < 0x030c0000
    if (call->op == CALL && *last > 0 && steps[(*last - 1) % STEPS].op == PRECALL)
        --*last;
    return call->op == CALL || call->op == PRECALL ? (int)call->arg : -1;
#else
#if PY_VERSION_HEX >= 0x030d0000
    if (call->op == CALL_KW)
        return (int)call->arg + 1; /* and the names of the last ones */
#endif
    return call->op == CALL ? (int)call->arg : -1;
#endif
}

/* Go back from a call to the instruction that loads the function. NULL: it was not found. */
static const step *find_loader(const step *steps, int count)
{
    int last = count - 1, lowest = count > STEPS ? count - STEPS : 0, have = 0;
    int wanted = count_arguments(steps, &last);
    if (wanted < 0)
        return NULL;
    for (last--; last >= lowest && have < wanted; last--) {
        int effect = PyCompile_OpcodeStackEffect(steps[last % STEPS].op, (int)steps[last % STEPS].arg);
        if (effect == PY_INVALID_STACK_EFFECT)
            return NULL;
        have += effect;
    }
    if (last >= lowest && steps[last % STEPS].op == PUSH_NULL)
        last--;
    return last < lowest || have != wanted ? NULL : &steps[last % STEPS];
}

static void find_call(sonde_call_place *found, const PyCodeObject *code, const step *steps, int count)
{
    const step *loader = find_loader(steps, count);
    if (loader == NULL)
        return;
    uintptr_t name = 0;
    int64_t at = find_name(loader);
    if (loads_local(loader->op)) {
        found->kind = SONDE_CALL_OF_LOCAL;
        found->local = loader->arg;
    } else if (at >= 0 && sonde_read_memory(&name, (uintptr_t)code->co_names + offsetof(PyTupleObject, ob_item) +
                                                       (size_t)at * sizeof name, sizeof name) == 0 &&
               sonde_read_str(found->name, name) == 0) {
        found->kind = SONDE_CALL_OF_NAME;
    }
}

/* `value in container`: which of them is a variable? */
static void find_container(sonde_call_place *found, const step *steps, int count)
{
    if (count < 3)
        return;
    const step *right = &steps[(count - 2) % STEPS];
    int lowest = count > STEPS ? count - STEPS : 0, at = count - 2;
    if (loads_local(right->op)) {
        found->kind = SONDE_IN_LOCAL;
        found->local = right->arg;
        return;
    }
    int have = 0;
    for (; at >= lowest && have < 1; at--) {
        int effect = PyCompile_OpcodeStackEffect(steps[at % STEPS].op, (int)steps[at % STEPS].arg);
        if (effect == PY_INVALID_STACK_EFFECT)
            return;
        have += effect;
    }
    if (at >= lowest && have == 1 && loads_local(steps[at % STEPS].op)) {
        found->kind = SONDE_IN_VALUE;
        found->local = steps[at % STEPS].arg;
    }
}

sonde_call_place *sonde_call_place_find(const sonde_code *code, int32_t unit)
{
    sonde_call_place *found = &known[(code->id * 31u + (uint32_t)unit) & (KNOWN - 1)];
    if (found->code == code->id && found->unit == unit)
        return found;
    static step steps[STEPS];
    PyCodeObject copy;
    *found = (sonde_call_place){.code = code->id, .unit = unit};
    if (unit >= MOST_UNITS || sonde_read_memory(&copy, code->address, sizeof copy) < 0)
        return found;
    found->locals = copy.co_nlocalsplus;
    found->values = copy.co_stacksize < SONDE_MOST_VALUES ? copy.co_stacksize : SONDE_MOST_VALUES;
    int count = decode(code->address, unit, steps);
    if (count < 2 || found->locals < 0 || found->values < 0)
        return found;
    if (steps[(count - 1) % STEPS].op == CONTAINS_OP)
        find_container(found, steps, count);
    else
        find_call(found, &copy, steps, count);
    return found;
}

#endif
