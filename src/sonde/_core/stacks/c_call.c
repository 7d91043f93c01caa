/* The C function that the innermost frame of a stack is calling, also as an operator.
 *
 * C functions have no frame. But the instruction that a frame is at says by which name it calls, and
 * the function itself lies among the values that the frame is working with. Both are in the copy of the
 * stack, if the frame is small enough; but the thread went on while that was made, and goes on while we look at
 * what the values are, so neither is believed alone: a call counts only if a C function of that name, or
 * one whose name ends with `_` and that name, is found there.
 */
#define _GNU_SOURCE 1
#include "stacks/c_call.h"
#include "stacks/call_place.h"

#if SONDE_HAS_C_CALLS

#include "stacks/frame_layout.h"
#include "stacks/stack_copy.h"

#include <stdio.h>
#include <string.h>

/* Read a text of C. Returns 0, or -1 if it is not there or too long. */
static int read_text(char *to, uintptr_t from)
{
    size_t room = SONDE_PAGE - from % SONDE_PAGE;
    size_t first = room < SONDE_NAME_BYTES ? room : SONDE_NAME_BYTES;
    if (from == 0 || sonde_read_memory(to, from, first) < 0)
        return -1;
    if (memchr(to, 0, first) != NULL)
        return 0;
    if (first == SONDE_NAME_BYTES || sonde_read_memory(to + first, from + first, SONDE_NAME_BYTES - first) < 0)
        return -1;
    return memchr(to, 0, SONDE_NAME_BYTES) == NULL ? -1 : 0;
}

typedef struct {
    char owner[SONDE_NAME_BYTES], name[SONDE_NAME_BYTES];
    uintptr_t object; /* as in a place; 0: it may be gone soon, and another at its address */
} c_function;

/* From 3.14 on the lowest bits of a value say who owns it. */
static uintptr_t strip(uintptr_t value) { return value & ~(uintptr_t)3; }

static int read_type_name(char *to, uintptr_t type)
{
    uintptr_t name;
    if (!may_be_frame(type) ||
        sonde_read_memory(&name, type + offsetof(PyTypeObject, tp_name), sizeof name) < 0)
        return -1;
    return read_text(to, name);
}

static int read_method_name(char *to, uintptr_t method)
{
    uintptr_t name;
    if (method == 0 || sonde_read_memory(&name, method + offsetof(PyMethodDef, ml_name), sizeof name) < 0)
        return -1;
    return read_text(to, name);
}

/* A function of a module, or a method that is bound to an object or a class. */
static int read_builtin(uintptr_t at, c_function *found)
{
    PyCFunctionObject copy;
    PyObject self;
    if (sonde_read_memory(&copy, at, sizeof copy) < 0 || read_method_name(found->name, (uintptr_t)copy.m_ml) < 0)
        return -1;
    if (copy.m_self == NULL || sonde_read_memory(&self, (uintptr_t)copy.m_self, sizeof self) < 0)
        return -1;
    found->object = self.ob_type == &PyModule_Type ? at : 0;
    if (self.ob_type == &PyModule_Type)
        return sonde_read_str(found->owner, (uintptr_t)copy.m_module);
    if (self.ob_type == &PyType_Type)
        return read_type_name(found->owner, (uintptr_t)copy.m_self);
    return read_type_name(found->owner, (uintptr_t)self.ob_type);
}

/* A class of C: `decimal.Decimal`, or one of Python's own, whose names have no module. */
static int read_class(uintptr_t at, c_function *found)
{
    unsigned long flags;
    if (read_type_name(found->owner, at) < 0 ||
        sonde_read_memory(&flags, at + offsetof(PyTypeObject, tp_flags), sizeof flags) < 0)
        return -1;
    char *dot = strrchr(found->owner, '.');
    const char *name = dot == NULL ? found->owner : dot + 1;
    if (dot == NULL && flags & Py_TPFLAGS_HEAPTYPE)
        return -1; /* a class of Python, whose frames are seen */
    memcpy(found->name, name, strlen(name) + 1);
    if (dot == NULL)
        memcpy(found->owner, "builtins", sizeof "builtins");
    else
        *dot = 0;
    return 0;
}

