/* The interpreters of this process: see interpreters.h. */
#define _GNU_SOURCE 1
#include "stacks/interpreters.h"
#include "kernel/read_memory.h"

#if SONDE_HAS_FRAMES

#undef _PyGC_FINALIZED
#define Py_BUILD_CORE 1
#if PY_VERSION_HEX >= 0x030e0000
#include <internal/pycore_interp_structs.h>
#else
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#endif
#undef Py_BUILD_CORE

#if PY_VERSION_HEX >= 0x030b0000
#define HEAD_AT offsetof(PyInterpreterState, threads.head)
#else
#define HEAD_AT offsetof(PyInterpreterState, tstate_head)
#endif

uintptr_t sonde_interpreters_newest(void)
{
    /* A plain load. New interpreters are put in front of the main one. */
    PyInterpreterState *newest = PyInterpreterState_Head();
    return newest == PyInterpreterState_Main() ? 0 : (uintptr_t)newest;
}

int sonde_interpreters_read(uintptr_t address, sonde_interpreter *interpreter)
{
    int64_t number = 0;
    uintptr_t next = 0, head = 0;
    sonde_piece pieces[] = {
        {&number, address + offsetof(PyInterpreterState, id), sizeof number},
        {&next, address + offsetof(PyInterpreterState, next), sizeof next},
        {&head, address + HEAD_AT, sizeof head},
    };
    int status = sonde_read_pieces(pieces, 3);
    *interpreter = (sonde_interpreter){address, next, head, (uint32_t)number};
    return status;
}

int sonde_interpreters_has_gil(uintptr_t interpreter, uintptr_t address)
{
#if PY_VERSION_HEX >= 0x030c0000
    uintptr_t gil = 0;
    sonde_piece piece = {&gil, interpreter + offsetof(PyInterpreterState, ceval.gil), sizeof gil};
    if (sonde_read_pieces(&piece, 1) < 0)
        return 0;
#else
    (void)interpreter; /* all of them share one */
    uintptr_t gil = (uintptr_t)&_PyRuntime.ceval.gil;
#endif
    return gil != 0 && address >= gil && address < gil + sizeof(struct _gil_runtime_state);
}

#endif
