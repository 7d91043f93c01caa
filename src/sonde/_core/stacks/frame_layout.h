/* Frames as each version of CPython lays them out. */
#ifndef SONDE_FRAME_LAYOUT_H
#define SONDE_FRAME_LAYOUT_H

#include "stacks/frames.h"

#if SONDE_HAS_FRAMES

#undef _PyGC_FINALIZED
#if PY_VERSION_HEX >= 0x030b0000
#define Py_BUILD_CORE 1
#if PY_VERSION_HEX >= 0x030e0000
#include <internal/pycore_interpframe_structs.h>
#else
#include <internal/pycore_frame.h>
#endif
#undef Py_BUILD_CORE
#else
#include <frameobject.h>
#endif

#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030d0000
#define HAS_CFRAME 1
#else
#define HAS_CFRAME 0
#endif

/* Without a GIL, from 3.14 on, each thread but the first runs its own copy of a function's instructions. */
#if defined(Py_GIL_DISABLED) && PY_VERSION_HEX >= 0x030e0000
#define HAS_CODE_COPIES 1
#else
#define HAS_CODE_COPIES 0
#endif

#if PY_VERSION_HEX >= 0x030b0000

typedef _PyInterpreterFrame raw_frame;
#define FRAME_BYTES offsetof(raw_frame, localsplus)

static inline uintptr_t previous_of(const raw_frame *frame) { return (uintptr_t)frame->previous; }

static inline uintptr_t code_of(const raw_frame *frame)
{
#if PY_VERSION_HEX >= 0x030e0000
    return (uintptr_t)frame->f_executable.bits & ~(uintptr_t)3; /* the low bits say who owns it */
#elif PY_VERSION_HEX >= 0x030d0000
    return (uintptr_t)frame->f_executable;
#else
    return (uintptr_t)frame->f_code;
#endif
}

/* Return the instruction that a frame is at, in a form that can be compared. */
static inline uintptr_t place_of(const raw_frame *frame)
{
#if PY_VERSION_HEX >= 0x030d0000
    return (uintptr_t)frame->instr_ptr;
#else
    return (uintptr_t)frame->prev_instr;
#endif
}

/* Where the instructions of a code object begin that all threads share. */
static inline uintptr_t find_instructions(uintptr_t code)
{
    return code + offsetof(PyCodeObject, co_code_adaptive);
}

/* Return the number of the instruction that a frame is at, in instructions that begin there. */
static inline int64_t unit_from(const raw_frame *frame, uintptr_t instructions)
{
    int64_t bytes = (int64_t)(place_of(frame) - instructions);
    return bytes & 1 ? INT64_MIN : bytes / 2;
}

/* The same, of a frame of the calling thread. */
static inline int64_t unit_of(const raw_frame *frame)
{
#if HAS_CODE_COPIES
    return unit_from(frame, (uintptr_t)((PyCodeObject *)code_of(frame))->co_tlbc->entries[frame->tlbc_index]);
#else
    return unit_from(frame, find_instructions(code_of(frame)));
#endif
}

/* From 3.12 on there is a frame without code on the C stack between C and Python. */
static inline int is_shim(const raw_frame *frame)
{
#if PY_VERSION_HEX >= 0x030f0000
    return frame->owner == FRAME_OWNED_BY_INTERPRETER;
#elif PY_VERSION_HEX >= 0x030e0000
    return frame->owner == FRAME_OWNED_BY_INTERPRETER || frame->owner == FRAME_OWNED_BY_CSTACK;
#elif PY_VERSION_HEX >= 0x030c0000
    return frame->owner == FRAME_OWNED_BY_CSTACK;
#else
    (void)frame;
    return 0;
#endif
}

/* Can this be the outermost frame of a stack, one that was called from C? */
static inline int may_be_first(const raw_frame *frame)
{
#if PY_VERSION_HEX >= 0x030c0000
    return is_shim(frame);
#else
    return frame->is_entry;
#endif
}

static inline int is_generator_frame(const raw_frame *frame, const sonde_code *code)
{
    (void)code;
    return frame->owner == FRAME_OWNED_BY_GENERATOR;
}

static inline int is_sane(const raw_frame *frame)
{
    return is_shim(frame) || frame->owner == FRAME_OWNED_BY_THREAD ||
           frame->owner == FRAME_OWNED_BY_GENERATOR;
}

#else

typedef struct _frame raw_frame;
#define FRAME_BYTES offsetof(raw_frame, f_blockstack)

static inline uintptr_t previous_of(const raw_frame *frame) { return (uintptr_t)frame->f_back; }
static inline uintptr_t code_of(const raw_frame *frame) { return (uintptr_t)frame->f_code; }
static inline uintptr_t place_of(const raw_frame *frame) { return (uintptr_t)frame->f_lasti; }
static inline int64_t unit_of(const raw_frame *frame) { return frame->f_lasti; }
static inline int is_shim(const raw_frame *frame) { (void)frame; return 0; }
static inline int may_be_first(const raw_frame *frame) { (void)frame; return 1; }
static inline int is_sane(const raw_frame *frame)
{
    /* 3.10 keeps a frame that has ended for the next call of its function. */
    return ((const PyObject *)frame)->ob_type == &PyFrame_Type &&
           (frame->f_state == FRAME_EXECUTING || frame->f_state == FRAME_UNWINDING);
}

static inline int is_generator_frame(const raw_frame *frame, const sonde_code *code)
{
    (void)frame;
    return code->is_generator;
}

#endif

/* From this level on, frames outside the data stack must be unchanged when they are read
 * again. On 3.10, where all frames are outside, that takes so long that short calls would
 * hardly ever be seen. */
#if PY_VERSION_HEX >= 0x030b0000
#define SURE_LEVEL 0
#else
#define SURE_LEVEL 3
#endif

/* 3.15 puts an empty frame below the first one of a thread, in the thread's state: whoever comes to
 * it has seen the whole stack. Returns its address, 0 before 3.15. */
static inline uintptr_t find_bottom(const PyThreadState *state)
{
#if PY_VERSION_HEX >= 0x030f0000
    return (uintptr_t)state->base_frame;
#else
    (void)state;
    return 0;
#endif
}

static inline int may_be_frame(uintptr_t address)
{
    return address >= SONDE_PAGE && address >> 48 == 0 && (address & 7) == 0;
}

static inline int same_frame(const raw_frame *one, const raw_frame *other, int is_innermost)
{
    return previous_of(one) == previous_of(other) && code_of(one) == code_of(other) &&
           (is_innermost || place_of(one) == place_of(other));
}

/* Return the address at which the address of the innermost frame is stored. */
static inline uintptr_t find_current_word(const sonde_view *view)
{
#if HAS_CFRAME
    return view->cframe + offsetof(_PyCFrame, current_frame);
#elif PY_VERSION_HEX >= 0x030d0000
    return view->state + offsetof(PyThreadState, current_frame);
#else
    return view->state + offsetof(PyThreadState, frame);
#endif
}

/* Return the innermost frame of the calling thread, whose state this is: nobody else changes it. */
static inline const raw_frame *find_innermost(const PyThreadState *state)
{
#if HAS_CFRAME
    return state->cframe == NULL ? NULL : state->cframe->current_frame;
#elif PY_VERSION_HEX >= 0x030d0000
    return state->current_frame;
#else
    return state->frame;
#endif
}

#endif /* SONDE_HAS_FRAMES */

#endif