/* Each version of Cython has a type of its own for the functions that it makes: `_cython_3_1_2.` and this. */
static int is_cython_type(uintptr_t type)
{
    static struct { uintptr_t type; int is_cython; } known[16]; /* to read a name each time would take too long */
    int at = (int)(type / 64 % 16);
    if (known[at].type != type) {
        char name[SONDE_NAME_BYTES];
        const char *dot = read_type_name(name, type) < 0 ? NULL : strrchr(name, '.');
        known[at].type = type;
        known[at].is_cython = dot != NULL && strcmp(dot, ".cython_function_or_method") == 0;
    }
    return known[at].is_cython;
}

/* A function that Cython made begins as one of C does, but is bound to itself. */
static int read_cython(uintptr_t at, c_function *found)
{
    PyCFunctionObject copy;
    if (sonde_read_memory(&copy, at, sizeof copy) < 0 || read_method_name(found->name, (uintptr_t)copy.m_ml) < 0)
        return -1;
    return sonde_read_str(found->owner, (uintptr_t)copy.m_module);
}

/* A method that is bound to an object may be one that Cython made. */
static int read_bound(uintptr_t at, c_function *found)
{
    PyMethodObject method;
    PyObject head;
    found->object = 0;
    if (sonde_read_memory(&method, at, sizeof method) < 0)
        return -1;
    uintptr_t function = (uintptr_t)method.im_func;
    if (!may_be_frame(function) || sonde_read_memory(&head, function, sizeof head) < 0)
        return -1;
    return is_cython_type((uintptr_t)head.ob_type) ? read_cython(function, found) : -1;
}

/* Read what can be called of a value. Returns 0, or -1 if it is no C function. */
static int read_function(uintptr_t at, c_function *found)
{
    PyObject head;
    found->object = at;
    if (!may_be_frame(at) || sonde_read_memory(&head, at, sizeof head) < 0)
        return -1;
    if (head.ob_type == &PyMethod_Type)
        return read_bound(at, found);
    if (head.ob_type == &PyCFunction_Type || head.ob_type == &PyCMethod_Type)
        return read_builtin(at, found);
    if (head.ob_type == &PyType_Type)
        return read_class(at, found);
    if (head.ob_type != &PyMethodDescr_Type && is_cython_type((uintptr_t)head.ob_type))
        return read_cython(at, found);
    PyMethodDescrObject copy;
    if (head.ob_type != &PyMethodDescr_Type || sonde_read_memory(&copy, at, sizeof copy) < 0 ||
        read_method_name(found->name, (uintptr_t)copy.d_method) < 0)
        return -1;
    return read_type_name(found->owner, (uintptr_t)copy.d_common.d_type);
}

static int read_container(const sonde_call_place *here, uintptr_t at, c_function *found)
{
    PyObject head;
    if (!may_be_frame(at) || sonde_read_memory(&head, at, sizeof head) < 0)
        return -1;
    found->object = (uintptr_t)head.ob_type;
    if (found->object == here->object)
        return 0;
    memcpy(found->name, "__contains__", sizeof "__contains__");
    return read_type_name(found->owner, found->object);
}

/* Operators of short texts and lists are quick, and there are many of them: they are nobody's news. */
#define LONG_VALUES 1000
#define MOST_BASES 3 /* of a class of Python, on the way to one of C */

static int copies_its_values(uintptr_t type)
{
    return type == (uintptr_t)&PyUnicode_Type || type == (uintptr_t)&PyBytes_Type ||
           type == (uintptr_t)&PyList_Type || type == (uintptr_t)&PyTuple_Type;
}

/* Is a value an index of one element: a number, or several? */
static int is_index(uintptr_t at, const PyVarObject *value)
{
    PyObject head;
    uintptr_t first;
    if (value->ob_base.ob_type != &PyTuple_Type)
        return value->ob_base.ob_type == &PyLong_Type;
    return value->ob_size > 0 &&
           sonde_read_memory(&first, at + offsetof(PyTupleObject, ob_item), sizeof first) == 0 &&
           may_be_frame(first) && sonde_read_memory(&head, first, sizeof head) == 0 &&
           head.ob_type == &PyLong_Type;
}

