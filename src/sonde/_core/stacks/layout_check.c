/* Does the running interpreter lay out its structures as the headers say that we were compiled with?
 * From 3.13 on it says so itself, in _Py_DebugOffsets at the beginning of _PyRuntime. */
#define _GNU_SOURCE 1
#include "stacks/frame_layout.h"

#if SONDE_HAS_FRAMES && PY_VERSION_HEX >= 0x030d0000

#define Py_BUILD_CORE 1
#if PY_VERSION_HEX >= 0x030e0000
#include <internal/pycore_debug_offsets.h>
#include <internal/pycore_interp_structs.h>
#else
#include <internal/pycore_runtime.h>
#endif
#undef Py_BUILD_CORE

#include <dlfcn.h>
#include <string.h>

#ifdef Py_GIL_DISABLED
#define IS_FREE_THREADED 1
#else
#define IS_FREE_THREADED 0
#endif

#define SAME(member, value) {offsetof(_Py_DebugOffsets, member), (value), #member}

static const struct {
    size_t at; /* in _Py_DebugOffsets */
    uint64_t expected;
    const char *name;
} known[] = {
    SAME(free_threaded, IS_FREE_THREADED),
    SAME(thread_state.size, sizeof(PyThreadState)),
    SAME(thread_state.next, offsetof(PyThreadState, next)),
    SAME(thread_state.interp, offsetof(PyThreadState, interp)),
    SAME(thread_state.current_frame, offsetof(PyThreadState, current_frame)),
    SAME(thread_state.native_thread_id, offsetof(PyThreadState, native_thread_id)),
    SAME(thread_state.datastack_chunk, offsetof(PyThreadState, datastack_chunk)),
#if PY_VERSION_HEX >= 0x030f0000
    SAME(thread_state.base_frame, offsetof(PyThreadState, base_frame)),
    SAME(thread_state.holds_gil, offsetof(PyThreadState, holds_gil)),
    SAME(thread_state.gil_requested, offsetof(PyThreadState, gil_requested)),
#endif
    SAME(interpreter_frame.size, sizeof(raw_frame)),
    SAME(interpreter_frame.previous, offsetof(raw_frame, previous)),
    SAME(interpreter_frame.executable, offsetof(raw_frame, f_executable)),
    SAME(interpreter_frame.instr_ptr, offsetof(raw_frame, instr_ptr)),
    SAME(interpreter_frame.localsplus, offsetof(raw_frame, localsplus)),
    SAME(interpreter_frame.owner, offsetof(raw_frame, owner)),
#if HAS_CODE_COPIES
    SAME(interpreter_frame.tlbc_index, offsetof(raw_frame, tlbc_index)),
    SAME(code_object.co_tlbc, offsetof(PyCodeObject, co_tlbc)),
#endif
    SAME(code_object.size, sizeof(PyCodeObject)),
    SAME(code_object.filename, offsetof(PyCodeObject, co_filename)),
    SAME(code_object.qualname, offsetof(PyCodeObject, co_qualname)),
    SAME(code_object.linetable, offsetof(PyCodeObject, co_linetable)),
    SAME(code_object.firstlineno, offsetof(PyCodeObject, co_firstlineno)),
    SAME(code_object.co_code_adaptive, offsetof(PyCodeObject, co_code_adaptive)),
    SAME(pyobject.ob_type, offsetof(PyObject, ob_type)),
    SAME(unicode_object.state, offsetof(PyASCIIObject, state)),
    SAME(unicode_object.length, offsetof(PyASCIIObject, length)),
    SAME(unicode_object.asciiobject_size, sizeof(PyASCIIObject)),
    SAME(bytes_object.ob_sval, offsetof(PyBytesObject, ob_sval)),
    SAME(interpreter_state.id, offsetof(PyInterpreterState, id)),
    SAME(interpreter_state.next, offsetof(PyInterpreterState, next)),
    SAME(interpreter_state.threads_head, offsetof(PyInterpreterState, threads.head)),
};

const char *sonde_layout_mismatch(void)
{
    const char *runtime = dlsym(RTLD_DEFAULT, "_PyRuntime");
    uint64_t version, value;
    if (runtime == NULL || memcmp(runtime, "xdebugpy", 8) != 0)
        return "_Py_DebugOffsets";
    memcpy(&version, runtime + offsetof(_Py_DebugOffsets, version), sizeof version);
    if (version >> 16 != PY_VERSION_HEX >> 16)
        return "version"; /* then all else may be elsewhere, too */
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        memcpy(&value, runtime + known[i].at, sizeof value);
        if (value != known[i].expected)
            return known[i].name;
    }
    return NULL;
}

#else

const char *sonde_layout_mismatch(void) { return SONDE_HAS_FRAMES ? NULL : "version"; }

#endif
