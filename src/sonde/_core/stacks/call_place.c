/* The instruction that a frame is at: does it call something, and by which name? */
#define _GNU_SOURCE 1
#include "stacks/call_place.h"

#if SONDE_HAS_C_CALLS

#include "stacks/busy_loop.h"
#include "stacks/frame_layout.h"

#include <stdio.h>
#include <string.h>

#define Py_BUILD_CORE 1
#if PY_VERSION_HEX >= 0x030d0000 /* their tables are in busy_loop.c */
#include <internal/pycore_opcode_metadata.h>
#else
#include <internal/pycore_opcode.h>
#endif
#if PY_VERSION_HEX >= 0x030e0000
#include <internal/pycore_runtime.h>
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
static uint16_t units[MOST_UNITS + SONDE_BUSY_AHEAD];

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

/* No value ends with these, so a walk goes on: `a if b else c` and `a or b` have jumps in them. */
static int belongs_to_branch(uint8_t op)
{
#if PY_VERSION_HEX >= 0x030e0000
    if (op == NOT_TAKEN)
        return 1;
#endif
#if PY_VERSION_HEX >= 0x030c0000
    return op == JUMP_FORWARD || op == POP_TOP || op == POP_JUMP_IF_FALSE || op == POP_JUMP_IF_TRUE ||
           op == POP_JUMP_IF_NONE || op == POP_JUMP_IF_NOT_NONE;
#else
    return op == JUMP_FORWARD || op == POP_JUMP_FORWARD_IF_FALSE || op == POP_JUMP_FORWARD_IF_TRUE ||
           op == POP_JUMP_FORWARD_IF_NONE || op == POP_JUMP_FORWARD_IF_NOT_NONE || op == JUMP_IF_TRUE_OR_POP ||
           op == JUMP_IF_FALSE_OR_POP;
#endif
}

/* Go back from instruction `at` over those that make the newest `wanted` values. Returns the one before
 * them, or -1. */
static int walk_back(const step *steps, int count, int at, int wanted)
{
    int lowest = count > STEPS ? count - STEPS : 0, have = 0;
    for (; at >= lowest && (have < wanted || belongs_to_branch(steps[at % STEPS].op)); at--) {
        const step *here = &steps[at % STEPS];
        int effect = PyCompile_OpcodeStackEffectWithJump(here->op, (int)here->arg, 0);
        if (effect == PY_INVALID_STACK_EFFECT)
            return -1;
        have += here->op == JUMP_FORWARD ? -1 : effect; /* what is before it made another branch's value */
    }
    return at < lowest || have != wanted ? -1 : at;
}

/* Go back from a call to the instruction that loads the function. NULL: it was not found. */
static const step *find_loader(const step *steps, int count)
{
    int last = count - 1, wanted = count_arguments(steps, &last);
    if (wanted < 0)
        return NULL;
    last = wanted == 0 ? last - 1 : walk_back(steps, count, last - 1, wanted);
    if (last > 0 && steps[last % STEPS].op == PUSH_NULL)
        last--;
    return last < 0 || last <= count - STEPS ? NULL : &steps[last % STEPS];
}

static int loads_constant(uint8_t op)
{
#if PY_VERSION_HEX >= 0x030f0000
    if (op == LOAD_COMMON_CONSTANT) /* None among them */
        return 1;
#endif
    return op == LOAD_CONST;
}

/* Does a call end a `with` block? Its function was put there when the block began. */
static int ends_with_block(const step *steps, int count)
{
    int last = count - 1, nones = 0;
    if (count_arguments(steps, &last) < 0)
        return 0;
    while (nones < 3 && last - 1 - nones >= 0 && loads_constant(steps[(last - 1 - nones) % STEPS].op) &&
           steps[(last - 1 - nones) % STEPS].arg == steps[(last - 1) % STEPS].arg)
        nones++;
    return nones == 3;
}

static void name_deed(sonde_call_place *found, const char *name)
{
    found->kind = SONDE_DEED;
    memcpy(found->name, name, strlen(name) + 1);
}

/* Name a place that calls nothing by what its instruction does. `decode` has read all up to there. */
static void find_deed(sonde_call_place *found, uintptr_t code, Py_ssize_t units_n, uint8_t op)
{
    if (op == DICT_UPDATE || op == LIST_EXTEND) {
        name_deed(found, op == DICT_UPDATE ? "{**}" : "[*]");
        return;
    }
    int32_t count = found->unit + 1, more = (int32_t)units_n - count;
    more = more > SONDE_BUSY_AHEAD ? SONDE_BUSY_AHEAD : more;
    uintptr_t at = code + offsetof(PyCodeObject, co_code_adaptive) + (size_t)count * sizeof *units;
    if (more > 0 && sonde_read_memory(&units[count], at, (size_t)more * sizeof *units) == 0 &&
        sonde_busy_loop(units, count + more, found->unit))
        name_deed(found, "while");
}