/* Tell whether an operator may take long: it copies a long text or list, or works on the values of an
 * extension one by one. */
static int is_told(const sonde_call_place *here, const PyVarObject *left, const PyVarObject *right, uintptr_t index)
{
    const char *name = here->name;
    uintptr_t type = (uintptr_t)left->ob_base.ob_type;
    int takes_item = strstr(name, "item__") != NULL, of_slice = here->slices || right->ob_base.ob_type == &PySlice_Type;
    if (!copies_its_values(type))
        return !takes_item || (!here->slices && is_index(index, right));
    if (strcmp(name, "__getitem__") == 0)
        return of_slice && left->ob_size >= LONG_VALUES;
    if (strcmp(name, "__delitem__") == 0)
        return left->ob_size >= LONG_VALUES;
    int is_longer = right->ob_base.ob_type == left->ob_base.ob_type && right->ob_size >= LONG_VALUES;
    return strstr(name, "add__") != NULL && (left->ob_size >= LONG_VALUES || is_longer);
}

/* Read the name of the type that works on the values of an object: its own if that is C's, whose names have
 * a module, else that of the class of C that a class of Python is made from, as torch.Tensor is. What such a
 * class does in Python has a frame of its own. Returns 0, or -1 if there is none. */
static int read_extension_name(char *to, uintptr_t type)
{
    for (int bases = 0; bases <= MOST_BASES; bases++) {
        if (read_type_name(to, type) < 0)
            return -1;
        if (strchr(to, '.') != NULL)
            return 0;
        if (sonde_read_memory(&type, type + offsetof(PyTypeObject, tp_base), sizeof type) < 0)
            return -1;
    }
    return -1;
}

/* Read the type of the left operand, if it is worth a word: Python's own that copy, or an extension's. Where the
 * left one is a number, say, the right one may be an extension's and does the work. */
static int read_operator(const sonde_call_place *here, uintptr_t left, uintptr_t right, c_function *found)
{
    PyVarObject a, b;
    if (!may_be_frame(left) || !may_be_frame(right) || sonde_read_memory(&a, left, sizeof a) < 0 ||
        sonde_read_memory(&b, right, sizeof b) < 0)
        return -1;
    found->object = (uintptr_t)a.ob_base.ob_type;
    if (found->object == here->object)
        return is_told(here, &a, &b, right) ? 0 : -1;
    int takes_item = strstr(here->name, "item__") != NULL;
    if (copies_its_values(found->object) ? read_type_name(found->owner, found->object) < 0
                                         : read_extension_name(found->owner, found->object) < 0) {
        found->object = (uintptr_t)b.ob_base.ob_type;
        if (takes_item || copies_its_values(found->object) || read_extension_name(found->owner, found->object) < 0)
            return -1;
    } else if (!is_told(here, &a, &b, right)) {
        return -1;
    }
    memcpy(found->name, here->name, sizeof found->name);
    return 0;
}

/* Read what an operand must be. Returns 0, and 0 as the value if it may be anything; or -1. */
static int read_operand_value(const sonde_operand *operand, uintptr_t first, uintptr_t *value)
{
    *value = operand->from == SONDE_CONSTANT ? operand->constant : 0;
    if (operand->from == SONDE_VARIABLE && sonde_stack_copy_read(value, first + operand->local * sizeof *value, sizeof *value) < 0)
        return -1;
    *value = strip(*value);
    return 0;
}

/* What only `left[right]` makes just before it works. */
static int is_slice_or_tuple(uintptr_t at)
{
    PyObject head;
    return may_be_frame(at) && sonde_read_memory(&head, at, sizeof head) == 0 &&
           (head.ob_type == &PySlice_Type || head.ob_type == &PyTuple_Type);
}

/* The operands lie side by side. Of one of them at least it is known what it is, or the right one is a
 * slice or a tuple: this tells where. */
static int find_operands(const sonde_call_place *here, uintptr_t first, const uintptr_t *values, c_function *found)
{
    uintptr_t left, right, stop;
    if (read_operand_value(&here->left, first, &left) < 0 || read_operand_value(&here->right, first, &right) < 0 ||
        read_operand_value(&here->stop, first, &stop) < 0)
        return -1;
    for (int i = 0; i + 1 + here->slices < here->values; i++) {
        uintptr_t a = strip(values[i]), b = strip(values[i + 1]);
        int fits = (left == 0 || left == a) && (right == 0 || right == b) && (stop == 0 || stop == strip(values[i + 2]));
        if (fits && (left || right || stop || is_slice_or_tuple(b)))
            return read_operator(here, a, b, found);
    }
    return -1;
}

/* A module may know a function by less than its name: torch.linalg.svd is `linalg_svd`. */
static int is_called(const char *name, const char *called)
{
    size_t whole = strlen(name), end = strlen(called);
    if (whole <= end)
        return strcmp(name, called) == 0;
    return strcmp(name + whole - end, called) == 0 && name[whole - end - 1] == '_' && end > 0;
}

/* Find the function that a call names among the values of the frame. Returns 0 or -1. */
static int find_by_name(const sonde_call_place *here, const uintptr_t *values, c_function *found)
{
    for (int i = 0; i < here->values && here->object; i++)
        if (strip(values[i]) == here->object) {
            found->object = here->object;
            return 0;
        }
    for (int i = 0; i < here->values; i++)
        if (read_function(strip(values[i]), found) == 0 && is_called(found->name, here->name))
            return 0;
    return -1;
}

/* Find what a place says among the values of the frame. Returns 0 or -1. */
static int find_function(const sonde_call_place *here, uintptr_t frame, c_function *found)
{
    uintptr_t values[SONDE_MOST_VALUES], value = 0, first = frame + offsetof(raw_frame, localsplus);
    uintptr_t local = first + here->local * sizeof value, locals = first;
    int is_local = here->kind != SONDE_CALL_OF_NAME && here->kind != SONDE_OPERATOR;
    if (is_local && sonde_stack_copy_read(&value, local, sizeof value) < 0)
        return -1;
    if (here->kind == SONDE_CALL_OF_LOCAL)
        return read_function(strip(value), found);
    if (here->kind == SONDE_IN_LOCAL)
        return read_container(here, strip(value), found);
    first += (size_t)here->locals * sizeof value;
    if (sonde_stack_copy_read(values, first, (size_t)here->values * sizeof value) < 0)
        return -1;
    if (here->kind == SONDE_CALL_OF_NAME)
        return find_by_name(here, values, found);
    if (here->kind == SONDE_OPERATOR)
        return find_operands(here, locals, values, found);
    for (int i = 0; i + 1 < here->values; i++)
        if (strip(values[i]) == strip(value))
            return read_container(here, strip(values[i + 1]), found);
    return -1;
}

uint32_t sonde_c_call_find(const sonde_stack *stack, const sonde_intern_handle *text)
{
    c_function found;
    char whole[2 * SONDE_NAME_BYTES];
    if (stack->depth == 0 || stack->unit < 0)
        return 0;
    sonde_call_place *here = sonde_call_place_find(stack->frame[0].code, stack->unit);
    if (here->kind == SONDE_DEED)
        return sonde_intern_put(text, here->name, (uint32_t)strlen(here->name));
    if (here->kind == SONDE_NOTHING || find_function(here, stack->innermost, &found) < 0)
        return 0;
    if (here->text && found.object == here->object)
        return here->text;
    int used = snprintf(whole, sizeof whole, "%s.%s", found.owner, found.name);
    uint32_t id = used < 0 ? 0 : sonde_intern_put(text, whole, (uint32_t)used);
    here->object = id ? found.object : 0;
    here->text = found.object ? id : 0;
    return id;
}

#else

uint32_t sonde_c_call_find(const sonde_stack *stack, const sonde_intern_handle *text)
{
    (void)stack;
    (void)text;
    return 0;
}

#endif