static int raises(uint8_t op)
{
    return op == RAISE_VARARGS || op == RERAISE || op == PUSH_EXC_INFO || op == CHECK_EXC_MATCH ||
           op == POP_EXCEPT;
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
    if (loads_local(right->op)) {
        found->kind = SONDE_IN_LOCAL;
        found->local = right->arg;
        return;
    }
    int at = walk_back(steps, count, count - 2, 1);
    if (at >= 0 && loads_local(steps[at % STEPS].op)) {
        found->kind = SONDE_IN_VALUE;
        found->local = steps[at % STEPS].arg;
    }
}

/* Return the method of an operator that works on values; NULL: it is none. */
static const char *name_operator(const step *last)
{
    static const char *const methods[] = {"add", "and", "floordiv", "lshift", "matmul", "mul", "mod",
                                          "or",  "pow", "rshift",   "sub",    "truediv", "xor"};
    static char name[16];
    enum { COUNT = sizeof methods / sizeof *methods };
    if (last->op == STORE_SUBSCR)
        return "__setitem__";
    if (last->op == DELETE_SUBSCR)
        return "__delitem__";
#if PY_VERSION_HEX >= 0x030c0000
    if (last->op == BINARY_SLICE)
        return "__getitem__";
#endif
#if PY_VERSION_HEX >= 0x030e0000
    if (last->op == BINARY_OP && last->arg == 2 * COUNT)
        return "__getitem__";
#else
    if (last->op == BINARY_SUBSCR)
        return "__getitem__";
#endif
    if (last->op != BINARY_OP || last->arg >= 2 * COUNT)
        return NULL;
    snprintf(name, sizeof name, "__%s%s__", last->arg < COUNT ? "" : "i", methods[last->arg % COUNT]);
    return name;
}

static sonde_operand read_operand(const PyCodeObject *code, const step *load)
{
    sonde_operand found = {.from = loads_local(load->op) ? SONDE_VARIABLE : SONDE_TEMPORARY, .local = load->arg};
    uintptr_t at = (uintptr_t)code->co_consts + offsetof(PyTupleObject, ob_item) + load->arg * sizeof at;
    if (load->op == LOAD_CONST && sonde_read_memory(&found.constant, at, sizeof found.constant) == 0)
        found.from = SONDE_CONSTANT;
#if PY_VERSION_HEX >= 0x030e0000
    /* Small numbers are no constants of the code: there is one object for each in the whole process. A
     * release that keeps them elsewhere makes this an operand that is never found. */
    if (load->op == LOAD_SMALL_INT && load->arg < _PY_NSMALLPOSINTS) {
        found.from = SONDE_CONSTANT;
        found.constant = (uintptr_t)&_PyRuntime.static_objects.singletons.small_ints[_PY_NSMALLNEGINTS + load->arg];
    }
#endif
    return found;
}

static void find_operator(sonde_call_place *found, const PyCodeObject *code, const step *steps, int count)
{
    const char *name = name_operator(&steps[(count - 1) % STEPS]);
    int at = name == NULL || count < 3 ? -1 : walk_back(steps, count, count - 2, 1);
    if (at < 0)
        return;
    found->right = read_operand(code, &steps[(count - 2) % STEPS]);
#if PY_VERSION_HEX >= 0x030c0000
    if (steps[(count - 1) % STEPS].op == BINARY_SLICE) {
        found->slices = 1;
        found->stop = found->right;
        found->right = read_operand(code, &steps[at % STEPS]);
        if ((at = walk_back(steps, count, at, 1)) < 0)
            return;
    }
#endif
    found->left = read_operand(code, &steps[at % STEPS]);
    found->kind = SONDE_OPERATOR;
    memcpy(found->name, name, strlen(name) + 1);
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
    if (found->kind == SONDE_NOTHING && ends_with_block(steps, count)) {
        found->kind = SONDE_CALL_OF_NAME;
        memcpy(found->name, "__exit__", sizeof "__exit__");
    }
    if (raises(steps[(count - 1) % STEPS].op))
        name_deed(found, "raise");
    if (found->kind == SONDE_NOTHING)
        find_operator(found, &copy, steps, count);
    if (found->kind == SONDE_NOTHING || found->kind == SONDE_OPERATOR) /* `while not flags[0]` is no news of lists */
        find_deed(found, code->address, copy.ob_base.ob_size, steps[(count - 1) % STEPS].op);
    return found;
}

#endif
